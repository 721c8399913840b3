#pragma once
/// Clusters of blocks (Hopper): their barrier, each other's shared memory, and launches of them.
/// Before Hopper a block is its own cluster, and all of this is nothing.

#include <cstdint>

#include "core/cuda/overlap.cuh"
#include "core/cuda/warp_ops.cuh"

namespace lca::cuda {

__device__ inline void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;\n" ::: "memory");
#endif
}
/// The same where nothing was written but barriers whose initialisation a fence has published.
__device__ inline void cluster_arrive_relaxed() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed;\n" ::: "memory");
#endif
}
__device__ inline void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;\n" ::: "memory");
#endif
}

/// The address of the same variable in block `rank` of the cluster.
__device__ inline std::uint32_t peer_address(std::uint32_t local, int rank) {
  std::uint32_t address = local;
#if __CUDA_ARCH__ >= 900
  asm("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(address) : "r"(local), "r"(rank));
#endif
  return address;
}

/// Floats at the same place in the shared memory of block `rank` of the cluster.
__device__ inline float4 peer_load4(const float* local, int rank, int cluster) {
#if __CUDA_ARCH__ >= 900
  if (cluster > 1) {
    float4 value;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(peer_address(shared_address(local), rank))
                 : "memory");
    return value;
  }
#endif
  return *reinterpret_cast<const float4*>(local);
}
__device__ inline float2 peer_load2(const float2* local, int rank, int cluster) {
#if __CUDA_ARCH__ >= 900
  if (cluster > 1) {
    float2 value;
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];\n"
                 : "=f"(value.x), "=f"(value.y)
                 : "r"(peer_address(shared_address(local), rank))
                 : "memory");
    return value;
  }
#endif
  return *local;
}

/// Two floats to shared address `to` of a block of the cluster, whose barrier counts the bytes.
__device__ inline void peer_send(std::uint32_t to, std::uint32_t barrier, float x, float y) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, "
      "[%3];\n" ::"r"(to),
      "f"(x), "f"(y), "r"(barrier)
      : "memory");
#endif
}

/// Waits for the first phase of a barrier that blocks of the cluster count into.
__device__ inline void peer_wait(std::uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier)
      : "memory");
#endif
}

/// A grid's launch in clusters of `cluster` blocks that may overlap with the kernel ahead;
/// `attributes` must live as long as the result.
inline cudaLaunchConfig_t cluster_config(dim3 grid, int threads, std::size_t bytes, int cluster,
                                         const Queue& queue, cudaLaunchAttribute (&attributes)[2]) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = bytes;
  config.stream = queue.stream;
  config.attrs = attributes;
  if (cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
  }
  overlap_allow(*queue.device, config);
  return config;
}

}  // namespace lca::cuda
