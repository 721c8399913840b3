#pragma once
/// The choice of one row's experts by a warp.

#include <cstdint>

#include "core/cuda/overlap.cuh"
#include "core/cuda/warp_ops.cuh"
#include "ops/cuda/route.h"

namespace lca::cuda {

/// Four values of a row, whatever its alignment.
__device__ __forceinline__ float4 row_values(const bf16* x, bool aligned) {
  if (aligned) {
    const uint2 bits = *reinterpret_cast<const uint2*>(x);
    const float2 low = unpack_bf16(bits.x), high = unpack_bf16(bits.y);
    return {low.x, low.y, high.x, high.y};
  }
  return {__bfloat162float(x[0]), __bfloat162float(x[1]), __bfloat162float(x[2]),
          __bfloat162float(x[3])};
}
__device__ __forceinline__ float4 row_values(const float* w, bool aligned) {
  if (aligned) return *reinterpret_cast<const float4*>(w);
  return {w[0], w[1], w[2], w[3]};
}

inline constexpr float kTaken = -2.0f, kNoNumber = -1.0f;  // below every score

/// The lowest index with the highest score, over a warp. Scores are not negative, or one of the two
/// numbers above: as unsigned integers they then have the same order.
__device__ __forceinline__ int best_index(float score, int index) {
  const unsigned key = score >= 0 ? __float_as_uint(score) + 2 : score == kNoNumber ? 1 : 0;
  const unsigned best = __reduce_max_sync(~0u, key);
  return __reduce_min_sync(~0u, key == best ? index : 0x7fffffff);
}

/// Logits, logit(expert) each, to choice and weights [per_token], as RouteRule says; `scores` and
/// `best` are shared memory of this warp, [experts] each. Logits may lie in `scores`, and `weights`
/// may be `best`. Scores of a lane: enough for all experts. Read behind grid_wait.
template <int kScoresOfLane, typename Logit>
__device__ __forceinline__ void row_choose(const RouteRule& rule, const Logit& logit,
                                           const int* forced, float* scores, float* best,
                                           int* chosen, float* weights) {
  const int lane = threadIdx.x & 31;
  float value[kScoresOfLane];
  float highest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kScoresOfLane; ++i) {
    const int e = 32 * i + lane;
    value[i] = e < rule.experts ? logit(e) : -INFINITY;
    highest = fmaxf(highest, value[i]);
  }
  highest = warp_max(highest);
  double sum = 0;
#pragma unroll
  for (int i = 0; i < kScoresOfLane; ++i) {
    if (32 * i + lane >= rule.experts) continue;
    value[i] = expf(value[i] - highest);
    sum += value[i];
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) sum += __shfl_xor_sync(~0u, sum, mask);
#pragma unroll
  for (int i = 0; i < kScoresOfLane; ++i) {
    const int e = 32 * i + lane;
    if (e >= rule.experts) {
      value[i] = kTaken;
      continue;
    }
    const auto score = static_cast<float>(value[i] / sum);
    scores[e] = score;
    value[i] = score >= 0 ? score : kNoNumber;
  }
  __syncwarp();

  if (rule.group_limited) {
    // Only experts of the groups with the best single expert can be chosen.
    const int size = rule.experts / rule.groups;
    for (int group = lane; group < rule.groups; group += 32) {
      float top = kNoNumber;
      for (int e = group * size; e < (group + 1) * size; ++e) top = fmaxf(top, scores[e]);
      best[group] = top;
    }
    __syncwarp();
    for (int taken = 0; taken < rule.top_groups; ++taken) {
      float top = kTaken;
      int at = rule.groups;
      for (int group = lane; group < rule.groups; group += 32) {
        if (best[group] > top) {
          top = best[group];
          at = group;
        }
      }
      at = best_index(top, at);
      if (lane == at % 32) best[at] = kTaken;
      __syncwarp();
    }
#pragma unroll
    for (int i = 0; i < kScoresOfLane; ++i) {
      const int e = 32 * i + lane;
      if (e < rule.experts && (e / size >= rule.groups || best[e / size] != kTaken)) {
        value[i] = kTaken;
      }
    }
  }

  float total = 0;
  for (int choice = 0; choice < rule.per_token; ++choice) {
    int at;
    if (forced != nullptr) {
      at = min(max(load_after_wait(forced + choice), 0), rule.experts - 1);
    } else {
      float top = kTaken;
      at = kMostExperts;
#pragma unroll
      for (int i = 0; i < kScoresOfLane; ++i) {
        if (value[i] > top) {
          top = value[i];
          at = 32 * i + lane;
        }
      }
      at = best_index(top, at);
#pragma unroll
      for (int i = 0; i < kScoresOfLane; ++i) {
        if (at == 32 * i + lane) value[i] = kTaken;
      }
    }
    const float score = scores[at];
    total += score;
    if (lane == 0) {
      chosen[choice] = at;
      weights[choice] = score;
    }
  }
  __syncwarp();
  for (int choice = lane; choice < rule.per_token; choice += 32) {
    float weight = scores[chosen[choice]];
    if (rule.normalise) weight /= total;
    weights[choice] = weight * rule.scale;
  }
}

}  // namespace lca::cuda
