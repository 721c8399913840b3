#pragma once
/// What one run of decode steps tries, and the pages of representatives it reads and writes.

#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "attention/cuda/views.h"
#include "cuda/decode_reference.h"
#include "cuda/support.h"

namespace lca::test {

using cuda::GroupType;
using cuda::Kernels;

/// What one run tries.
struct DecodeCase {
  std::string name;
  AttentionShape shape;
  Settings settings;
  Rotation rotation;                  ///< entry positions where it has frequencies
  std::vector<std::int64_t> lengths;  ///< before the first step
  std::int64_t steps = 6;
  GroupType type = GroupType::bf16;
  Kernels kernels = Kernels::fast;
  std::uint64_t seed = 1;
  int chunk = 0;   ///< entries of a block where not 0, and blocks for a far longer cache
  int blocks = 0;  ///< with chunk: so many blocks instead, in clusters of `cluster`
  int cluster = 0;
  bool graph = false;    ///< one captured step, replayed
  bool written = false;  ///< with graph: the kernel right before the step writes its queries
  bool outliers = false;
  double out_tolerance = 5e-3;
};

inline Settings settings_of(std::int64_t group, std::int64_t window, std::int64_t sink,
                            Mass mass = Mass::none) {
  Settings settings;
  settings.group = group;
  settings.window = window;
  settings.sink = sink;
  settings.mass = mass;
  return settings;
}

/// The pool on both sides.
class DecodePool {
 public:
  DecodePool(const DecodeCase& c, std::int64_t rows) : c_(c), rows_(rows) {
    const AttentionShape& s = c.shape;
    kv_ = s.kv_heads;
    const bool mla = s.form == Form::mla;
    quantised_ = c.type != GroupType::bf16;
    scales_ = mla ? (s.d_semantic() + cuda::kScaleBlock - 1) / cuda::kScaleBlock : 1;
    semantic_size_ = quantised_ ? 1 : 2;
    positional_size_ = quantised_ && !mla ? 1 : 2;
    const auto bytes = [](std::int64_t n) {
      return std::vector<std::uint8_t>(static_cast<std::size_t>(n), 0xff);
    };
    semantic_ = bytes(rows * kv_ * s.d_semantic() * semantic_size_);
    positional_ = bytes(rows * kv_ * s.d_positional() * positional_size_);
    semantic_scale_ = nan_float(rows * kv_ * scales_);
    positional_scale_ = nan_float(rows * kv_);
    bias_ = nan_float(rows * kv_);
  }

  /// Puts a group into row `row` and makes it what readers see.
  void store(std::int64_t row, std::int64_t kv, DecodedGroup& group) {
    const std::int64_t at = row * kv_ + kv;
    const AttentionShape& s = c_.shape;
    if (s.form == Form::mla) {
      for (std::int64_t b = 0; b < scales_; ++b) {
        const std::int64_t first = b * cuda::kScaleBlock;
        const std::int64_t last = std::min<std::int64_t>(first + cuda::kScaleBlock, s.d_semantic());
        put(semantic_, semantic_size_, at * s.d_semantic(), group.semantic, first, last,
            semantic_scale_[static_cast<std::size_t>(at * scales_ + b)]);
      }
    } else {
      put(semantic_, semantic_size_, at * s.d_semantic(), group.semantic, 0, s.d_semantic(),
          semantic_scale_[static_cast<std::size_t>(at)]);
    }
    put(positional_, positional_size_, at * s.d_positional(), group.positional, 0, s.d_positional(),
        positional_scale_[static_cast<std::size_t>(at)]);
    bias_[static_cast<std::size_t>(at)] = static_cast<float>(group.bias);
    group.bias = double_of(bias_[static_cast<std::size_t>(at)]);
  }

