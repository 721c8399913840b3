// From gradients of representatives to those of their tokens and of the summaries (mechanism §8).
//
// Shapes (DeepSeek-V2-Lite, 64K): latents [65536][512] and RoPE keys [65536][64] bf16 in 4032
// groups of 16, and as much of gradients; scores [4032][16], summary [4032][576] and its gradient.
// Bytes: 76 MB read and 76 MB written, 23 MB of summaries: 41 µs at 4.27 TB/s. Operations: 4 ·
// 65536 · 576 for the gradients of weights and of summaries, and as many for the rows: 0.3 Gflop.
//
// How data moves: as in condense.cu a warp (or several) holds a whole group in registers: one dot
// product per row gives the gradient of its weight, one weighted sum of rows that of the summary,
// and rows' gradients are sums of two vectors that a lane has for its columns. With s_i = f·u·x_i,
// p the weights of the pooled row (α, or 1 at the selected one) and b_j = log Σ exp s_i − s_rep:
//   A    = grad of the pooled row − grad b · f · u             (u: what the row is scored with)
//   ds_i = α_i (A·x_i − Σ_k α_k A·x_k + grad b)                (A·x_i: where weights pool)
//   dx_i = p_i A + f ds_i u
//   du   = f Σ_i (ds_i − grad b · p_i) x_i
#include <lca/error.h>

#include <cmath>
#include <cstdint>

#include "attention/cuda/condense/condense_backward.h"
#include "attention/cuda/condense/condense_backward_job.h"
#include "attention/cuda/condense/condense_tile.cuh"
#include "attention/cuda/condense/condense_vectors.h"
#include "attention/cuda/rotate.cuh"
#include "core/cuda/numbers.h"

