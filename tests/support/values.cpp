#include "support/values.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "core/bf16.h"

namespace lca::test {

Values::Values(DType dtype, std::int64_t d0, std::int64_t d1, std::int64_t d2, Random* gaps)
    : dtype_(dtype), shape_{d0, d1, d2}, stride_{d1 * d2, d2} {
  std::int64_t count = size();
  if (gaps != nullptr && count > 0) {
    dense_ = false;
    stride_[1] = d2 + gaps->integer(0, 3);
    stride_[0] = d1 * stride_[1] + gaps->integer(0, 5);
    count = d0 * stride_[0] + 1;
  }
  bytes_.resize(static_cast<std::size_t>(count) * dtype_bytes(dtype));
  for (std::int64_t i = 0; i < count; ++i) write(i, std::numeric_limits<double>::quiet_NaN());
}

double Values::read(std::int64_t at) const {
  const std::byte* from = bytes_.data() + static_cast<std::size_t>(at) * dtype_bytes(dtype_);
  double whole = 0;
  float single = 0;
  bf16_bits half = 0;
  switch (dtype_) {
    case DType::f64:
      std::memcpy(&whole, from, sizeof(whole));
      return whole;
    case DType::f32:
      std::memcpy(&single, from, sizeof(single));
      return single;
    case DType::bf16:
      std::memcpy(&half, from, sizeof(half));
      return bf16_to_f32(half);
  }
  return 0;
}

void Values::write(std::int64_t at, double value) {
  std::byte* to = bytes_.data() + static_cast<std::size_t>(at) * dtype_bytes(dtype_);
  const auto single = static_cast<float>(value);
  const bf16_bits half = bf16_from_f32(single);
  switch (dtype_) {
    case DType::f64:
      std::memcpy(to, &value, sizeof(value));
      break;
    case DType::f32:
      std::memcpy(to, &single, sizeof(single));
      break;
    case DType::bf16:
      std::memcpy(to, &half, sizeof(half));
      break;
  }
}

std::vector<double> Values::doubles() const {
  std::vector<double> list;
  list.reserve(static_cast<std::size_t>(size()));
  for (std::int64_t i = 0; i < size(); ++i) list.push_back(get(i));
  return list;
}

void Values::fill_normal(double deviation, Random& random) {
  for (std::int64_t i = 0; i < size(); ++i) set(i, deviation * random.normal());
}

Values Values::rounded(DType dtype) const {
  Values copy(dtype, shape_[0], shape_[1], shape_[2]);
  for (std::int64_t i = 0; i < size(); ++i) copy.set(i, get(i));
  return copy;
}

Tensor Values::tensor() {
  Tensor view(bytes_.empty() ? nullptr : bytes_.data(), dtype_, {shape_[0], shape_[1], shape_[2]});
  view.stride = {stride_[0], stride_[1], 1};
  return view;
}

ConstTensor Values::view() const {
  ConstTensor view(bytes_.empty() ? nullptr : bytes_.data(), dtype_,
                   {shape_[0], shape_[1], shape_[2]});
  view.stride = {stride_[0], stride_[1], 1};
  return view;
}

bool Values::gaps_are_intact() const {
  if (dense_) return true;
  const auto count = static_cast<std::int64_t>(bytes_.size() / dtype_bytes(dtype_));
  const auto is_gap = [&](std::int64_t at) {
    return at / stride_[0] >= shape_[0] || at % stride_[0] / stride_[1] >= shape_[1] ||
           at % stride_[0] % stride_[1] >= shape_[2];
  };
  for (std::int64_t at = 0; at < count; ++at) {
    if (is_gap(at) && !std::isnan(read(at))) return false;
  }
  return true;
}

}  // namespace lca::test
