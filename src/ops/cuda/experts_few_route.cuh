#pragma once
/// Experts of up to eight rows (experts_few.cu): which experts the rows pass. A cluster of blocks
/// computes the logits, its first block chooses and lists the experts hit. All of it happens in
/// shared memory: nothing but shared experts can run meanwhile.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/cuda/cluster.cuh"
#include "ops/cuda/experts_kernels.h"
#include "ops/cuda/route_choice.cuh"
#include "ops/cuda/stream_ops.cuh"

namespace lca::cuda::few_rows {

struct FewParams {
  Few few;
  RouteRule rule;
  const bf16* gate_up;
  const bf16* down;
  int hidden, width, shared;
};

constexpr int kFewMostShared = 32;
constexpr int kFewCluster = 8;  // blocks that compute the logits
constexpr int kFewRouterWarps = 8;
constexpr int kFewRouterThreads = 32 * kFewRouterWarps;
constexpr int kFewStagedWidth = 3072;  // wider rows of the router are not loaded ahead

/// What the choice has in dynamic shared memory.
struct FewRouteSpace {
  float* router;   // [kFewRouterWarps][hidden], where it is loaded ahead
  bf16* x;         // [rows][hidden]
  int* index;      // [experts]: place among those hit
  float* weights;  // [experts + shared][kFewRows]
  int* count;      // of those hit
  std::size_t bytes;

  __host__ __device__ FewRouteSpace(unsigned char* memory, const RouteRule& rule, int hidden,
                                    int rows, int shared) {
    std::size_t at = 0;
    const auto take = [&](std::size_t size) {
      unsigned char* const piece = memory + at;
      at += (size + 15) / 16 * 16;
      return piece;
    };
    const auto width = static_cast<std::size_t>(hidden);
    router = reinterpret_cast<float*>(
        take(hidden <= kFewStagedWidth ? kFewRouterWarps * width * sizeof(float) : 0));
    x = reinterpret_cast<bf16*>(take(static_cast<std::size_t>(rows) * width * sizeof(bf16)));
    index = reinterpret_cast<int*>(take(static_cast<std::size_t>(rule.experts) * sizeof(int)));
    weights = reinterpret_cast<float*>(
        take(static_cast<std::size_t>(rule.experts + shared) * kFewRows * sizeof(float)));
    count = reinterpret_cast<int*>(take(sizeof(int)));
    bytes = at;
  }
};

/// A value to the same place in the first block of the cluster.
__device__ __forceinline__ void first_store(float* local, float value) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.f32 [%0], %1;\n" ::"r"(peer_address(shared_address(local), 0)),
               "f"(value)
               : "memory");
#endif
}

/// Writes which experts the rows pass: shared ones, then those that any row chose, by number, then
/// −1; and their weights. By a block; `chosen` and `weights` are [row][kMostExperts].
__device__ __forceinline__ void hits_write(const FewParams& p, const FewRouteSpace& space,
                                           const int* chosen, const float* weights) {
  const int lane = threadIdx.x & 31;
  const int experts = p.rule.experts, per_token = p.rule.per_token, rows = p.few.route.rows;
  int* const list = p.few.hits + 1;
  for (int i = threadIdx.x; i < rows * per_token; i += kFewRouterThreads) {
    space.index[chosen[i / per_token * kMostExperts + i % per_token]] = 0;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    int hits = p.shared;
    for (int first = 0; first < experts; first += 32) {
      const int e = first + lane;
      const bool hit = e < experts && space.index[e] == 0;
      const unsigned all = __ballot_sync(~0u, hit);
      if (hit) {
        const int at = hits + __popc(all & ((1u << lane) - 1));
        list[at] = e;
        space.index[e] = at;
      }
      hits += __popc(all);
    }
    __syncwarp();
    if (lane < rows) {  // one after another: an expert may be forced twice
      for (int i = 0; i < per_token; ++i) {
        const int at = lane * kMostExperts + i;
        space.weights[space.index[chosen[at]] * kFewRows + lane] += weights[at];
      }
    }
    if (lane == 0) p.few.hits[0] = *space.count = hits;
  }
  for (int s = threadIdx.x; s < p.shared; s += kFewRouterThreads) list[s] = experts + s;
  __syncthreads();
  const int count = *space.count;
  for (int i = count + static_cast<int>(threadIdx.x); i < experts + p.shared;
       i += kFewRouterThreads) {
    list[i] = -1;
  }
  for (int i = threadIdx.x; i < count * kFewRows; i += kFewRouterThreads) {
    p.few.weights[i] = space.weights[i];
  }
}