namespace lca::cuda {
namespace {

constexpr int backward_warps(int split) { return split == 1 ? 2 : split; }

// Gradients of the rows of a tile: own[i] · pooled + slope[i] · scored, by columns of the lane.
template <typename T, int G>
__device__ void rows_write(const float* own, const float* slope, const typename T::Query& pooled,
                           const typename T::Query& scored, bool is_scored, bf16* first,
                           std::int64_t stride, bool accumulate, int lane) {
  const int row = lane / T::kLanes;
  if (row >= G) return;  // G < kRows: lanes that began again
  bf16* to = first + row * stride + lane % T::kLanes * 8;
#pragma unroll
  for (int k = 0; k < T::kLoads; ++k) {
    const float p = own[k * T::kRows + row];
    const float s = slope[k * T::kRows + row];
#pragma unroll
    for (int a = 0; a < T::kAcross; ++a) {
      uint4* const at = reinterpret_cast<uint4*>(to + a * T::kLanes * 8);
      float value[8] = {};
      if (accumulate) unpack(*at, value);
#pragma unroll
      for (int i = 0; i < 8; ++i) value[i] += p * pooled.value[a][i];
      if (is_scored) {
#pragma unroll
        for (int i = 0; i < 8; ++i) value[i] += s * scored.value[a][i];
      }
      *at = pack(value);
    }
    to += T::kRows * stride;
  }
}

// kSplit as in condense.cu.
template <bool kSemanticScored, int kSemantic, int kPositional, int G, int kSplit>
__global__ __launch_bounds__(backward_warps(kSplit) *
                             32) void condense_backward_kernel(const CondenseBackwardJob job) {
  constexpr int kWarps = backward_warps(kSplit);
  using Semantic = Tile<kSemantic / kSplit, G>;
  using Positional = Tile<kPositional / kSplit, G>;
  __shared__ float dots[kWarps][32];
  __shared__ float alphas[kWarps][32];   // α, or 1 at the selected row: of the semantic part
  __shared__ float chosens[kWarps][32];  // 1 at the selected row
  __shared__ float slopes[kWarps][32];   // f ds
  __shared__ float sums[kWarps][2][32];  // f (ds − grad b · p), of both parts
  __shared__ alignas(16) float kept[kWarps / kSplit][kPositional];
  const auto sync = [] {
    if constexpr (kSplit == 1) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  };

  const CondenseJob& forward = job.forward;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int part = kSplit == 1 ? 0 : warp;
  const std::int64_t item =
      kSplit == 1 ? static_cast<std::int64_t>(blockIdx.x) * kWarps + warp : blockIdx.x;
  if (item >= forward.items) return;  // all that meet at a barrier, or none
  const int kv_heads = kSemanticScored ? 1 : forward.kv_heads;
  const std::int64_t group = item / kv_heads;
  const int head = static_cast<int>(item - group * kv_heads);
  const GroupPlace place = group_place(forward, group, lane);
  const bool weighted = forward.semantic_pool == Pool::weighted;

  constexpr int kSummary = kPositional + (kSemanticScored ? kSemantic : 0);
  const int semantic_column = part * (kSemantic / kSplit);
  const int positional_column = part * (kPositional / kSplit);

  Semantic semantic;
  Positional positional;
  if (kSemanticScored || weighted) {
    semantic.load(forward.semantic.data + place.row * forward.semantic.row_stride +
                      head * forward.semantic.head_stride + semantic_column,
                  forward.semantic.row_stride, lane);
  }
  positional.load(forward.positional.data + place.row * forward.positional.row_stride +
                      head * forward.positional.head_stride + positional_column,
                  forward.positional.row_stride, lane);
  __syncwarp();  // all loads are on their way: see load_now

  // Weights, from the scores that the forward pass wrote. Lane i has token i, in every warp.
  const float score = lane < G ? forward.out_scores[item * G + lane] : -INFINITY;
  const float top = warp_max(score);
  const int best = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, score == top))) - 1;
  float alpha = exp2f((score - top) * kLog2e);
  alpha /= warp_sum(alpha);
  const float bias = job.grad_bias == nullptr ? 0.0f : job.grad_bias[item];
  const float factor = forward.factor;

  // What the rows are scored with, and the gradients of the pooled rows, by the lane's columns.
  const float* summary = forward.summary + group * forward.summary_step + head * kSummary;
  typename Semantic::Query semantic_scored = {};
  if constexpr (kSemanticScored) semantic_scored.load(summary + semantic_column, lane);
  typename Positional::Query positional_scored;
  if (!kSemanticScored && forward.queries.data != nullptr) {
    const bf16* from = forward.queries.data + place.document * forward.queries.row_stride +
                       head * forward.sharing * forward.queries.head_stride;
    positional_scored = Positional::mean(
        from, forward.queries, forward.layout.summary_range(place.index, 0), forward.sharing, lane);
  } else {
    positional_scored.load(summary + kSummary - kPositional + positional_column, lane);
  }

  typename Semantic::Query semantic_grad;
  {
    const bf16* from = job.grad_semantic.data + group * job.grad_semantic.row_stride +
                       head * job.grad_semantic.head_stride + semantic_column +
                       lane % Semantic::kLanes * 8;
#pragma unroll
    for (int a = 0; a < Semantic::kAcross; ++a) {
      unpack(*reinterpret_cast<const uint4*>(from + a * Semantic::kLanes * 8),
             semantic_grad.value[a]);
      if constexpr (kSemanticScored) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          semantic_grad.value[a][i] -= bias * factor * semantic_scored.value[a][i];
        }
      }
    }
  }

  // The positional gradient goes back to the selected token's position through shared memory.
  float* const row = kept[kSplit == 1 ? warp : 0];
  {
    const bf16* from = job.grad_positional.data + group * job.grad_positional.row_stride +
                       head * job.grad_positional.head_stride;
    const RotationView& rotation = forward.rotation;
    const int rotated = rotation.steps == nullptr ? 0 : 2 * rotation.pairs;
    const int thread = kSplit == 1 ? lane : static_cast<int>(threadIdx.x);
    for (int pair = thread; pair < rotated / 2; pair += 32 * kSplit) {
      const int2 channel = pair_channels(rotation, pair);
      const float2 back =
          turn_of(__ldg(rotation.steps + pair), -forward.difference(place.index, best))(
              __bfloat162float(from[channel.x]), __bfloat162float(from[channel.y]));
      row[channel.x] = back.x;
      row[channel.y] = back.y;
    }
    for (int i = rotated + thread; i < kPositional; i += 32 * kSplit) {
      row[i] = __bfloat162float(from[i]);
    }
  }

  if (weighted) semantic.dots(semantic_grad, dots[warp], lane);
  sync();
  typename Positional::Query positional_grad;
  positional_grad.load(row + positional_column, lane);
#pragma unroll
  for (int a = 0; a < Positional::kAcross; ++a) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      positional_grad.value[a][i] -= bias * factor * positional_scored.value[a][i];
    }
  }

  float dot = 0;
  if (weighted && lane < G) {
#pragma unroll
    for (int w = 0; w < kSplit; ++w) dot += dots[kSplit == 1 ? warp : w][lane];
  }
  const float slope = factor * alpha * (dot - warp_sum(alpha * dot) + bias);
  const float chosen = lane == best ? 1.0f : 0.0f;
  const float own = weighted ? alpha : chosen;
  alphas[warp][lane] = own;
  chosens[warp][lane] = chosen;
  slopes[warp][lane] = slope;
  sums[warp][0][lane] = slope - bias * factor * own;
  sums[warp][1][lane] = slope - bias * factor * chosen;
  __syncwarp();

  if constexpr (kSemanticScored) {
    if (job.summary_semantic != nullptr) {
      float value[Semantic::kAcross][8];
      uint4 stored[Semantic::kAcross];
      semantic.pool(Pool::weighted, sums[warp][0], 0, lane, value, stored);
      Semantic::store(stored, job.summary_semantic + group * kSemantic + semantic_column, lane);
    }
  }
  if (job.summary_positional != nullptr) {
    float value[Positional::kAcross][8];
    uint4 stored[Positional::kAcross];
    positional.pool(Pool::weighted, sums[warp][1], 0, lane, value, stored);
    if (lane < Positional::kLanes) {
      float* to = job.summary_positional + item * kPositional + positional_column + lane * 8;
#pragma unroll
      for (int a = 0; a < Positional::kAcross; ++a) {
        float4* const at = reinterpret_cast<float4*>(to + a * Positional::kLanes * 8);
        at[0] = {value[a][0], value[a][1], value[a][2], value[a][3]};
        at[1] = {value[a][4], value[a][5], value[a][6], value[a][7]};
      }
    }
  }
  if (job.semantic.data != nullptr) {
    rows_write<Semantic, G>(alphas[warp], slopes[warp], semantic_grad, semantic_scored,
                            kSemanticScored,
                            job.semantic.data + place.row * job.semantic.row_stride +
                                head * job.semantic.head_stride + semantic_column,
                            job.semantic.row_stride, job.accumulate, lane);
  }
  if (job.positional.data != nullptr) {
    rows_write<Positional, G>(chosens[warp], slopes[warp], positional_grad, positional_scored, true,
                              job.positional.data + place.row * job.positional.row_stride +
                                  head * job.positional.head_stride + positional_column,
                              job.positional.row_stride, job.accumulate, lane);
  }
}

