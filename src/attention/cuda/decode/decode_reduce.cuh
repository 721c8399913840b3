#pragma once
/// From the results of a job's blocks to its output: first among the blocks of a cluster, through
/// each other's shared memory, then over the clusters, by those that come last.

#include "attention/cuda/decode/decode_tiles.cuh"
#include "core/cuda/cluster.cuh"

namespace lca::cuda::decoding {

/// Blocks of a cluster, jobs of all sessions, clusters of a job.
inline dim3 step_grid(const Args& args) {
  return dim3(static_cast<unsigned>(args.cluster),
              static_cast<unsigned>(args.step.batch * args.jobs),
              static_cast<unsigned>(args.blocks / args.cluster));
}

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