  /// A group as it stands in the pool after `download`. `unit` gets the largest scale.
  DecodedGroup load(std::int64_t row, std::int64_t kv, double& unit) const {
    const std::int64_t at = row * kv_ + kv;
    const AttentionShape& s = c_.shape;
    DecodedGroup group;
    unit = 0;
    for (std::int64_t d = 0; d < s.d_semantic(); ++d) {
      const std::int64_t b = s.form == Form::mla ? at * scales_ + d / cuda::kScaleBlock : at;
      const float scale = semantic_scale_[static_cast<std::size_t>(b)];
      group.semantic.push_back(get(semantic_, semantic_size_, at * s.d_semantic() + d, scale));
      if (quantised_) unit = std::max(unit, double_of(scale));
    }
    const float scale = positional_scale_[static_cast<std::size_t>(at)];
    for (std::int64_t d = 0; d < s.d_positional(); ++d) {
      group.positional.push_back(
          get(positional_, positional_size_, at * s.d_positional() + d, scale));
    }
    if (positional_size_ == 1) unit = std::max(unit, double_of(scale));
    group.bias = double_of(bias_[static_cast<std::size_t>(at)]);
    return group;
  }

  cuda::GroupPool upload() {
    device_semantic_.emplace(semantic_);
    device_positional_.emplace(positional_);
    device_semantic_scale_.emplace(semantic_scale_);
    device_positional_scale_.emplace(positional_scale_);
    device_bias_.emplace(bias_);
    cuda::GroupPool pool;
    pool.type = c_.type;
    pool.semantic = device_semantic_->data();
    pool.positional = device_positional_->data();
    if (quantised_) pool.semantic_scale = device_semantic_scale_->data();
    if (positional_size_ == 1) pool.positional_scale = device_positional_scale_->data();
    if (c_.settings.mass == Mass::score) pool.bias = device_bias_->data();
    return pool;
  }
  void download() {
    semantic_ = device_semantic_->download();
    positional_ = device_positional_->download();
    semantic_scale_ = device_semantic_scale_->download();
    positional_scale_ = device_positional_scale_->download();
    bias_ = device_bias_->download();
  }

 private:
  void put(std::vector<std::uint8_t>& bytes, int size, std::int64_t base,
           std::vector<double>& values, std::int64_t first, std::int64_t last, float& scale) {
    float largest = 0;
    for (std::int64_t d = first; d < last; ++d) {
      double& value = values[static_cast<std::size_t>(d)];
      value = double_of(bf16_of(value));
      largest = std::max(largest, std::abs(static_cast<float>(value)));
    }
    const bool int8 = c_.type == GroupType::int8;
    if (size == 1) scale = largest / (int8 ? 127.f : 448.f);
    for (std::int64_t d = first; d < last; ++d) {
      double& value = values[static_cast<std::size_t>(d)];
      const auto at = static_cast<std::size_t>((base + d) * size);
      if (size == 2) {
        const bf16 bits = bf16_of(value);
        std::memcpy(bytes.data() + at, &bits, 2);
        continue;
      }
      const float x = scale > 0 ? static_cast<float>(value) / scale : 0.f;
      bytes[at] = int8 ? static_cast<std::uint8_t>(static_cast<std::int8_t>(std::lrint(x)))
                       : __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
      value = get(bytes, size, base + d, scale);
    }
  }
  double get(const std::vector<std::uint8_t>& bytes, int size, std::int64_t element,
             float scale) const {
    const std::uint8_t* from = bytes.data() + element * size;
    if (size == 2) {
      bf16 bits;
      std::memcpy(&bits, from, 2);
      return double_of(bits);
    }
    const float value = c_.type == GroupType::int8
                            ? static_cast<float>(static_cast<std::int8_t>(*from))
                            : __half2float(__half(__nv_cvt_fp8_to_halfraw(*from, __NV_E4M3)));
    return double_of(bf16_of(double_of(value * scale)));
  }

  const DecodeCase& c_;
  std::int64_t rows_;
  std::int64_t kv_ = 1;
  std::int64_t scales_ = 1;
  bool quantised_ = false;
  int semantic_size_ = 2;
  int positional_size_ = 2;
  std::vector<std::uint8_t> semantic_, positional_;
  std::vector<float> semantic_scale_, positional_scale_, bias_;
  std::optional<DeviceArray<std::uint8_t>> device_semantic_, device_positional_;
  std::optional<DeviceArray<float>> device_semantic_scale_, device_positional_scale_, device_bias_;
};

}  // namespace lca::test
