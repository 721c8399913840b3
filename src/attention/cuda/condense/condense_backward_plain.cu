// The backward pass of condensation for groups of any size, all pools and the head reduction `max`
// (mechanism §8): plain loops, a block for each group and KV head. It reads the group several times
// (from L1 or L2 after the first) and is not meant to be fast; condense_backward.cu is.
//
// Shared memory: 4·(3 g + 2 (d_semantic + d_positional)) bytes.
#include <lca/error.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "attention/cuda/condense/condense_backward_job.h"
#include "attention/cuda/condense/condense_plain.cuh"
#include "attention/cuda/rotate.cuh"

namespace lca::cuda {
namespace {

// One group of one KV head.
struct PlainGroup {
  const CondenseBackwardJob& job;
  GroupPlace place;
  const bf16* semantic;    // its first row
  const bf16* positional;  // its first row
  const bf16* kept_grad;   // of the positional row, at the position it is kept at
  const float* summary;    // [score_heads][scored columns]
  float* alpha;            // [g]
  float* slope;            // [g] gradients of weights, then f · gradients of scores
  float* head;             // [g] the score head that counts, as a float
  float* pooled;           // [columns] as the representative is scored
  float* grad;             // [columns] its gradient at token positions
  int chosen;

  __device__ int columns() const { return job.forward.d_semantic + job.forward.d_positional; }
  __device__ bool is_semantic(int i) const { return i < job.forward.d_semantic; }
  __device__ Pool pool(int i) const {
    return is_semantic(i) ? job.forward.semantic_pool : job.forward.positional_pool;
  }
  __device__ float at(int t, int i) const {
    const CondenseJob& forward = job.forward;
    return __bfloat162float(
        is_semantic(i) ? semantic[t * forward.semantic.row_stride + i]
                       : positional[t * forward.positional.row_stride + i - forward.d_semantic]);
  }
  // What column i is scored with; 0 where it takes no part.
  __device__ float scored(int h, int i) const {
    const CondenseJob& forward = job.forward;
    const int skipped = forward.semantic_scored ? 0 : forward.d_semantic;
    if (i < skipped) return 0;
    return summary[h * (columns() - skipped) + i - skipped];
  }
  // The first token that has a column's largest value.
  __device__ int largest(int i) const {
    int best = 0;
    for (int t = 1; t < job.forward.group; ++t) {
      if (at(t, i) > at(best, i)) best = t;
    }
    return best;
  }
  // The share of token t in a pooled column; `best` for `max`.
  __device__ float share(Pool how, int t, int best) const {
    switch (how) {
      case Pool::weighted:
        return alpha[t];
      case Pool::mean:
        return 1.0f / static_cast<float>(job.forward.group);
      case Pool::max:
        return t == best ? 1.0f : 0.0f;
      default:
        return t == chosen ? 1.0f : 0.0f;
    }
  }
  __device__ float token_slope(int t, int i) const {
    return slope[t] * scored(static_cast<int>(head[t]), i);
  }
  // Adds to or replaces the gradient of token t's column i.
  __device__ void write(int t, int i, float value, int kv) const {
    const OutRows& rows = is_semantic(i) ? job.semantic : job.positional;
    if (rows.data == nullptr) return;
    bf16* const to = rows.data + (place.row + t) * rows.row_stride + kv * rows.head_stride +
                     (is_semantic(i) ? i : i - job.forward.d_semantic);
    *to = __float2bfloat16_rn(job.accumulate ? __bfloat162float(*to) + value : value);
  }
};

// Gradients of a pair of channels that rotation turns, of all members.
__device__ void pair_write(const PlainGroup& group, int pair, int kv) {
  const CondenseJob& forward = group.job.forward;
  const int2 channel = pair_channels(forward.rotation, pair);
  const std::uint64_t step = forward.rotation.steps[pair];
  const int first = forward.d_semantic + channel.x;
  const int second = forward.d_semantic + channel.y;
  const Pool how = forward.positional_pool;
  const int difference = forward.difference(group.place.index, 0);
  // Largest as tokens are, and as they are kept.
  int best[2] = {0, 0};
  int kept_best[2] = {0, 0};
  if (how == Pool::max) {
    best[0] = group.largest(first);
    best[1] = group.largest(second);
    MemberTurns turns(step, difference);
    float2 top{-INFINITY, -INFINITY};
    for (int t = 0; t < forward.group; ++t) {
      const float2 value = turns.next()(group.at(t, first), group.at(t, second));
      if (value.x > top.x) {
        top.x = value.x;
        kept_best[0] = t;
      }
      if (value.y > top.y) {
        top.y = value.y;
        kept_best[1] = t;
      }
    }
  }
  const float2 kept{__bfloat162float(group.kept_grad[channel.x]),
                    __bfloat162float(group.kept_grad[channel.y])};
  for (int t = 0; t < forward.group; ++t) {
    const float2 back = turn_of(step, -forward.difference(group.place.index, t))(
        group.share(how, t, kept_best[0]) * kept.x, group.share(how, t, kept_best[1]) * kept.y);
    group.write(
        t, first,
        back.x + group.share(how, t, best[0]) * group.grad[first] + group.token_slope(t, first),
        kv);
    group.write(
        t, second,
        back.y + group.share(how, t, best[1]) * group.grad[second] + group.token_slope(t, second),
        kv);
  }
}

// Gradients of a column of all members; `extra` is the kept row's, where nothing is rotated.
__device__ void column_write(const PlainGroup& group, int i, float extra, int kv) {
  const Pool how = group.pool(i);
  const int best = how == Pool::max ? group.largest(i) : 0;
  const float grad = group.grad[i] + extra;
  for (int t = 0; t < group.job.forward.group; ++t) {
    group.write(t, i, group.share(how, t, best) * grad + group.token_slope(t, i), kv);
  }
}

// What reaches the weight of token t through the pooled rows: a warp's sum.
__device__ float weight_grad(const PlainGroup& group, int t, int lane) {
  const CondenseJob& forward = group.job.forward;
  float sum = 0;
  if (forward.semantic_pool == Pool::weighted) {
    for (int i = lane; i < forward.d_semantic; i += 32) sum += group.grad[i] * group.at(t, i);
  }
  if (forward.positional_pool == Pool::weighted) {
    for (int i = lane; i < forward.d_positional; i += 32) {
      const int column = forward.d_semantic + i;
      sum += group.grad[column] * group.at(t, column);
    }
    const int rotated = forward.rotation.steps == nullptr ? 0 : 2 * forward.rotation.pairs;
    for (int pair = lane; pair < rotated / 2; pair += 32) {
      const int2 channel = pair_channels(forward.rotation, pair);
      const float2 value = turn_of(forward.rotation.steps[pair],
                                   forward.difference(group.place.index, t))(
          group.at(t, forward.d_semantic + channel.x), group.at(t, forward.d_semantic + channel.y));
      sum += __bfloat162float(group.kept_grad[channel.x]) * value.x +
             __bfloat162float(group.kept_grad[channel.y]) * value.y;
    }
    for (int i = rotated + lane; i < forward.d_positional; i += 32) {
      sum += __bfloat162float(group.kept_grad[i]) * group.at(t, forward.d_semantic + i);
    }
  }
  return warp_sum(sum);
}

__global__ __launch_bounds__(kPlainThreads) void condense_backward_plain_kernel(
    const CondenseBackwardJob job) {
  extern __shared__ float shared[];
  __shared__ float softmax[2];
  __shared__ int chosen;
  __shared__ PlainScore owns[kPlainWarps];
  __shared__ float mean;

  const CondenseJob& forward = job.forward;
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid % 32;
  const int warp = tid / 32;
  const std::int64_t item = blockIdx.x;
  const std::int64_t number = item / forward.kv_heads;
  const int kv = static_cast<int>(item - number * forward.kv_heads);
  const int room = plain_room(forward.group);
  const int skipped = forward.semantic_scored ? 0 : forward.d_semantic;
  const int columns = forward.d_semantic + forward.d_positional;
  const GroupPlace place = group_place(forward, number, lane);

  PlainGroup group{job,
                   place,
                   forward.semantic.data + place.row * forward.semantic.row_stride +
                       kv * forward.semantic.head_stride,
                   forward.positional.data + place.row * forward.positional.row_stride +
                       kv * forward.positional.head_stride,
                   job.grad_positional.data + number * job.grad_positional.row_stride +
                       kv * job.grad_positional.head_stride,
                   forward.summary + number * forward.summary_step +
                       static_cast<std::int64_t>(kv) * forward.score_heads * (columns - skipped),
                   shared,
                   shared + room,
                   shared + 2 * room,
                   shared + 3 * room,
                   shared + 3 * room + columns,
                   0};
  const float bias = job.grad_bias == nullptr ? 0.0f : job.grad_bias[item];

  for (int t = tid; t < forward.group; t += kPlainThreads) {
    group.alpha[t] = forward.out_scores[item * forward.group + t];
  }
  // Which head's score counted: of tokens, and of the representative.
  for (int t = warp; t < forward.group; t += kPlainWarps) {
    int head = 0;
    if (forward.score_heads > 1) {
      head = plain_score(forward, group.summary, 0, 1, lane, [&](int i) {
               return group.at(t, i);
             }).head;
    }
    if (lane == 0) group.head[t] = static_cast<float>(head);
  }
  __syncthreads();
  plain_softmax(group.alpha, forward.group, warp, lane, softmax, chosen);
  __syncthreads();
  group.chosen = chosen;

  int own_head = 0;
  if (bias != 0) {  // the same for all threads
    for (int i = tid; i < columns; i += kPlainThreads) {
      const Pool how = group.pool(i);
      const int best = how == Pool::max ? group.largest(i) : 0;
      float value = 0;
      for (int t = 0; t < forward.group; ++t) value += group.share(how, t, best) * group.at(t, i);
      group.pooled[i] = value;
    }
    __syncthreads();
    const PlainScore own = plain_score(forward, group.summary, warp, kPlainWarps, lane,
                                       [&](int i) { return group.pooled[i]; });
    if (lane == 0) owns[warp] = own;
    __syncthreads();
    PlainScore best = owns[0];
    for (int w = 1; w < kPlainWarps; ++w) {
      const bool first = owns[w].score == best.score && owns[w].head < best.head;
      if (w < forward.score_heads && (owns[w].score > best.score || first)) best = owns[w];
    }
    own_head = best.head;
  }

  // The gradient of the pooled row as scores see it. The kept positional row has one of its own.
  const bf16* semantic_grad = job.grad_semantic.data + number * job.grad_semantic.row_stride +
                              kv * job.grad_semantic.head_stride;
  for (int i = tid; i < columns; i += kPlainThreads) {
    float value = group.is_semantic(i) ? __bfloat162float(semantic_grad[i]) : 0.0f;
    if (bias != 0) value -= bias * forward.factor * group.scored(own_head, i);
    group.grad[i] = value;
  }
  __syncthreads();

  for (int t = warp; t < forward.group; t += kPlainWarps) {
    const float sum = weight_grad(group, t, lane);
    if (lane == 0) group.slope[t] = sum;
  }
  __syncthreads();
  if (warp == 0) {
    float sum = 0;
    for (int t = lane; t < forward.group; t += 32) sum += group.alpha[t] * group.slope[t];
    sum = warp_sum(sum);
    if (lane == 0) mean = sum;
  }
  __syncthreads();
  for (int t = tid; t < forward.group; t += kPlainThreads) {
    group.slope[t] = forward.factor * group.alpha[t] * (group.slope[t] - mean + bias);
  }
  __syncthreads();

  // Gradients of the rows.
  const int rotated = forward.rotation.steps == nullptr ? 0 : 2 * forward.rotation.pairs;
  for (int pair = tid; pair < rotated / 2; pair += kPlainThreads) pair_write(group, pair, kv);
  for (int i = tid; i < columns; i += kPlainThreads) {
    const int in_row = i - forward.d_semantic;
    if (in_row >= 0 && in_row < rotated) continue;
    const float extra = in_row < 0 ? 0.0f : __bfloat162float(group.kept_grad[in_row]);
    column_write(group, i, extra, kv);
  }

  // Gradients of the summary, head after head.
  for (int i = skipped + tid; i < columns; i += kPlainThreads) {
    for (int h = 0; h < forward.score_heads; ++h) {
      float sum = 0;
      for (int t = 0; t < forward.group; ++t) {
        if (static_cast<int>(group.head[t]) == h) sum += group.slope[t] * group.at(t, i);
      }
      if (bias != 0 && own_head == h) sum -= bias * forward.factor * group.pooled[i];
      const std::int64_t row = item * forward.score_heads + h;
      if (!group.is_semantic(i)) {
        if (job.summary_positional != nullptr) {
          job.summary_positional[row * forward.d_positional + i - forward.d_semantic] = sum;
        }
      } else if (job.summary_semantic != nullptr) {
        job.summary_semantic[row * forward.d_semantic + i] = __float2bfloat16_rn(sum);
      }
    }
  }
}

}  // namespace

void condense_backward_plain(const CondenseBackwardJob& job, const Queue& queue) {
  const CondenseJob& forward = job.forward;
  const std::size_t bytes =
      sizeof(float) * (3 * static_cast<std::size_t>(plain_room(forward.group)) +
                       2 * static_cast<std::size_t>(forward.d_semantic + forward.d_positional));
  constexpr std::size_t kOwnBytes = 1024;  // what the kernel has besides, rounded up
  if (bytes + kOwnBytes > queue.device->shared_bytes) {
    throw Error(ErrorKind::bad_input,
                "condensing's backward pass on the GPU: groups of " +
                    std::to_string(forward.group) +
                    " tokens do not fit in its shared memory; use smaller groups, or the CPU");
  }
  queue.device->shared_allow(reinterpret_cast<const void*>(condense_backward_plain_kernel), bytes);
  condense_backward_plain_kernel<<<static_cast<unsigned>(forward.items), kPlainThreads, bytes,
                                   queue.stream>>>(job);
}

}  // namespace lca::cuda
