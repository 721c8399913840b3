/// Experts of up to eight rows: weights go through registers once.
///
/// Shapes     x [rows ≤ 8][hidden]; DeepSeek-V2-Lite: hidden 2048, width 1408, 6 + 2 experts a row.
/// Moving     a cluster computes the logits, its first block chooses and lists the experts hit; all
///            of it from shared memory, since nothing but shared experts can run meanwhile.
///            First product: a warp has 16 stored rows of gate and up (eight of each) of one
///            expert at a time. Second product: a block has 16 channels of the residual, and its
///            warps divide the experts hit as one long inner dimension, a step of 32 values after
///            another; the sum goes straight to the residual. Lanes load weights as they
///            lie in memory and hand them to the tensor cores without shared memory. All rows pass
///            all experts; a weight of 0 removes those that did not choose one.
/// Overlap    the router's weights are there before the rows are; the first product begins with the
///            shared experts while the others are being chosen; the second has its first weights
///            before the first ends.
/// Bounds     one row: 138 MB of weights, 32 µs at 4.27 TB/s.

#include <algorithm>
#include <cstdint>

#include "ops/cuda/experts_few_route.cuh"

namespace lca::cuda {
namespace few_rows {
namespace {

constexpr int kFewWarps = 16;
constexpr int kFewThreads = 32 * kFewWarps;
constexpr int kFewBatch = 4;     // steps of 32 values whose loads are issued together
constexpr int kFewPadding = 32;  // values behind a row of x: no bank conflicts

__global__ void __launch_bounds__(kFewThreads, 1) few_gate_up(FewParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  bf16* const x = reinterpret_cast<bf16*>(memory);
  const int x_stride = p.hidden + kFewPadding;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int r = lane / 4, q = lane % 4;
  const int blocks = p.width / 8;  // of 16 stored rows, of one expert
  const int steps = p.hidden / 32;
  const int most = p.rule.experts + p.shared;
  const bf16* const x_lane = x + r * x_stride + 8 * q;
  const bf16* low = nullptr;
  uint4 next[kFewBatch][2];
  const auto fetch = [&](int step) {
#pragma unroll
    for (int i = 0; i < kFewBatch; ++i) {
      if (step + i >= steps) break;
      next[i][0] = weights_load(low + (step + i) * 32);
      next[i][1] = weights_load(low + 8 * std::int64_t{p.hidden} + (step + i) * 32);
    }
  };
  const auto unit_begin = [&](int expert, int block) {
    low = p.gate_up + ((std::int64_t{expert} * blocks + block) * 16 + r) * p.hidden + 8 * q;
    fetch(0);
  };
  int unit = warp * gridDim.x + blockIdx.x;
  if (unit / blocks < p.shared) unit_begin(p.rule.experts + unit / blocks, unit % blocks);
  // The rows were complete before the kernel ahead let this one start.
  for (int i = threadIdx.x; i < kFewRows * p.hidden / 8; i += kFewThreads) {
    const int row = i / (p.hidden / 8), column = i % (p.hidden / 8) * 8;
    *reinterpret_cast<uint4*>(x + row * x_stride + column) =
        row < p.few.route.rows ? load_after_wait(reinterpret_cast<const uint4*>(
                                     p.few.route.x + std::int64_t{row} * p.hidden + column))
                               : uint4{};
  }
  __syncthreads();
  bool waited = false;  // for the choice, which shared experts do not need
  for (;;) {
    const int hit = unit / blocks, block = unit % blocks;
    float weight[2] = {1.0f, 1.0f};  // of rows 2q and 2q + 1
    if (hit >= p.shared) {
      if (!waited) {
        grid_wait();
        grid_release();  // the choice is complete
        waited = true;
      }
      const int expert = hit < most ? load_after_wait(p.few.hits + 1 + hit) : -1;
      if (expert < 0) break;
      unit_begin(expert, block);
      weight[0] = load_after_wait(p.few.weights + hit * kFewRows + 2 * q);
      weight[1] = load_after_wait(p.few.weights + hit * kFewRows + 2 * q + 1);
    }
    float sum[4] = {};
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
    unit += gridDim.x * kFewWarps;
    if (unit / blocks < p.shared) unit_begin(p.rule.experts + unit / blocks, unit % blocks);
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // sum[i] is a gate, sum[i + 2] its up
      const int row = 2 * q + i;
      const float value = weight[i] == 0.0f ? 0.0f : weight[i] * silu(sum[i]) * sum[i + 2];
      if (row < p.few.route.rows) {
        p.few.act[(std::int64_t{hit} * kFewRows + row) * p.width + block * 8 + r] =
            __float2bfloat16(value);
      }
    }
  }
}

/// Where a warp of the second product is: a step of 32 values of one expert hit.
class FewCursor {
 public:
  __device__ __forceinline__ FewCursor(const FewParams& p, const int* list, int step)
      : p_(p), list_(list), steps_(p.width / 32) {
    const int lane = threadIdx.x & 31;
    const int row = min(lane / 4, p.few.route.rows - 1);  // what rows beyond give is dropped
    weights_ = p.down + (std::int64_t{blockIdx.x} * 16 + lane / 4) * p.width + 8 * (lane % 4);
    act_ = p.few.act + std::int64_t{row} * p.width + 8 * (lane % 4);
    hit_ = step / steps_;
    expert_enter(step % steps_);
  }

