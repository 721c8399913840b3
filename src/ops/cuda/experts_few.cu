/// Experts of up to eight rows: weights go through registers once.
///
/// Shapes     x [rows ≤ 8][hidden]; DeepSeek-V2-Lite: hidden 2048, width 1408, 6 + 2 experts a row.
/// Moving     first kernel: a warp has 16 stored rows of gate and up (eight of each) of an expert
///            that was hit and all of their inner dimension. Second kernel: a block has 16 rows of
///            the residual and runs over the experts hit as one long inner dimension, divided among
///            its warps; the sum goes straight to the residual. Lanes load weights as they lie in
///            memory and hand them to the tensor cores without shared memory. All rows pass all
///            experts; a weight of 0 removes those that did not choose one.
/// Overlap    the second kernel has its first weights before the first kernel ends.
/// Bounds     one row: 138 MB of weights, 32 µs at 4.27 TB/s.

#include <algorithm>
#include <cstdint>

#include "core/cuda/overlap.cuh"
#include "ops/cuda/experts_kernels.h"
#include "ops/cuda/stream_ops.cuh"

namespace lca::cuda {
namespace {

constexpr int kFewWarps = 16;
constexpr int kFewThreads = 32 * kFewWarps;
constexpr int kFewBatch = 4;     // steps of 32 values whose loads are issued together
constexpr int kFewPadding = 32;  // values behind a row of x: no bank conflicts
constexpr int kMostShared = 64;  // shared experts

struct FewParams {
  Few few;
  const bf16* gate_up;
  const bf16* down;
  int hidden, width, experts, per_token, shared;
};

/// Experts that any row chose, by number, shared ones last.
struct FewHits {
  int count;
  int list[kMostExperts + kMostShared];
  int index[kMostExperts];  // in `list`; −1: not hit
};

__device__ __forceinline__ void hits_find(const FewParams& p, FewHits& hits) {
  for (int e = threadIdx.x; e < p.experts; e += kFewThreads) hits.index[e] = -1;
  __syncthreads();
  for (int i = threadIdx.x; i < p.few.rows * p.per_token; i += kFewThreads) {
    hits.index[load_after_wait(p.few.chosen + i)] = 0;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    int count = 0;
    for (int first = 0; first < p.experts; first += 32) {
      const int e = first + threadIdx.x;
      const bool hit = e < p.experts && hits.index[e] == 0;
      const unsigned all = __ballot_sync(~0u, hit);
      if (hit) {
        const int at = count + __popc(all & ((1u << threadIdx.x) - 1));
        hits.list[at] = e;
        hits.index[e] = at;
      }
      count += __popc(all);
    }
    for (int s = threadIdx.x; s < p.shared; s += 32) hits.list[count + s] = p.experts + s;
    if (threadIdx.x == 0) hits.count = count + p.shared;
  }
  __syncthreads();
}

struct FewFirstShared {
  FewHits hits;
  float weight[(kMostExperts + kMostShared) * kFewRows];  // [hit][row]
};

__global__ void __launch_bounds__(kFewThreads, 1) few_gate_up(FewParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<FewFirstShared*>(memory);
  bf16* const x = reinterpret_cast<bf16*>(memory + (sizeof(FewFirstShared) + 15) / 16 * 16);
  const int x_stride = p.hidden + kFewPadding;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int r = lane / 4, q = lane % 4;
  grid_wait();
  hits_find(p, shared.hits);
  grid_release();  // the choice is complete
  for (int i = threadIdx.x; i < kFewRows * p.hidden / 8; i += kFewThreads) {
    const int row = i / (p.hidden / 8), column = i % (p.hidden / 8) * 8;
    *reinterpret_cast<uint4*>(x + row * x_stride + column) =
        row < p.few.rows ? load_after_wait(reinterpret_cast<const uint4*>(
                               p.few.x + std::int64_t{row} * p.hidden + column))
                         : uint4{};
  }
  const int hit_count = shared.hits.count;
  for (int i = threadIdx.x; i < hit_count * kFewRows; i += kFewThreads) {
    shared.weight[i] = i / kFewRows < hit_count - p.shared ? 0.0f : 1.0f;
  }
  __syncthreads();
  if (threadIdx.x < p.few.rows) {
    for (int i = 0; i < p.per_token; ++i) {
      const int at = threadIdx.x * p.per_token + i;
      const int hit = shared.hits.index[load_after_wait(p.few.chosen + at)];
      shared.weight[hit * kFewRows + threadIdx.x] += load_after_wait(p.few.weights + at);
    }
  }
  __syncthreads();

  const int blocks = p.width / 8;  // of 16 stored rows, of one expert
  const int steps = p.hidden / 32;
  const bf16* const x_lane = x + r * x_stride + 8 * q;
  for (int unit = warp * gridDim.x + blockIdx.x; unit < hit_count * blocks;
       unit += gridDim.x * kFewWarps) {
    const int hit = unit / blocks, block = unit % blocks;
    const bf16* const low =
        p.gate_up + ((std::int64_t{shared.hits.list[hit]} * blocks + block) * 16 + r) * p.hidden +
        8 * q;
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
      const float weight = shared.weight[hit * kFewRows + row];
      const float value = weight == 0.0f ? 0.0f : weight * silu(sum[i]) * sum[i + 2];
      if (row < p.few.rows) {
        p.few.act[(std::int64_t{hit} * kFewRows + row) * p.width + block * 8 + r] =
            __float2bfloat16(value);
      }
    }
  }
}

__global__ void __launch_bounds__(kFewThreads, 1) few_down(FewParams p) {
  __shared__ FewHits hits;
  __shared__ float sums[kFewWarps][16 * kFewRows];
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int r = lane / 4, q = lane % 4;
  hits_find(p, hits);  // the choice was complete before the kernel ahead let this one start
  const int steps_each = p.width / 32;
  const int steps = hits.count * steps_each;
  const int begin = static_cast<int>(std::int64_t{steps} * warp / kFewWarps);
  const int end = static_cast<int>(std::int64_t{steps} * (warp + 1) / kFewWarps);
  const std::int64_t expert_size = std::int64_t{p.hidden} * p.width;
  const bf16* const down =
      p.down + (std::int64_t{blockIdx.x} * 16 + r) * p.width + 8 * q;  // of expert 0
  const bf16* const act = p.few.act + std::int64_t{r} * p.width + 8 * q;
  const bool row_real = r < p.few.rows;

  uint4 next[kFewBatch][2];
  const auto fetch = [&](int step) {
#pragma unroll
    for (int i = 0; i < kFewBatch; ++i) {
      if (step + i >= end) break;
      const int hit = (step + i) / steps_each, inside = (step + i) % steps_each;
      const bf16* const low = down + hits.list[hit] * expert_size + inside * 32;
      next[i][0] = weights_load(low);
      next[i][1] = weights_load(low + 8 * std::int64_t{p.width});
    }
  };
  fetch(begin);
  grid_wait();
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
  if (row < p.few.rows) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < kFewWarps; ++w) total += sums[w][threadIdx.x];
    p.few.residual[std::int64_t{row} * p.hidden + blockIdx.x * 16 + threadIdx.x % 16] += total;
  }
}

