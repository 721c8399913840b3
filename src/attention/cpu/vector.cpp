#include "attention/cpu/vector.h"

// The order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/vector.cpp"
#include "ops/cpu/foreach_target.h"
#include "attention/cpu/simd-inl.h"
// clang-format on

#include <algorithm>
#include <cstring>

#include "core/bf16.h"

HWY_BEFORE_NAMESPACE();
namespace lca::cpu {
namespace HWY_NAMESPACE {

float VectorDot(const float* a, const void* b, DType dtype, std::int64_t count) {
  return dtype == DType::f32 ? Dot(a, static_cast<const float*>(b), count)
                             : Dot(a, static_cast<const std::uint16_t*>(b), count);
}

void VectorAddScaled(float factor, const void* x, DType dtype, std::int64_t count, float* y) {
  if (dtype == DType::f32) {
    AddScaled(factor, static_cast<const float*>(x), count, y);
  } else {
    AddScaled(factor, static_cast<const std::uint16_t*>(x), count, y);
  }
}

/// A few columns at a time, so that the sums stay in registers and each row is read once.
template <typename X>
HWY_INLINE void SumRows(float factor, const X* first, std::int64_t stride, std::int64_t rows,
                        std::int64_t count, float* to) {
  const DF d;
  const std::int64_t lanes = Lanes();
  const VF f = hn::Set(d, factor);
  std::int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    VF sum[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    for (std::int64_t r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        sum[v] = hn::Add(sum[v], LoadAs(first + r * stride + i + v * lanes));
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) hn::StoreU(hn::Mul(f, sum[v]), d, to + i + v * lanes);
  }
  std::fill(to + i, to + count, 0.0F);
  for (std::int64_t r = 0; r < rows; ++r) {
    AddScaled(factor, first + r * stride + i, count - i, to + i);
  }
}

void VectorSumRows(float factor, const void* first, DType dtype, std::int64_t stride,
                   std::int64_t rows, std::int64_t count, float* to) {
  if (dtype == DType::f32) {
    SumRows(factor, static_cast<const float*>(first), stride, rows, count, to);
  } else {
    SumRows(factor, static_cast<const std::uint16_t*>(first), stride, rows, count, to);
  }
}

void VectorWiden(const void* from, DType dtype, std::int64_t count, float* to) {
  if (dtype == DType::f32) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
  } else {
    Widen(static_cast<const std::uint16_t*>(from), count, to);
  }
}

void VectorMax(const void* x, DType dtype, std::int64_t count, float* y) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = dtype == DType::f32 ? static_cast<const float*>(x)[i]
                                            : bf16_to_f32(static_cast<const std::uint16_t*>(x)[i]);
    y[i] = std::max(y[i], value);
  }
}

void VectorStore(const float* from, std::int64_t count, DType dtype, void* to) {
  if (dtype == DType::f32) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  auto* out = static_cast<std::uint16_t*>(to);
  for (std::int64_t i = 0; i < count; ++i) out[i] = bf16_from_f32(from[i]);
}

}  // namespace HWY_NAMESPACE
}  // namespace lca::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lca::cpu {

HWY_EXPORT(VectorDot);
HWY_EXPORT(VectorAddScaled);
HWY_EXPORT(VectorSumRows);
HWY_EXPORT(VectorWiden);
HWY_EXPORT(VectorMax);
HWY_EXPORT(VectorStore);

float vector_dot(const float* a, const void* b, DType dtype, std::int64_t count) {
  return HWY_DYNAMIC_DISPATCH(VectorDot)(a, b, dtype, count);
}
void vector_add_scaled(float factor, const void* x, DType dtype, std::int64_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(VectorAddScaled)(factor, x, dtype, count, y);
}
void vector_sum_rows(float factor, const void* first, DType dtype, std::int64_t stride,
                     std::int64_t rows, std::int64_t count, float* to) {
  HWY_DYNAMIC_DISPATCH(VectorSumRows)(factor, first, dtype, stride, rows, count, to);
}
void vector_widen(const void* from, DType dtype, std::int64_t count, float* to) {
  HWY_DYNAMIC_DISPATCH(VectorWiden)(from, dtype, count, to);
}
void vector_max(const void* x, DType dtype, std::int64_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(VectorMax)(x, dtype, count, y);
}
void vector_store(const float* from, std::int64_t count, DType dtype, void* to) {
  HWY_DYNAMIC_DISPATCH(VectorStore)(from, count, dtype, to);
}

}  // namespace lca::cpu
#endif
