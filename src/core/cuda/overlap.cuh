#pragma once
/// Launches that overlap (Hopper, programmatic dependent launch): blocks of a kernel may start
/// before the kernel ahead of it in the stream has ended, which hides its launch. Such a kernel
/// calls grid_wait before it touches memory that others write, and reads that memory with
/// load_after_wait. Before Hopper, or in a plain launch, grid_wait does nothing.

#include "core/cuda/device.h"

namespace lca::cuda {

/// Waits for the kernels ahead, and for what they wrote.
__device__ inline void grid_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

/// Loads that stay behind grid_wait: __ldg promises memory that never changes, and the compiler may
/// move such a load above the wait.
__device__ __forceinline__ uint4 load_after_wait(const uint4* from) {
  uint4 value;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from)
               : "memory");
  return value;
}
__device__ __forceinline__ unsigned short load_after_wait(const unsigned short* from) {
  unsigned short value;
  asm volatile("ld.global.u16 %0, [%1];\n" : "=h"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ int load_after_wait(const int* from) {
  int value;
  asm volatile("ld.global.s32 %0, [%1];\n" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ float load_after_wait(const float* from) {
  float value;
  asm volatile("ld.global.f32 %0, [%1];\n" : "=f"(value) : "l"(from) : "memory");
  return value;
}

/// Lets this launch overlap with what is ahead of it. `config.attrs` must have space for one more.
inline void overlap_allow(const Device& device, cudaLaunchConfig_t& config) {
  if (device.major < 9) return;
  cudaLaunchAttribute& attribute = config.attrs[config.numAttrs++];
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
}

}  // namespace lca::cuda