std::size_t few_shared_bytes(const ExpertsShape& shape) {
  return (sizeof(FewFirstShared) + 15) / 16 * 16 +
         std::size_t{kFewRows} * static_cast<std::size_t>(shape.hidden + kFewPadding) * 2;
}

}  // namespace

bool few_fits(const ExpertsShape& shape) {
  return shape.hidden % 32 == 0 && shape.width % 32 == 0 && shape.shared <= kMostShared &&
         few_shared_bytes(shape) <= 160 * 1024;
}

void few_run(const ExpertsShape& shape, const ExpertsWeights& weights, const Few& few,
             const Queue& queue) {
  const FewParams params{few,         weights.gate_up,     weights.down,          shape.hidden,
                         shape.width, shape.route.experts, shape.route.per_token, shape.shared};
  const std::size_t bytes = few_shared_bytes(shape);
  queue.device->shared_allow(reinterpret_cast<const void*>(few_gate_up), bytes);
  cudaLaunchAttribute attributes[1];
  cudaLaunchConfig_t config{};
  const int hits = std::min(few.rows * shape.route.per_token, shape.route.experts) + shape.shared;
  const int units = (hits * (shape.width / 8) + kFewWarps - 1) / kFewWarps;
  config.gridDim = dim3(static_cast<unsigned>(std::min(units, queue.device->multiprocessors)));
  config.blockDim = dim3(kFewThreads);
  config.dynamicSmemBytes = bytes;
  config.stream = queue.stream;
  config.attrs = attributes;
  overlap_allow(*queue.device, config);
  check(cudaLaunchKernelEx(&config, few_gate_up, params), "launching the experts of few rows");
  config.gridDim = dim3(static_cast<unsigned>(shape.hidden / 16));
  config.dynamicSmemBytes = 0;
  check(cudaLaunchKernelEx(&config, few_down, params), "launching the experts of few rows");
}

}  // namespace lca::cuda
