#pragma once
/// What the kernels that condense share.

#include <cuda_bf16.h>

#include <cfloat>
#include <cstdint>

#include "attention/cuda/condense/documents.h"
#include "attention/cuda/views.h"

namespace lca::cuda {

/// The arguments of both kernels.
struct CondenseJob {
  HeadRows semantic;
  HeadRows positional;
  const float* summary;
  std::int64_t summary_step;  ///< floats from one group's summary to the next; 0: one for all
  OutRows out_semantic;
  OutRows out_positional;
  float* out_bias;
  float* out_scores;
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
  Documents documents;
  std::int64_t sink;

  /// From member t of a document's group j to its representative's position (mechanism §10).
  __host__ __device__ int difference(std::int64_t j, int t) const {
    return -static_cast<int>(j * (group - 1) + t);
  }
};

/// Where a group lies: the row of its first token, and its number in its document.
struct GroupPlace {
  std::int64_t row = 0;
  std::int64_t index = 0;
};

/// The arguments of a request; throws Error where they are too large.
struct Condense;
CondenseJob condense_job(const Condense& request);

/// The kernel for everything that no fast instance covers.
void condense_plain(const CondenseJob& job, const Queue& queue);

#if defined(__CUDACC__)

/// Scores stay numbers whatever overflows.
__device__ inline float score_bounded(float score) {
  return fminf(fmaxf(score, -FLT_MAX), FLT_MAX);
}

/// Of group `group` of the call; all lanes of a warp ask for the same.
__device__ inline GroupPlace group_place(const CondenseJob& job, std::int64_t group, int lane) {
  if (job.documents.table == nullptr) return {group * job.group, job.first_group + group};
  const DocumentPlace document = document_of_group(job.documents, group, lane);
  const std::int64_t index = group - document.group;
  return {document.row + job.sink + index * job.group, index};
}

/// b_j (§5), from Σ exp(s_i − top).
__device__ inline float mass_bias(Mass mass, int group, float total, float top, float own) {
  if (mass == Mass::score) return logf(total) + (top - own);
  return mass == Mass::count ? logf(static_cast<float>(group)) : 0.0f;
}

#endif

}  // namespace lca::cuda
