#pragma once
/// From the results of a job's blocks to its output: first among the blocks of a cluster, through
/// each other's shared memory, then over the clusters, by those that come last.

#include "attention/cuda/decode_tiles.cuh"

namespace lca::cuda::decoding {

// --- clusters ----------------------------------------------------------------------------------

__device__ inline void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;\n" ::: "memory");
#endif
}
/// The same where nothing was written but barriers that a fence has announced.
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

/// A grid's launch in clusters of `cluster` blocks; `attributes` must live as long as it.
inline cudaLaunchConfig_t cluster_config(dim3 grid, int threads, std::size_t bytes, int cluster,
                                         cudaStream_t stream,
                                         cudaLaunchAttribute (&attributes)[2]) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = attributes;
  if (cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
  }
  overlap_allow(config);
  return config;
}

/// Blocks of a cluster, jobs of all sessions, clusters of a job.
inline dim3 step_grid(const Args& args) {
  return dim3(static_cast<unsigned>(args.cluster),
              static_cast<unsigned>(args.step.batch * args.jobs),
              static_cast<unsigned>(args.blocks / args.cluster));
}

// --- the reduction -----------------------------------------------------------------------------

/// Which query heads a job has.
struct Heads {
  int first;
  int count;
  int job;  ///< over all sessions
};

template <typename R>
__device__ void result_store(const Args& args, int session, const Heads& heads, int row, int column,
                             const Partial& all) {
  const std::int64_t head = static_cast<std::int64_t>(session) * args.heads + heads.first + row;
  const float factor = 1.f / all.sum;
  uint2 packed;
  packed.x = pack_bf16(all.value.x * factor, all.value.y * factor);
  packed.y = pack_bf16(all.value.z * factor, all.value.w * factor);
  *reinterpret_cast<uint2*>(args.step.out + head * R::kValue + column) = packed;
  if (column == 0 && args.step.lse != nullptr) {
    args.step.lse[head] = (all.top + log2f(all.sum)) * kLn2;
  }
}

/// From the blocks' results in shared memory to the output.
template <typename R>
__device__ void results_reduce(const Args& args, const Place& at, int session, const Heads& heads,
                               const float* results, int result_stride, const float2* stats,
                               int* flag) {
  const int tid = static_cast<int>(threadIdx.x);
  const int cluster = args.cluster;
  const int rank = static_cast<int>(blockIdx.x);
  const int block = static_cast<int>(blockIdx.z);  // of clusters
  const int active = active_blocks(args, at);
  const int partials = (active + cluster - 1) / cluster;
  const int width = R::kValue / cluster;  // columns of this block
  const int quads = width / 4;
  const int peers = min(cluster, active - block * cluster);
  const int partial_floats = R::kRows * (width + 2);
  float* mine = args.partials +
                (static_cast<std::int64_t>(heads.job) * (args.blocks / cluster) * cluster + rank) *
                    partial_floats;
  const std::int64_t step = static_cast<std::int64_t>(cluster) * partial_floats;

  for (int i = tid; i < heads.count * quads; i += R::kThreads) {
    const int row = i / quads;
    const int column = i % quads * 4;
    const Partial all = partials_merge(peers, [&](int peer) -> Partial {
      const float2 stat = peer_load2(stats + row, peer, cluster);
      return {stat.x, stat.y,
              peer_load4(results + row * result_stride + rank * width + column, peer, cluster)};
    });
    if (partials == 1) {
      result_store<R>(args, session, heads, row, rank * width + column, all);
      continue;
    }
    float* to = mine + block * step;
    __stcg(reinterpret_cast<float4*>(to + row * width + column), all.value);
    if (column == 0) {
      __stcg(reinterpret_cast<float2*>(to + R::kRows * width + 2 * row),
             make_float2(all.top, all.sum));
    }
  }
  if (cluster > 1) cluster_arrive();  // this block reads no other's memory from here on
  if (partials > 1) {
    __syncthreads();
    if (tid == 0) {
      int* count = args.job_counts + static_cast<std::int64_t>(heads.job) * cluster + rank;
      const bool last = arrival_count(count) == partials - 1;
      if (last) *count = 0;
      *flag = last ? 1 : 0;
    }
    __syncthreads();
    if (*flag != 0) {
      for (int i = tid; i < heads.count * quads; i += R::kThreads) {
        const int row = i / quads;
        const int column = i % quads * 4;
        const Partial all = partials_merge(partials, [&](int k) -> Partial {
          const float* from = mine + k * step;
          const float2 stat =
              __ldcg(reinterpret_cast<const float2*>(from + R::kRows * width + 2 * row));
          return {stat.x, stat.y,
                  __ldcg(reinterpret_cast<const float4*>(from + row * width + column))};
        });
        result_store<R>(args, session, heads, row, rank * width + column, all);
      }
    }
  }
  if (cluster > 1) cluster_wait();  // others may still have read this block's memory
}

}  // namespace lca::cuda::decoding
