#pragma once
/// Eight bf16 as they travel through registers, for the kernels that condense. Only for nvcc.

#include <cuda_bf16.h>

#include <cstdint>

#if defined(__CUDACC__)
#include "attention/cuda/warp_ops.cuh"
#endif

namespace lca::cuda {

/// Whether a pointer may be read 16 bytes at a time.
inline bool aligned_16(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

#if defined(__CUDACC__)

/// bf16 is the upper half of a float, so unpacking is a shift or a mask.
__device__ inline void unpack_pair(std::uint32_t pair, float& low, float& high) {
  low = __uint_as_float(pair << 16);
  high = __uint_as_float(pair & 0xffff0000u);
}

__device__ inline void unpack(const uint4& raw, float (&value)[8]) {
  unpack_pair(raw.x, value[0], value[1]);
  unpack_pair(raw.y, value[2], value[3]);
  unpack_pair(raw.z, value[4], value[5]);
  unpack_pair(raw.w, value[6], value[7]);
}

__device__ inline std::uint32_t pack_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);  // .x, the lower half, is `low`
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

__device__ inline uint4 pack(const float (&value)[8]) {
  return {pack_pair(value[0], value[1]), pack_pair(value[2], value[3]),
          pack_pair(value[4], value[5]), pack_pair(value[6], value[7])};
}

/// kVec bf16 as one access: 16 bytes, or a single value where nothing is aligned.
template <int kVec>
struct Vector;

template <>
struct Vector<8> {
  uint4 raw;
  __device__ void load(const __nv_bfloat16* from) { raw = *reinterpret_cast<const uint4*>(from); }
  __device__ void store(__nv_bfloat16* to) const { *reinterpret_cast<uint4*>(to) = raw; }
  __device__ void get(float (&value)[8]) const { unpack(raw, value); }
  __device__ void set(const float (&value)[8]) { raw = pack(value); }
};

template <>
struct Vector<1> {
  __nv_bfloat16 raw;
  __device__ void load(const __nv_bfloat16* from) { raw = *from; }
  __device__ void store(__nv_bfloat16* to) const { *to = raw; }
  __device__ void get(float (&value)[1]) const { value[0] = __bfloat162float(raw); }
  __device__ void set(const float (&value)[1]) { raw = __float2bfloat16_rn(value[0]); }
};

/// kVec floats, aligned to 16 bytes where kVec is 8.
template <int kVec>
__device__ inline void load_floats(const float* from, float (&value)[kVec]) {
  if constexpr (kVec % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kVec; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + i);
      value[i] = four.x;
      value[i + 1] = four.y;
      value[i + 2] = four.z;
      value[i + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kVec; ++i) value[i] = from[i];
  }
}

#endif

}  // namespace lca::cuda
