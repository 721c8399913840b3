#pragma once
/// Tensors of the operators' tests on the GPU: strided, with NaN between rows, and the calls'
/// scratch with NaN in it and a guard behind it.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cuda/support.h"
#include "support/operator_case.h"

namespace lca::test {

/// A bf16 tensor on the GPU. `row_gap` and `head_gap` values lie unused between rows and heads.
class DeviceTensor {
 public:
  DeviceTensor() = default;
  explicit DeviceTensor(const Values& values, std::int64_t row_gap = 0, std::int64_t head_gap = 0)
      : shape_(values.shape()) {
    head_ = shape_[2] + head_gap;
    row_ = shape_[1] * head_ + row_gap;
    // One row more than there are: what is read or written there is wrong.
    std::vector<bf16> padded = nan_bf16((shape_[0] + 1) * row_);
    for (std::int64_t i = 0; i < values.size(); ++i) {
      padded[place(i)] = bf16_of(values.get(i));
    }
    array_ = DeviceArray<bf16>(padded);
  }

  Tensor tensor() const {
    Tensor view(array_.size() == 0 ? nullptr : array_.data(), DType::bf16,
                {shape_[0], shape_[1], shape_[2]});
    view.stride = {row_, head_, 1};
    return view;
  }
  ConstTensor view() const { return tensor(); }

  /// What it holds now; fails where a gap was written.
  std::vector<double> download() const {
    const std::vector<bf16> padded = array_.download();
    std::vector<bool> used(padded.size(), false);
    std::vector<double> values;
    for (std::int64_t i = 0; i < shape_[0] * shape_[1] * shape_[2]; ++i) {
      used[place(i)] = true;
      values.push_back(double_of(padded[place(i)]));
    }
    for (std::size_t i = 0; i < padded.size(); ++i) {
      if (!used[i] && !std::isnan(double_of(padded[i]))) {
        ADD_FAILURE() << "a gap was written at " << i;
        break;
      }
    }
    return values;
  }

 private:
  std::size_t place(std::int64_t i) const {
    const std::int64_t head = i / shape_[2];
    return static_cast<std::size_t>(head / shape_[1] * row_ + head % shape_[1] * head_ +
                                    i % shape_[2]);
  }

  std::array<std::int64_t, 3> shape_{0, 0, 0};
  std::int64_t row_ = 0;
  std::int64_t head_ = 0;
  DeviceArray<bf16> array_;
};

/// Gaps between rows and heads: whole vectors of 16 bytes, or not.
struct Gaps {
  std::int64_t row = 0;
  std::int64_t head = 0;
};

/// Floats as `Values` are compared.
inline Values floats_like(const std::vector<float>& values) {
  Values list(DType::f32, 1, 1, static_cast<std::int64_t>(values.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    list.set(static_cast<std::int64_t>(i), static_cast<double>(values[i]));
  }
  return list;
}

inline OperatorSpec operator_spec(const AttentionShape& shape, const Settings& settings,
                                  std::vector<std::int64_t> starts) {
  OperatorSpec spec;
  spec.layer.shape = shape;
  spec.layer.settings = settings;
  spec.starts = std::move(starts);
  return spec;
}

/// Scratch of one call: NaN, and a guard behind it that must stay as it is.
class OperatorScratch {
 public:
  OperatorScratch(const OperatorSpec& spec, OperatorPart part, OperatorPlace& place)
      : bytes_(operator_workspace_bytes(spec, part, place)), buffer_(bytes_ + kGuard) {
    cuda::check(cudaMemset(buffer_.as<void>(), 0xff, bytes_ + kGuard), "filling a workspace");
    // Streams that do not block would not wait for it.
    cuda::check(cudaDeviceSynchronize(), "filling a workspace");
    place.workspace = buffer_.as<void>();
  }

  void guard_check() const {
    cuda::check(cudaDeviceSynchronize(), "waiting for an operator");
    std::vector<unsigned char> guard(kGuard);
    cuda::check(cudaMemcpy(guard.data(), buffer_.as<unsigned char>() + bytes_, kGuard,
                           cudaMemcpyDeviceToHost),
                "reading a guard");
    for (const unsigned char byte : guard) ASSERT_EQ(byte, 0xff) << "written behind the workspace";
  }

 private:
  static constexpr std::size_t kGuard = 4096;
  std::size_t bytes_;
  cuda::Buffer buffer_;
};

}  // namespace lca::test
