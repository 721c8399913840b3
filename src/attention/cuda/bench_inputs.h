#pragma once
/// What the benchmarks share: made-up tensors, and how many sets of them.

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/cuda/bench.h"
#include "attention/cuda/random_fill.h"
#include "attention/cuda/views.h"

namespace lca::cuda {

inline Kernels kernels_of(const BenchSetup& setup) {
  return setup.options.portable ? Kernels::portable : Kernels::fast;
}

inline double cache_bytes_of_device() {
  int index = 0, bytes = 0;
  check(cudaGetDevice(&index), "asking for the GPU");
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, index),
        "asking for the GPU's cache");
  return bytes;
}

/// Sets of inputs of so many bytes that together are twice the L2 cache.
inline int sets_for(double bytes) {
  constexpr double kMost = 128;
  return static_cast<int>(
      std::clamp(std::ceil(2 * cache_bytes_of_device() / std::max(bytes, 1.0)), 1.0, kMost));
}

/// Random tensors that live as long as this.
class Inputs {
 public:
  explicit Inputs(cudaStream_t stream) : stream_(stream) {}

  template <typename T = bf16>
  T* random(std::int64_t count, float deviation = 1) {
    T* data = room<T>(count);
    random_fill(data, count, deviation, static_cast<std::uint32_t>(buffers_.size()), stream_);
    return data;
  }
  template <typename T = bf16>
  T* room(std::int64_t count) {
    buffers_.emplace_back(static_cast<std::size_t>(std::max<std::int64_t>(count, 1)) * sizeof(T));
    return buffers_.back().template as<T>();
  }
  /// Weights that keep the size of what they are multiplied with.
  bf16* weights(std::int64_t rows, std::int64_t columns) {
    return random(rows * columns, 1 / std::sqrt(static_cast<float>(columns)));
  }

 private:
  cudaStream_t stream_;
  std::vector<Buffer> buffers_;
};

}  // namespace lca::cuda
