/// Experts of up to eight rows: weights go through registers once.
///
/// Shapes     x [rows ≤ 8][hidden]; DeepSeek-V2-Lite: hidden 2048, width 1408, 6 + 2 experts a row.
/// Moving     a cluster computes the logits, its first block chooses and lists the experts hit.
///            First product: a block has 16 stored rows of gate and up (eight of each) of one
///            expert at a time, and divides their inner dimension among its warps. Second product:
///            a block has 16 channels of the residual and runs over the experts hit as one long
///            inner dimension; the sum goes straight to the residual. Lanes load weights as they
///            lie in memory and hand them to the tensor cores without shared memory. All rows pass
///            all experts; a weight of 0 removes those that did not choose one.
/// Overlap    the first product begins with the shared experts while the others are being chosen;
///            the second has its first weights before the first ends.
/// Bounds     one row: 138 MB of weights, 32 µs at 4.27 TB/s.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/cuda/cluster.cuh"
#include "ops/cuda/experts_kernels.h"
#include "ops/cuda/route_choice.cuh"
#include "ops/cuda/stream_ops.cuh"

namespace lca::cuda {
namespace {

constexpr int kFewWarps = 16;
constexpr int kFewThreads = 32 * kFewWarps;
constexpr int kFewBatch = 4;     // steps of 32 values whose loads are issued together
constexpr int kFewPadding = 32;  // values behind a row of x: no bank conflicts

struct FewParams {
  Few few;
  RouteRule rule;
  const bf16* gate_up;
  const bf16* down;
  int hidden, width, shared;
};

// --- choice ------------------------------------------------------------------------------------

constexpr int kFewCluster = 8;  // blocks that compute the logits
constexpr int kFewRouterWarps = 8;

/// Writes which experts the rows pass: shared ones, then those that any row chose, by number; and
/// their weights. By one warp of 32.
__device__ __forceinline__ void hits_write(const FewParams& p, int* index) {
  const int lane = threadIdx.x & 31;
  const int experts = p.rule.experts, per_token = p.rule.per_token;
  const Route& route = p.few.route;
  int* const list = p.few.hits + 1;
  for (int s = lane; s < p.shared; s += 32) list[s] = experts + s;
  for (int i = lane; i < p.shared * kFewRows; i += 32) p.few.weights[i] = 1;
  for (int e = lane; e < experts; e += 32) index[e] = -1;
  __syncwarp();
  for (int i = lane; i < route.rows * per_token; i += 32) {
    index[load_after_wait(route.chosen + i)] = 0;
  }
  __syncwarp();
  int count = p.shared;
  for (int first = 0; first < experts; first += 32) {
    const int e = first + lane;
    const bool hit = e < experts && index[e] == 0;
    const unsigned all = __ballot_sync(~0u, hit);
    if (hit) {
      const int at = count + __popc(all & ((1u << lane) - 1));
      list[at] = e;
      index[e] = at;
    }
    count += __popc(all);
  }
  if (lane == 0) p.few.hits[0] = count;
  for (int i = p.shared * kFewRows + lane; i < count * kFewRows; i += 32) p.few.weights[i] = 0;
  __syncwarp();
  if (lane < route.rows) {
    for (int i = 0; i < per_token; ++i) {
      const int at = lane * per_token + i;
      p.few.weights[index[load_after_wait(route.chosen + at)] * kFewRows + lane] +=
          load_after_wait(route.weights + at);
    }
  }
}

/// A cluster of blocks has the logits, its first block the choice.
__global__ void __launch_bounds__(32 * kFewRouterWarps) few_route(FewParams p) {
  __shared__ float scores[kFewRows][kMostExperts];
  __shared__ float best[kFewRows][kMostExperts];
  const Route& route = p.few.route;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  grid_wait();
  grid_release();  // the rows are complete
  for (int e = blockIdx.x * kFewRouterWarps + warp; e < p.rule.experts;
       e += kFewCluster * kFewRouterWarps) {
    const float* const w = route.router + std::int64_t{e} * p.hidden;
    float sum[kFewRows] = {};
#pragma unroll 4
    for (int k = 4 * lane; k < p.hidden; k += 128) {
      const float4 a = row_values(w + k, true);
#pragma unroll
      for (int row = 0; row < kFewRows; ++row) {
        if (row >= route.rows) break;
        const float4 b = row_values(route.x + std::int64_t{row} * p.hidden + k, true);
        sum[row] = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum[row]))));
      }
    }
    const float add = route.bias == nullptr ? 0.0f : route.bias[e];
