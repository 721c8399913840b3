#pragma once
/// Eight bf16 as they travel through registers, for the kernels that condense. Only for nvcc.

#include <cuda_bf16.h>

#include <cstdint>

#if defined(__CUDACC__)
#include "core/cuda/warp_ops.cuh"
#endif

namespace lca::cuda {

/// Whether a pointer may be read 16 bytes at a time.
inline bool aligned_16(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

#if defined(__CUDACC__)

__device__ inline void unpack(const uint4& raw, float (&value)[8]) {
  const std::uint32_t pairs[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack_bf16(pairs[i]);
    value[2 * i] = pair.x;
    value[2 * i + 1] = pair.y;
  }
}

__device__ inline uint4 pack(const float (&value)[8]) {
  return {pack_bf16(value[0], value[1]), pack_bf16(value[2], value[3]),
          pack_bf16(value[4], value[5]), pack_bf16(value[6], value[7])};
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
