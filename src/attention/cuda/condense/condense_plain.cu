// Condensing groups of any size and widths, and the head reduction `max` (mechanism §3–§5): plain
// loops, a block for each group and KV head. Scores: a warp for each row; pooling: a thread for
// each column. Shared memory: 4·(g + d_semantic + d_positional) bytes. It reads the group twice
// (the second time from L1 or L2) and is not meant to be fast: DeepSeek-V2-Lite at 128K has the
// kernel of condense.cu; with `max` this one does 16 times its operations, 4.8 Gflop, on 170 MB.
#include <lca/error.h>

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <string>

#include "attention/cuda/condense/condense_job.h"
#include "attention/cuda/condense/condense_plain.cuh"
#include "attention/cuda/condense/condense_vectors.h"
#include "attention/cuda/rotate.cuh"
#include "core/cuda/numbers.h"

namespace lca::cuda {
namespace {

// A pair of channels of a positional row as it is kept: every member rotated, then pooled.
__device__ float2 pair_pool(const CondenseJob& job, const bf16* first, const bf16* second,
                            std::int64_t stride, const float* alpha, int chosen, std::int64_t group,
                            std::uint64_t step) {
  const auto at = [&](const bf16* row, int t) { return __bfloat162float(row[t * stride]); };
  const Pool how = job.positional_pool;
  if (how == Pool::select) {
    return turn_of(step, job.difference(group, chosen))(at(first, chosen), at(second, chosen));
  }
  MemberTurns turns(step, job.difference(group, 0));
  float2 pooled{0, 0};
  if (how == Pool::max) pooled = {-INFINITY, -INFINITY};
  for (int t = 0; t < job.group; ++t) {
    const float2 value = turns.next()(at(first, t), at(second, t));
    if (how == Pool::max) {
      pooled = {fmaxf(pooled.x, value.x), fmaxf(pooled.y, value.y)};
    } else {
      const float weight = how == Pool::mean ? 1.0f / static_cast<float>(job.group) : alpha[t];
      pooled = {pooled.x + weight * value.x, pooled.y + weight * value.y};
    }
  }
  return pooled;
}

// Shared memory: [plain_room(group)] scores, then weights; [d_semantic + d_positional] the pooled
// row.
__global__ __launch_bounds__(kPlainThreads) void condense_plain_kernel(const CondenseJob job) {
  extern __shared__ float shared[];
  __shared__ float own_best[kPlainWarps];
  __shared__ float softmax[2];  // top, total
  __shared__ int chosen;
  float* alpha = shared;
  float* pooled = shared + plain_room(job.group);

  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid % 32;
  const int warp = tid / 32;
  const std::int64_t item = blockIdx.x;
  const std::int64_t group = item / job.kv_heads;
  const std::int64_t head = item - group * job.kv_heads;
  const int width = job.d_semantic + job.d_positional;
  const int score_width = job.d_positional + (job.semantic_scored ? job.d_semantic : 0);
  const float* summary =
      job.summary + group * job.summary_step + head * job.score_heads * score_width;
  const GroupPlace place = group_place(job, group, lane);
  const std::int64_t semantic_stride = job.semantic.row_stride;
  const std::int64_t positional_stride = job.positional.row_stride;
  const bf16* semantic =
      job.semantic.data + place.row * semantic_stride + head * job.semantic.head_stride;
  const bf16* positional =
      job.positional.data + place.row * positional_stride + head * job.positional.head_stride;
  bf16* const out_semantic = job.out_semantic.data + group * job.out_semantic.row_stride +
                             head * job.out_semantic.head_stride;
  bf16* const out_positional = job.out_positional.data + group * job.out_positional.row_stride +
                               head * job.out_positional.head_stride;

  for (int t = warp; t < job.group; t += kPlainWarps) {
    const auto at = [&](int i) {
      return __bfloat162float(i < job.d_semantic
                                  ? semantic[t * semantic_stride + i]
                                  : positional[t * positional_stride + i - job.d_semantic]);
    };
    const float score = plain_score(job, summary, 0, 1, lane, at).score;
    if (lane == 0) {
      alpha[t] = score;
      if (job.out_scores != nullptr) job.out_scores[item * job.group + t] = score;
    }
  }
  __syncthreads();

  plain_softmax(alpha, job.group, warp, lane, softmax, chosen);
  __syncthreads();

  // What is kept of rotated channels; the loop after it makes the rest, and scores at token
  // positions.
  const int rotated = job.rotation.steps == nullptr ? 0 : 2 * job.rotation.pairs;
  for (int pair = tid; pair < rotated / 2; pair += kPlainThreads) {
    const int2 channel = pair_channels(job.rotation, pair);
    const float2 kept =
        pair_pool(job, positional + channel.x, positional + channel.y, positional_stride, alpha,
                  chosen, place.index, job.rotation.steps[pair]);
    out_positional[channel.x] = __float2bfloat16_rn(kept.x);
    out_positional[channel.y] = __float2bfloat16_rn(kept.y);
  }

  for (int i = tid; i < width; i += kPlainThreads) {
    const bool is_semantic = i < job.d_semantic;
    const Pool how = is_semantic ? job.semantic_pool : job.positional_pool;
    const bf16* from = is_semantic ? semantic + i : positional + i - job.d_semantic;
    const std::int64_t stride = is_semantic ? semantic_stride : positional_stride;
    float value = 0;
    bf16 stored;
    if (how == Pool::select) {
      stored = from[chosen * stride];
      value = __bfloat162float(stored);
    } else {
      if (how == Pool::max) {
        value = -INFINITY;
        for (int t = 0; t < job.group; ++t) {
          value = fmaxf(value, __bfloat162float(from[t * stride]));
        }
      } else if (how == Pool::mean) {
        for (int t = 0; t < job.group; ++t) value += __bfloat162float(from[t * stride]);
        value /= static_cast<float>(job.group);
      } else {
        for (int t = 0; t < job.group; ++t) value += alpha[t] * __bfloat162float(from[t * stride]);
      }
      stored = __float2bfloat16_rn(value);
    }
    pooled[i] = value;
    if (is_semantic) {
      out_semantic[i] = stored;
    } else if (i - job.d_semantic >= rotated) {
      out_positional[i - job.d_semantic] = stored;
    }
  }
  if (job.out_bias == nullptr) return;  // the same for all threads
  __syncthreads();

  const float own =
      plain_score(job, summary, warp, kPlainWarps, lane, [&](int i) { return pooled[i]; }).score;
  if (lane == 0) own_best[warp] = own;
  __syncthreads();
  if (tid == 0) {
    float best = own_best[0];
    for (int i = 1; i < kPlainWarps; ++i) best = fmaxf(best, own_best[i]);
    job.out_bias[item] = mass_bias(job.mass, job.group, softmax[1], softmax[0], best);
  }
}

}  // namespace

void condense_plain(const CondenseJob& job, const Queue& queue) {
  const std::size_t bytes = sizeof(float) * (static_cast<std::size_t>(plain_room(job.group)) +
                                             job.d_semantic + job.d_positional);
  constexpr std::size_t kOwnBytes = 1024;  // what the kernel has besides, rounded up
  if (bytes + kOwnBytes > queue.device->shared_bytes) {
    throw Error(ErrorKind::bad_input,
                "condensing on the GPU: groups of " + std::to_string(job.group) +
                    " tokens do not fit in its shared memory; use smaller groups, or the CPU");
  }
  queue.device->shared_allow(reinterpret_cast<const void*>(condense_plain_kernel), bytes);
  condense_plain_kernel<<<static_cast<unsigned>(job.items), kPlainThreads, bytes, queue.stream>>>(
      job);
}

}  // namespace lca::cuda