#pragma unroll
    for (int row = 0; row < kFewRows; ++row) {
      if (row >= route.rows) break;
      const float total = warp_sum(sum[row]);
      if (lane == 0) route.logits[row * p.rule.experts + e] = total + add;
    }
  }
  cluster_arrive();
  cluster_wait();
  if (blockIdx.x > 0) return;
  if (warp < route.rows) {
    const int out = warp * p.rule.per_token;
    const auto choose = [&](auto slots) {
      row_choose<decltype(slots)::value>(p.rule, route.logits + warp * p.rule.experts,
                                         route.forced == nullptr ? nullptr : route.forced + out,
                                         scores[warp], best[warp], route.chosen + out,
                                         route.weights + out);
    };
    if (p.rule.experts <= 64) {
      choose(std::integral_constant<int, 2>());
    } else {
      choose(std::integral_constant<int, kMostExperts / 32>());
    }
  }
  __syncthreads();
  if (warp == 0) hits_write(p, reinterpret_cast<int*>(scores));
}

// --- products ----------------------------------------------------------------------------------

/// The steps of the second product that a warp of it works on.
struct FewRange {
  int begin, end;
};
__device__ __forceinline__ FewRange few_range(int steps, int warp) {
  return {static_cast<int>(std::int64_t{steps} * warp / kFewWarps),
          static_cast<int>(std::int64_t{steps} * (warp + 1) / kFewWarps)};
}

