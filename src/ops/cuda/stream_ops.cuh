#pragma once
/// Pieces of kernels that read weights once: loads that pass the caches by, products of 16 weight
/// rows with eight rows straight from those loads, and the launch of the kernel behind.

#include <cstdint>

#include "core/cuda/overlap.cuh"
#include "core/cuda/warp_ops.cuh"

namespace lca::cuda {

/// 16 bytes of weights: read once, never written while kernels run.
__device__ __forceinline__ uint4 weights_load(const void* from) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

/// c[16×8] += w[16×32]·x[8×32]ᵀ. With r = lane / 4 and q = lane % 4, a lane holds values 8q … 8q +
/// 7 of weight rows r (`low`) and r + 8 (`high`) and of row r of x: as they lie in memory. The
/// inner dimension is permuted alike on both sides, which a sum does not show.
__device__ __forceinline__ void multiply_wide(float (&c)[4], const uint4& low, const uint4& high,
                                              const uint4& x) {
  const std::uint32_t first[4] = {low.x, high.x, low.y, high.y};
  multiply(c, first, x.x, x.y);
  const std::uint32_t second[4] = {low.z, high.z, low.w, high.w};
  multiply(c, second, x.z, x.w);
}

/// x / (1 + e^−x)
__device__ __forceinline__ float silu(float x) {
  return __fdividef(x, 1.0f + exp2_fast(-1.4426950408889634f * x));
}

/// Lets the kernel behind start as soon as blocks of this one make room. What that kernel reads
/// before its grid_wait must have been complete before this call.
__device__ __forceinline__ void grid_release() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

/// A launch that may overlap with the kernel ahead.
template <typename... Parameters, typename... Arguments>
void launch_overlapping(void (*kernel)(Parameters...), dim3 grid, int threads, std::size_t bytes,
                        const Queue& queue, Arguments... arguments) {
  cudaLaunchAttribute attributes[1];
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = bytes;
  config.stream = queue.stream;
  config.attrs = attributes;
  overlap_allow(*queue.device, config);
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...),
        "launching a kernel");
}

/// Blocks for `count` things, `size` each.
inline unsigned launch_pieces(std::int64_t count, std::int64_t size) {
  return static_cast<unsigned>((count + size - 1) / size);
}

}  // namespace lca::cuda