  __device__ __forceinline__ const bf16* weights() const { return low_; }
  __device__ __forceinline__ const bf16* rows() const { return x_; }
  __device__ __forceinline__ void next() {
    low_ += 32;
    x_ += 32;
    if (--left_ > 0) return;
    ++hit_;
    expert_enter(0);
  }

 private:
  __device__ __forceinline__ void expert_enter(int step) {
    left_ = steps_ - step;
    low_ = weights_ + list_[hit_] * (std::int64_t{p_.hidden} * p_.width) + step * 32;
    x_ = act_ + hit_ * (kFewRows * p_.width) + step * 32;
  }

  const FewParams& p_;
  const int* list_;  // one entry more than there are hits
  int steps_, hit_, left_;
  const bf16 *weights_, *act_, *low_, *x_;
};

__global__ void __launch_bounds__(kFewThreads, 1) few_down(FewParams p) {
  __shared__ float sums[kFewWarps][16 * kFewRows];
  __shared__ int list[kMostExperts + kFewMostShared + 1];
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int r = lane / 4, q = lane % 4;
  // The choice was complete before the kernel ahead let this one start.
  const int hits = load_after_wait(p.few.hits);
  for (int i = threadIdx.x; i < p.rule.experts + p.shared; i += kFewThreads) {
    list[i] = load_after_wait(p.few.hits + 1 + i);
  }
  if (threadIdx.x == 0) list[p.rule.experts + p.shared] = -1;
  __syncthreads();
  const int steps = hits * (p.width / 32);
  const int begin = static_cast<int>(std::int64_t{steps} * warp / kFewWarps);
  const int end = static_cast<int>(std::int64_t{steps} * (warp + 1) / kFewWarps);

  FewCursor cursor(p, list, begin);
  uint4 next[kFewBatch][2], next_x[kFewBatch];
  const bf16* x_at[kFewBatch];
  const auto fetch = [&](int step, bool rows_too) {
#pragma unroll
    for (int i = 0; i < kFewBatch; ++i) {
      if (step + i >= end) break;
      next[i][0] = weights_load(cursor.weights());
      next[i][1] = weights_load(cursor.weights() + 8 * p.width);
      x_at[i] = cursor.rows();
      if (rows_too) next_x[i] = load_after_wait(reinterpret_cast<const uint4*>(x_at[i]));
      cursor.next();
    }
  };
  fetch(begin, false);
  grid_wait();
  grid_release();
#pragma unroll
  for (int i = 0; i < kFewBatch; ++i) {
    if (begin + i < end) next_x[i] = load_after_wait(reinterpret_cast<const uint4*>(x_at[i]));
  }
  float sum[4] = {};
  for (int step = begin; step < end; step += kFewBatch) {
    uint4 now[kFewBatch][2], x[kFewBatch];
#pragma unroll
    for (int i = 0; i < kFewBatch; ++i) {
      now[i][0] = next[i][0];
      now[i][1] = next[i][1];
      x[i] = next_x[i];
    }
    fetch(step + kFewBatch, true);
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
  const int row = threadIdx.x / 16;
  const bool writes = row < p.few.route.rows;
  float* const to =
      p.few.residual + std::int64_t{row} * p.hidden + blockIdx.x * 16 + threadIdx.x % 16;
  const float before = writes ? load_after_wait(to) : 0.0f;
  __syncthreads();
  if (!writes) return;
  float total = 0;
#pragma unroll
  for (int w = 0; w < kFewWarps; ++w) total += sums[w][threadIdx.x];
  *to = before + total;
}

std::size_t few_shared_bytes(const ExpertsShape& shape) {
  return std::size_t{kFewRows} * static_cast<std::size_t>(shape.hidden + kFewPadding) * 2;
}

}  // namespace
}  // namespace few_rows

bool few_fits(const ExpertsShape& shape) {
  using namespace few_rows;
  return shape.hidden % 32 == 0 && shape.width % 32 == 0 && shape.shared <= kFewMostShared &&
         few_shared_bytes(shape) <= 160 * 1024;
}

void few_run(const ExpertsShape& shape, const ExpertsWeights& weights, const Few& few,
             const Queue& queue) {
  using namespace few_rows;
  const FewParams params{few,          shape.route, weights.gate_up, weights.down,
                         shape.hidden, shape.width, shape.shared};
  const std::size_t route_bytes =
      FewRouteSpace(nullptr, shape.route, shape.hidden, few.route.rows, shape.shared).bytes;
  queue.device->shared_allow(reinterpret_cast<const void*>(few_route), route_bytes);
  cudaLaunchAttribute route_attributes[2];
  const cudaLaunchConfig_t route_config = cluster_config(
      dim3(kFewCluster), kFewRouterThreads, route_bytes, kFewCluster, queue, route_attributes);
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
