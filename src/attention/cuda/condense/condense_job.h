#pragma once
/// What the kernels that condense share.

#include <cuda_bf16.h>

#include <cfloat>
#include <cstdint>

#include "attention/cuda/views.h"

namespace lca::cuda {

/// The arguments of both kernels.
struct CondenseJob {
  const bf16* semantic;
  const bf16* positional;
  const float* summary;
  std::int64_t summary_step;  ///< floats from one group's summary to the next; 0: one for all
  bf16* out_semantic;
  bf16* out_positional;
  float* out_bias;
  std::int64_t items;  ///< groups × KV heads
  int kv_heads;
  int group;
  int d_semantic;
  int d_positional;
  int score_heads;  ///< heads whose scores are compared (reduction `max`), else 1
  float factor;     ///< of scores: scale, and 1/heads for `mean`
  Pool semantic_pool;
  Pool positional_pool;
  Mass mass;
  bool semantic_scored;  ///< MLA: the latent is a part of the key
  RotationView rotation;
  std::int64_t first_group;

  /// From member t of group j (of this call) to its representative's position (mechanism §10).
  __host__ __device__ int difference(std::int64_t j, int t) const {
    return -static_cast<int>((first_group + j) * (group - 1) + t);
  }
};

/// The kernel for everything that no fast instance covers.
void condense_plain(const CondenseJob& job, const Queue& queue);

#if defined(__CUDACC__)

/// Scores stay numbers whatever overflows.
__device__ inline float score_bounded(float score) {
  return fminf(fmaxf(score, -FLT_MAX), FLT_MAX);
}

/// b_j (§5), from Σ exp(s_i − top).
__device__ inline float mass_bias(Mass mass, int group, float total, float top, float own) {
  if (mass == Mass::score) return logf(total) + (top - own);
  return mass == Mass::count ? logf(static_cast<float>(group)) : 0.0f;
}

#endif

}  // namespace lca::cuda