/// A cluster of blocks has the logits, its first block the choice.
static __global__ void __launch_bounds__(kFewRouterThreads, 4) few_route(FewParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ float scores[kFewRows][kMostExperts];  // logits first
  __shared__ float best[kFewRows][kMostExperts];    // weights in the end
  __shared__ int chosen[kFewRows][kMostExperts];
  const Route& route = p.few.route;
  const FewRouteSpace space(memory, p.rule, p.hidden, route.rows, p.shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int first = blockIdx.x * kFewRouterWarps + warp;
  const bool staged = p.hidden <= kFewStagedWidth;
  cluster_arrive_relaxed();
  if (staged && first < p.rule.experts) {
    const float* const from = route.router + std::int64_t{first} * p.hidden;
    float* const to = space.router + warp * p.hidden;
    for (int k = 4 * lane; k < p.hidden; k += 128) copy_chunk(shared_address(to + k), from + k);
    copy_commit();
  }
  for (int e = threadIdx.x; e < p.rule.experts; e += kFewRouterThreads) space.index[e] = -1;
  for (int i = threadIdx.x; i < (p.rule.experts + p.shared) * kFewRows; i += kFewRouterThreads) {
    space.weights[i] = i < p.shared * kFewRows ? 1.0f : 0.0f;
  }
  grid_wait();
  grid_release();  // the rows are complete
  for (int i = 8 * threadIdx.x; i < route.rows * p.hidden; i += 8 * kFewRouterThreads) {
    *reinterpret_cast<uint4*>(space.x + i) =
        load_after_wait(reinterpret_cast<const uint4*>(route.x + i));
  }
  copy_wait_all();
  __syncthreads();
  cluster_wait();  // all blocks of the cluster have begun
  for (int e = first; e < p.rule.experts; e += kFewCluster * kFewRouterWarps) {
    const float* const w = staged && e == first ? space.router + warp * p.hidden
                                                : route.router + std::int64_t{e} * p.hidden;
    const float add = route.bias == nullptr ? 0.0f : route.bias[e];
    float sum[kFewRows] = {};
#pragma unroll 4
    for (int k = 4 * lane; k < p.hidden; k += 128) {
      const float4 a = row_values(w + k, true);
#pragma unroll
      for (int row = 0; row < kFewRows; ++row) {
        if (row >= route.rows) break;
        const float4 b = row_values(space.x + row * p.hidden + k, true);
        sum[row] = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum[row]))));
      }
    }
#pragma unroll
    for (int row = 0; row < kFewRows; ++row) {
      if (row >= route.rows) break;
      const float total = warp_sum(sum[row]);
      if (lane == 0) first_store(&scores[row][e], total + add);
    }
  }
  cluster_arrive();
  if (blockIdx.x > 0) return;
  cluster_wait();
  if (warp < route.rows) {
    const int out = warp * p.rule.per_token;
    const auto choose = [&](auto slots) {
      row_choose<decltype(slots)::value>(
          p.rule, [&](int e) { return scores[warp][e]; },
          route.forced == nullptr ? nullptr : route.forced + out, scores[warp], best[warp],
          chosen[warp], best[warp]);
    };
    if (p.rule.experts <= 64) {
      choose(std::integral_constant<int, 2>());
    } else {
      choose(std::integral_constant<int, kMostExperts / 32>());
    }
  }
  __syncthreads();
  hits_write(p, space, chosen[0], best[0]);
  for (int i = threadIdx.x; i < route.rows * p.rule.per_token; i += kFewRouterThreads) {
    route.chosen[i] = chosen[i / p.rule.per_token][i % p.rule.per_token];
  }
}

}  // namespace lca::cuda::few_rows
