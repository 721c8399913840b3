#pragma once
/// What the plain kernels of both passes share: a block of kPlainThreads for a group of one KV
/// head.

#include <cfloat>
#include <cmath>

#include "attention/cuda/condense/condense_job.h"
#include "core/cuda/numbers.h"
#include "core/cuda/warp_ops.cuh"

namespace lca::cuda {

inline constexpr int kPlainThreads = 128;
inline constexpr int kPlainWarps = kPlainThreads / 32;

/// A reduced score, and the head it comes from (reduction `max`: the first of equals).
struct PlainScore {
  float score = -FLT_MAX;
  int head = 0;
};

/// A warp's dot products of one row (values from `at`) with every score head's summary, reduced.
template <typename Value>
__device__ PlainScore plain_score(const CondenseJob& job, const float* summary, int first_head,
                                  int head_step, int lane, const Value& at) {
  const int scored = job.semantic_scored ? job.d_semantic : 0;
  const int width = scored + job.d_positional;
  const int skipped = job.d_semantic - scored;  // GQA: values take no part
  PlainScore best;
  for (int h = first_head; h < job.score_heads; h += head_step) {
    float sum = 0;
    for (int i = lane; i < width; i += 32) sum += at(skipped + i) * summary[h * width + i];
    const float score = score_bounded(warp_sum(sum) * job.factor);
    if (score > best.score) best = {score, h};
  }
  return best;
}

/// Scores of a group become weights, by warp 0: `softmax` gets the highest score and the total,
/// `chosen` the first token that has it.
__device__ inline void plain_softmax(float* alpha, int group, int warp, int lane, float* softmax,
                                     int& chosen) {
  if (warp != 0) return;
  float top = -INFINITY;
  int best = group;
  for (int t = lane; t < group; t += 32) {
    if (alpha[t] > top) {  // the first of equals stays
      top = alpha[t];
      best = t;
    }
  }
  const float highest = warp_max(top);
  best = __reduce_min_sync(0xffffffffu, top == highest ? best : group);
  float total = 0;
  for (int t = lane; t < group; t += 32) {
    const float weight = exp2f((alpha[t] - highest) * kLog2e);
    alpha[t] = weight;  // each lane rewrites what it alone reads
    total += weight;
  }
  total = warp_sum(total);
  for (int t = lane; t < group; t += 32) alpha[t] /= total;
  if (lane == 0) {
    softmax[0] = highest;
    softmax[1] = total;
    chosen = best;
  }
}

/// Weights of a group take whole 16 bytes: the compiler loads four at once, and what it loads
/// behind the last must not be what other threads write.
__host__ __device__ constexpr int plain_room(int group) { return (group + 3) / 4 * 4; }

}  // namespace lca::cuda
