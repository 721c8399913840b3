#pragma once
/// What the benchmarks share: made-up tensors, and how many sets of them.

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/cuda/views.h"
#include "attention/rotate.h"
#include "bench/cuda/bench.h"
#include "core/cuda/memory.h"
#include "core/cuda/transfer.h"
#include "ops/cuda/product.h"
#include "ops/cuda/random_fill.h"

namespace lca::cuda {

inline Kernels kernels_of(const BenchSetup& setup) {
  return setup.options.portable ? Kernels::portable : Kernels::fast;
}

inline const Device& device_of(const BenchSetup& setup) { return Device::at(setup.options.device); }

/// Sets of inputs of so many bytes that together are twice the L2 cache.
inline int sets_for(const Device& device, double bytes) {
  constexpr double kMost = 128;
  return static_cast<int>(std::clamp(
      std::ceil(2 * static_cast<double>(device.cache) / std::max(bytes, 1.0)), 1.0, kMost));
}

/// Products with scratch of their own.
class BenchProducts {
 public:
  explicit BenchProducts(const Device& device)
      : products_(device), scratch_(Products::kScratchBytes) {}
  ProductSpace space() { return {&products_, scratch_.as<void>()}; }

 private:
  Products products_;
  Buffer scratch_;
};

/// Random tensors that live as long as this.
class Inputs {
 public:
  explicit Inputs(cudaStream_t stream) : stream_(stream) {}

  template <typename T = bf16>
  T* random(std::int64_t count, float deviation = 1) {
    T* data = allocate<T>(count);
    random_fill(data, count, deviation, static_cast<std::uint32_t>(buffers_.size()), stream_);
    return data;
  }
  template <typename T = bf16>
  T* allocate(std::int64_t count) {
    buffers_.emplace_back(static_cast<std::size_t>(std::max<std::int64_t>(count, 1)) * sizeof(T));
    return buffers_.back().template as<T>();
  }
  /// The layer's rotation, with entry positions.
  RotationView rotation(const LayerSpec& spec) {
    if (spec.settings.positions == Positions::token) return {};
    const std::vector<std::uint64_t> steps = rotation_steps(spec.rotation);
    auto* const data = allocate<std::uint64_t>(static_cast<std::int64_t>(steps.size()));
    Transfer(stream_).upload(std::span<const std::uint64_t>(steps), data);
    return {data, static_cast<int>(steps.size()), spec.rotation.layout};
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