__global__ void __launch_bounds__(kFewThreads, 1) few_gate_up(FewParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  bf16* const x = reinterpret_cast<bf16*>(memory);
  const int x_stride = p.hidden + kFewPadding;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int r = lane / 4, q = lane % 4;
  // The rows were complete before the kernel ahead let this one start.
  for (int i = threadIdx.x; i < kFewRows * p.hidden / 8; i += kFewThreads) {
    const int row = i / (p.hidden / 8), column = i % (p.hidden / 8) * 8;
    *reinterpret_cast<uint4*>(x + row * x_stride + column) =
        row < p.few.route.rows ? load_after_wait(reinterpret_cast<const uint4*>(
                                     p.few.route.x + std::int64_t{row} * p.hidden + column))
                               : uint4{};
  }
  __syncthreads();
  bool waited = false;             // for the choice, which shared experts do not need
  const int blocks = p.width / 8;  // of 16 stored rows, of one expert
  const int steps = p.hidden / 32;
  const bf16* const x_lane = x + r * x_stride + 8 * q;
  for (int unit = warp * gridDim.x + blockIdx.x;; unit += gridDim.x * kFewWarps) {
    const int hit = unit / blocks, block = unit % blocks;
    int expert = p.rule.experts + hit;
    if (hit >= p.shared) {
      if (!waited) {
        grid_wait();
        grid_release();  // the choice is complete
        waited = true;
      }
      if (hit >= load_after_wait(p.few.hits)) break;
      expert = load_after_wait(p.few.hits + 1 + hit);
    }
    const bf16* const low =
        p.gate_up + ((std::int64_t{expert} * blocks + block) * 16 + r) * p.hidden + 8 * q;
    const bf16* const high = low + 8 * std::int64_t{p.hidden};
    float sum[4] = {};
    uint4 next[kFewBatch][2];
    const auto fetch = [&](int step) {
#pragma unroll
      for (int i = 0; i < kFewBatch; ++i) {
        if (step + i >= steps) break;
        next[i][0] = weights_load(low + (step + i) * 32);
        next[i][1] = weights_load(high + (step + i) * 32);
      }
    };
    fetch(0);
    for (int step = 0; step < steps; step += kFewBatch) {
      uint4 now[kFewBatch][2];
#pragma unroll
      for (int i = 0; i < kFewBatch; ++i) {
        now[i][0] = next[i][0];
        now[i][1] = next[i][1];
      }
      fetch(step + kFewBatch);
#pragma unroll
      for (int i = 0; i < kFewBatch; ++i) {
        if (step + i >= steps) break;
        multiply_wide(sum, now[i][0], now[i][1],
                      *reinterpret_cast<const uint4*>(x_lane + (step + i) * 32));
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // sum[i] is a gate, sum[i + 2] its up
      const int row = 2 * q + i;
      const float weight =
          hit < p.shared ? 1.0f : load_after_wait(p.few.weights + hit * kFewRows + row);
      const float value = weight == 0.0f ? 0.0f : weight * silu(sum[i]) * sum[i + 2];
      if (row < p.few.route.rows) {
        p.few.act[(std::int64_t{hit} * kFewRows + row) * p.width + block * 8 + r] =
            __float2bfloat16(value);
      }
    }
  }
}

__global__ void __launch_bounds__(kFewThreads, 1) few_down(FewParams p) {
  __shared__ float sums[kFewWarps][16 * kFewRows];
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int r = lane / 4, q = lane % 4;
  // The choice was complete before the kernel ahead let this one start.
  const int hits = load_after_wait(p.few.hits);
  const int steps_each = p.width / 32;
  const int steps = hits * steps_each;
  const auto [begin, end] = few_range(steps, warp);
  const std::int64_t expert_size = std::int64_t{p.hidden} * p.width;
  const bf16* const down =
      p.down + (std::int64_t{blockIdx.x} * 16 + r) * p.width + 8 * q;  // of expert 0
  const bf16* const act = p.few.act + std::int64_t{r} * p.width + 8 * q;
  const bool row_real = r < p.few.route.rows;

  uint4 next[kFewBatch][2];
  const auto fetch = [&](int step) {
#pragma unroll
    for (int i = 0; i < kFewBatch; ++i) {
      if (step + i >= end) break;
      const int hit = (step + i) / steps_each, inside = (step + i) % steps_each;
      const bf16* const low =
          down + load_after_wait(p.few.hits + 1 + hit) * expert_size + inside * 32;
      next[i][0] = weights_load(low);
      next[i][1] = weights_load(low + 8 * std::int64_t{p.width});
    }
  };
  fetch(begin);
  grid_wait();
  grid_release();
  float sum[4] = {};
  for (int step = begin; step < end; step += kFewBatch) {
    uint4 now[kFewBatch][2], x[kFewBatch];
#pragma unroll
    for (int i = 0; i < kFewBatch; ++i) {
      now[i][0] = next[i][0];
      now[i][1] = next[i][1];
      x[i] = uint4{};
      if (step + i >= end || !row_real) continue;
      const int hit = (step + i) / steps_each, inside = (step + i) % steps_each;
      x[i] = load_after_wait(reinterpret_cast<const uint4*>(
          act + std::int64_t{hit} * kFewRows * p.width + inside * 32));
    }
    fetch(step + kFewBatch);
#pragma unroll
    for (int i = 0; i < kFewBatch; ++i) {
      if (step + i >= end) break;
      multiply_wide(sum, now[i][0], now[i][1], x[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // [row][weight row]
    sums[warp][(2 * q + i % 2) * 16 + r + i / 2 * 8] = sum[i];
  }
  __syncthreads();
  const int row = threadIdx.x / 16;
  if (row < p.few.route.rows) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < kFewWarps; ++w) total += sums[w][threadIdx.x];
    p.few.residual[std::int64_t{row} * p.hidden + blockIdx.x * 16 + threadIdx.x % 16] += total;
  }
}

std::size_t few_shared_bytes(const ExpertsShape& shape) {
  return std::size_t{kFewRows} * static_cast<std::size_t>(shape.hidden + kFewPadding) * 2;
}

}  // namespace

bool few_fits(const ExpertsShape& shape) {
  return shape.hidden % 32 == 0 && shape.width % 32 == 0 && few_shared_bytes(shape) <= 160 * 1024;
}

void few_run(const ExpertsShape& shape, const ExpertsWeights& weights, const Few& few,
             const Queue& queue) {
  const FewParams params{few,          shape.route, weights.gate_up, weights.down,
                         shape.hidden, shape.width, shape.shared};
  cudaLaunchAttribute route_attributes[2];
  const cudaLaunchConfig_t route_config = cluster_config(dim3(kFewCluster), 32 * kFewRouterWarps, 0,
                                                         kFewCluster, queue, route_attributes);
  check(cudaLaunchKernelEx(&route_config, few_route, params), "choosing the experts of few rows");
  const std::size_t bytes = few_shared_bytes(shape);
  queue.device->shared_allow(reinterpret_cast<const void*>(few_gate_up), bytes);
  const int hits =
      std::min(few.route.rows * shape.route.per_token, shape.route.experts) + shape.shared;
  const int units = static_cast<int>(launch_pieces(hits * (shape.width / 8), kFewWarps));
  const int blocks = std::min(units, queue.device->multiprocessors);
  launch_overlapping(few_gate_up, dim3(static_cast<unsigned>(blocks)), kFewThreads, bytes, queue,
                     params);
  launch_overlapping(few_down, dim3(static_cast<unsigned>(shape.hidden / 16)), kFewThreads, 0,
                     queue, params);
}

}  // namespace lca::cuda
