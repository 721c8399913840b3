#include "attention/cpu/vector.h"

// The order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/vector.cpp"
#include "ops/cpu/foreach_target.h"
#include "attention/cpu/simd-inl.h"
// clang-format on

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

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

// The loops below are plain: the compiler vectorises them.

float VectorQuantise(const float* HWY_RESTRICT from, std::int64_t count,
                     std::int8_t* HWY_RESTRICT to) {
  constexpr float kMost = 127;
  constexpr std::uint32_t kLeast = 0x0da24260;     // 1e-30
  constexpr std::uint32_t kInfinity = 0x7f800000;  // NaNs are above
  // Compared as whole numbers, magnitudes are in order and a NaN is the largest.
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(from[i]) & 0x7fffffffU);
  }
  if (largest < kLeast || largest >= kInfinity) {
    std::fill_n(to, count, std::int8_t{0});
    return largest < kLeast ? 0.0F : std::numeric_limits<float>::quiet_NaN();
  }
  // Rounded to 17 bits.
  const auto bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(largest) / kMost);
  const auto scale = std::bit_cast<float>((bits + 0x40U) & ~0x7fU);
  const float inverse = 1.0F / scale;
  // The product is rounded before it is rounded to a whole number: alike on every processor.
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = static_cast<std::int8_t>(static_cast<std::int32_t>(std::rint(from[i] * inverse)));
  }
  return scale;
}

void VectorDequantise(const std::int8_t* HWY_RESTRICT from, float scale, std::int64_t count,
                      DType dtype, void* to) {
  if (dtype == DType::f32) {
    float* HWY_RESTRICT out = static_cast<float*>(to);
    for (std::int64_t i = 0; i < count; ++i) out[i] = scale * static_cast<float>(from[i]);
    return;
  }
  auto* HWY_RESTRICT out = static_cast<std::uint16_t*>(to);
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = bf16_from_f32(scale * static_cast<float>(from[i]));
  }
}

void VectorAngles(const RowRotation& rotation, std::int64_t difference, float* angles) {
  constexpr float kRadians = 0x1.921fb6p-30F;  // 2π / 2³²
  const std::uint64_t* HWY_RESTRICT steps = rotation.steps;
  float* HWY_RESTRICT cosines = angles;
  float* HWY_RESTRICT sines = angles + rotation.pairs;
  for (std::int64_t i = 0; i < rotation.pairs; ++i) {
    // A turn is 2³²; the nearest quarter of it decides signs, the rest is at most π/4.
    const auto phase =
        static_cast<std::uint32_t>((steps[i] * static_cast<std::uint64_t>(difference)) >> 32);
    const std::uint32_t quarter = (phase + (1U << 29)) >> 30;
    const float x =
        static_cast<float>(static_cast<std::int32_t>(phase - (quarter << 30))) * kRadians;
    const float xx = x * x;
    // Taylor's polynomials: the first terms left out are below 2e-9.
    const float sine =
        x + x * xx * (-1.0F / 6 + xx * (1.0F / 120 + xx * (-1.0F / 5040 + xx * (1.0F / 362880))));
    const float cosine =
        1 + xx * (-0.5F + xx * (1.0F / 24 +
                                xx * (-1.0F / 720 + xx * (1.0F / 40320 - xx * (1.0F / 3628800)))));
    const bool swapped = (quarter & 1U) != 0;
    const float c = swapped ? sine : cosine;
    const float s = swapped ? cosine : sine;
    cosines[i] = ((quarter + 1) & 2U) != 0 ? -c : c;
    sines[i] = (quarter & 2U) != 0 ? -s : s;
  }
}

inline float AsFloat(float value) { return value; }
inline float AsFloat(std::uint16_t value) { return bf16_to_f32(value); }

template <typename T>
void RotateOf(const RowRotation& rotation, const float* HWY_RESTRICT angles, float factor,
              const T* HWY_RESTRICT from, std::int64_t count, float* HWY_RESTRICT to) {
  const std::int64_t pairs = rotation.pairs;
  const float* HWY_RESTRICT cosines = angles;
  const float* HWY_RESTRICT sines = angles + pairs;
  if (rotation.layout == RopeLayout::halves) {
    const T* HWY_RESTRICT second = from + pairs;
    float* HWY_RESTRICT to_second = to + pairs;
    for (std::int64_t i = 0; i < pairs; ++i) {
      const float x = factor * AsFloat(from[i]);
      const float y = factor * AsFloat(second[i]);
      to[i] = x * cosines[i] - y * sines[i];
      to_second[i] = y * cosines[i] + x * sines[i];
    }
  } else {
    for (std::int64_t i = 0; i < pairs; ++i) {
      const float x = factor * AsFloat(from[2 * i]);
      const float y = factor * AsFloat(from[2 * i + 1]);
      to[2 * i] = x * cosines[i] - y * sines[i];
      to[2 * i + 1] = y * cosines[i] + x * sines[i];
    }
  }
  for (std::int64_t i = 2 * pairs; i < count; ++i) to[i] = factor * AsFloat(from[i]);
}

void VectorRotate(const RowRotation& rotation, const float* angles, float factor, const void* from,
                  DType dtype, std::int64_t count, float* to) {
  if (dtype == DType::f32) {
    RotateOf(rotation, angles, factor, static_cast<const float*>(from), count, to);
  } else {
    RotateOf(rotation, angles, factor, static_cast<const std::uint16_t*>(from), count, to);
  }
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
HWY_EXPORT(VectorQuantise);
HWY_EXPORT(VectorDequantise);
HWY_EXPORT(VectorAngles);
HWY_EXPORT(VectorRotate);

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
float vector_quantise(const float* from, std::int64_t count, std::int8_t* to) {
  return HWY_DYNAMIC_DISPATCH(VectorQuantise)(from, count, to);
}
void vector_dequantise(const std::int8_t* from, float scale, std::int64_t count, DType dtype,
                       void* to) {
  HWY_DYNAMIC_DISPATCH(VectorDequantise)(from, scale, count, dtype, to);
}
void vector_angles(const RowRotation& rotation, std::int64_t difference, float* angles) {
  HWY_DYNAMIC_DISPATCH(VectorAngles)(rotation, difference, angles);
}
void vector_rotate(const RowRotation& rotation, const float* angles, float factor, const void* from,
                   DType dtype, std::int64_t count, float* to) {
  HWY_DYNAMIC_DISPATCH(VectorRotate)(rotation, angles, factor, from, dtype, count, to);
}

}  // namespace lca::cpu
#endif
