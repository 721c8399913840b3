#pragma once
/// Instructions of every GPU since sm_80 as functions: asynchronous copies to shared memory, and
/// what a warp does as one.

#include <cuda_bf16.h>

#include <cstdint>

namespace lca::cuda::warp_ops {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes to shared memory; zeros, and nothing is read, where not valid.
__device__ __forceinline__ void copy16(__nv_bfloat16* to, const __nv_bfloat16* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void copy4(float* to, const float* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(valid ? 4 : 0)
               : "memory");
}

// threadIdx.x, read anew: what follows from it is worked out again where it is needed instead of
// being kept in registers over the whole loop.
__device__ __forceinline__ unsigned thread_again() {
  unsigned thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// Waits for all copies of this thread.
__device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Four 8×8 matrices; lane l gives the address of row l % 8 of matrix l / 8, and gets elements
// (l / 4, 2·(l % 4)) and the next in the row of each.
__device__ __forceinline__ void matrices_load(std::uint32_t (&to)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

// The same with each matrix transposed: the lane gets (2·(l % 4), l / 4) and the next in the
// column.
__device__ __forceinline__ void matrices_load_transposed(std::uint32_t (&to)[4],
                                                         std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

// c[16×8] += a[16×16]·b[16×8]. With r = lane / 4 and q = lane % 4: a0 (r, 2q), a1 (r + 8, 2q), a2
// (r, 2q + 8), a3 (r + 8, 2q + 8); b0 (2q, r), b1 (2q + 8, r); c0 c1 (r, 2q), c2 c3 (r + 8, 2q).
// Each register of a and b holds that element and the next along the inner dimension.
__device__ __forceinline__ void multiply_add(float (&c)[4], const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float power2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats as bf16, the first in the lower half.
__device__ __forceinline__ std::uint32_t pack(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// The maximum (sum) over the four lanes that hold one row of a fragment.
__device__ __forceinline__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

}  // namespace lca::cuda::warp_ops