// --- which -------------------------------------------------------------------------------------

template <bool kSemanticScored, int kSemantic, int kPositional, int G>
void backward_launch(const CondenseBackwardJob& job, const Queue& queue) {
  constexpr int kValues = (kSemantic + kPositional) * G;
  constexpr int kSplit = kValues > 16384 ? 4 : kValues > 8192 ? 2 : 1;
  constexpr int kWarps = backward_warps(kSplit);
  constexpr int kItems = kWarps / kSplit;  // of a block
  const auto blocks = static_cast<unsigned>((job.forward.items + kItems - 1) / kItems);
  condense_backward_kernel<kSemanticScored, kSemantic, kPositional, G, kSplit>
      <<<blocks, kWarps * 32, 0, queue.stream>>>(job);
}

template <bool kSemanticScored, int kSemantic, int kPositional>
void backward_launch_group(const CondenseBackwardJob& job, const Queue& queue) {
  switch (job.forward.group) {
    case 4:
      return backward_launch<kSemanticScored, kSemantic, kPositional, 4>(job, queue);
    case 8:
      return backward_launch<kSemanticScored, kSemantic, kPositional, 8>(job, queue);
    case 16:
      return backward_launch<kSemanticScored, kSemantic, kPositional, 16>(job, queue);
    default:
      return backward_launch<kSemanticScored, kSemantic, kPositional, 32>(job, queue);
  }
}

// Whether backward_launch_any has an instance.
bool backward_covers(const CondenseBackwardJob& job) {
  const CondenseJob& forward = job.forward;
  if (!rows_fit_vectors(forward.semantic) || !rows_fit_vectors(forward.positional) ||
      !rows_fit_vectors(job.grad_semantic) || !rows_fit_vectors(job.grad_positional) ||
      !rows_fit_vectors(job.semantic) || !rows_fit_vectors(job.positional) ||
      !aligned_16(forward.summary)) {
    return false;
  }
  const Pool semantic = forward.semantic_pool;
  return (semantic == Pool::weighted || semantic == Pool::select) &&
         forward.positional_pool == Pool::select && widths_known(forward);
}

void backward_launch_any(const CondenseBackwardJob& job, const Queue& queue) {
  const int width = job.forward.d_semantic;
  if (job.forward.semantic_scored) {
    if (width == 512) return backward_launch_group<true, 512, 64>(job, queue);
    return backward_launch_group<true, 256, 32>(job, queue);
  }
  if (width == 128) return backward_launch_group<false, 128, 128>(job, queue);
  return backward_launch_group<false, 64, 64>(job, queue);
}

CondenseBackwardJob backward_job(const CondenseBackward& request) {
  CondenseBackwardJob job{};
  job.forward = condense_job(request.forward);
  job.grad_semantic = request.grad_semantic;
  job.grad_positional = request.grad_positional;
  job.grad_bias = job.forward.mass == Mass::score ? request.grad_bias : nullptr;
  job.semantic = request.semantic;
  job.positional = request.positional;
  job.accumulate = request.accumulate;
  job.summary_semantic = request.summary_semantic;
  job.summary_positional = request.summary_positional;
  return job;
}

}  // namespace

bool condense_backward_sums(const CondenseBackward& request) {
  return queries_sum(request.forward) && backward_covers(backward_job(request));
}

void condense_backward(const CondenseBackward& request, const Queue& queue) {
  if (request.forward.count <= 0) return;
  const CondenseBackwardJob job = backward_job(request);
  if (backward_covers(job)) {
    backward_launch_any(job, queue);
  } else {
    condense_backward_plain(job, queue);
  }
  check(cudaGetLastError(), "condensing's backward pass");
}

}  // namespace lca::cuda
