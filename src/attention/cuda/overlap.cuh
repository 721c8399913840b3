#pragma once
/// Launches that overlap (Hopper): blocks of a kernel may be there before the kernel ahead of it in
/// the stream has ended, so that its launch costs nothing. Such a kernel calls grid_wait before it
/// touches memory that others write; without Hopper, or in a plain launch, all of this is nothing.

#include "core/cuda/device.h"

namespace lca::cuda {

/// Waits for the kernels ahead, and for what they wrote.
__device__ inline void grid_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

/// Lets this launch overlap with what is ahead of it. `config.attrs` has room for one more.
inline void overlap_allow(cudaLaunchConfig_t& config) {
  if (device().major < 9) return;
  cudaLaunchAttribute& attribute = config.attrs[config.numAttrs++];
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
}

}  // namespace lca::cuda
