#pragma once
/// How a quantised value is stored (mechanism §7): fp8 and int8 by one interface, for kernels that
/// know the type when they are compiled and for those that do not.

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cfloat>
#include <cstdint>

#include "attention/cuda/views.h"

namespace lca::cuda {

struct Fp8 {
  using Stored = std::uint8_t;
  static constexpr float kLargest = 448.0f;
  __device__ static Stored encode(float value) {
    return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
  }
  __device__ static float decode(Stored stored) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(stored, __NV_E4M3)));
  }
};

struct Int8 {
  using Stored = std::uint8_t;
  static constexpr float kLargest = 127.0f;
  __device__ static Stored encode(float value) {
    const int rounded = __float2int_rn(fminf(fmaxf(value, -kLargest), kLargest));
    return static_cast<Stored>(static_cast<std::int8_t>(rounded));
  }
  __device__ static float decode(Stored stored) {
    return static_cast<float>(static_cast<std::int8_t>(stored));
  }
};

/// A magnitude as bits that are ordered like it, NaN above all others. The largest of a piece is
/// taken over these: a piece that holds a NaN has the scale NaN and reads as NaN, whatever its type
/// can store (int8 has no NaN of its own).
__device__ inline unsigned magnitude_bits(float value) { return __float_as_uint(fabsf(value)); }

/// What values with this largest magnitude are multiplied with before they are stored; finite even
/// where the scale is tiny: 0 times infinity is not a number.
__device__ inline float quantising_factor(float most, float largest) {
  return largest > 0 ? fminf(most / largest, FLT_MAX) : 0.0f;
}

__device__ inline float quantised_largest(GroupType type) {
  return type == GroupType::int8 ? Int8::kLargest : Fp8::kLargest;
}

__device__ inline float quantised_value(GroupType type, std::uint8_t bits) {
  if (type == GroupType::int8) return Int8::decode(bits);
  return Fp8::decode(bits);
}

__device__ inline std::uint8_t quantise(GroupType type, float value, float factor) {
  const float x = value * factor;
  if (type == GroupType::int8) return Int8::encode(x);
  return Fp8::encode(x);
}

}  // namespace lca::cuda
