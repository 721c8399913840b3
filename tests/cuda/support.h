#pragma once
/// What the tests of the kernels share: arrays that go to the GPU and back, random bf16, NaN.

#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "attention/cuda/layer.h"
#include "core/cuda/memory.h"
#include "ops/cuda/product.h"
#include "support/random.h"

/// First line of a test that needs the GPU: skips it with the reason where there is none.
#define LCA_NEEDS_GPU()                                                         \
  if (const std::string missing_ = lca::cuda::unavailable(); !missing_.empty()) \
  GTEST_SKIP() << missing_

namespace lca::test {

using bf16 = __nv_bfloat16;

/// The GPU that tests run on, and its default stream.
inline const cuda::Device& gpu() { return cuda::Device::at(0); }
inline cuda::Queue gpu_queue() { return {&gpu(), nullptr}; }

/// Products with scratch of their own.
class TestProducts {
 public:
  TestProducts() : products_(gpu()), scratch_(cuda::Products::kScratchBytes) {}
  cuda::ProductSpace space() { return {&products_, scratch_.as<void>()}; }

 private:
  cuda::Products products_;
  cuda::Buffer scratch_;
};

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Nearest bf16 (ties to even), and back. NaN stays NaN.
inline bf16 bf16_of(double value) { return __float2bfloat16(static_cast<float>(value)); }
inline double double_of(bf16 value) { return static_cast<double>(__bfloat162float(value)); }
inline double double_of(float value) { return static_cast<double>(value); }
inline double double_of(double value) { return value; }

/// `count` NaNs: what fills every buffer before a test writes to it.
inline std::vector<bf16> nan_bf16(std::int64_t count) {
  return std::vector<bf16>(static_cast<std::size_t>(count), bf16_of(kNan));
}
inline std::vector<float> nan_float(std::int64_t count) {
  return std::vector<float>(static_cast<std::size_t>(count), kNan);
}

/// Standard normal values times `size`, rounded to bf16.
inline std::vector<bf16> random_bf16(Random& random, std::int64_t count, double size = 1) {
  std::vector<bf16> values(static_cast<std::size_t>(count));
  for (bf16& value : values) value = bf16_of(size * random.normal());
  return values;
}
inline std::vector<float> random_float(Random& random, std::int64_t count, double size = 1) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(size * random.normal());
  return values;
}

/// An array on the GPU with the host's values. Calls wait for the whole GPU: tests need no speed.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(const std::vector<T>& values)
      : size_(values.size()), buffer_(values.size() * sizeof(T)) {
    upload(values);
  }

  T* data() const { return buffer_.as<T>(); }
  std::size_t size() const { return size_; }

  void upload(const std::vector<T>& values) {
    if (values.empty()) return;
    cuda::check(cudaMemcpy(data(), values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice),
                "uploading a test's values");
    // From pageable memory the call may return earlier, and streams that do not block would not
    // wait for it.
    cuda::check(cudaDeviceSynchronize(), "uploading a test's values");
  }

  std::vector<T> download() const {
    cuda::check(cudaDeviceSynchronize(), "waiting for a test's kernel");
    std::vector<T> values(size_);
    if (values.empty()) return values;
    cuda::check(cudaMemcpy(values.data(), data(), size_ * sizeof(T), cudaMemcpyDeviceToHost),
                "downloading a test's results");
    return values;
  }

 private:
  std::size_t size_ = 0;
  cuda::Buffer buffer_;
};

/// ‖got − expected‖ / ‖expected‖, gathered value by value; NaN where any value is.
class RelativeError {
 public:
  void add(double got, double expected) {
    difference_ += (got - expected) * (got - expected);
    norm_ += expected * expected;
  }
  double value() const { return std::sqrt(difference_) / std::fmax(std::sqrt(norm_), 1e-30); }

 private:
  double difference_ = 0;
  double norm_ = 0;
};

}  // namespace lca::test
