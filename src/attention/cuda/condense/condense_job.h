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
  HeadRows queries;  ///< where it has data, the summary is made of them
  Layout layout;
  int sharing;  ///< query heads for each KV head

  /// From member t of a document's group j to its representative's position (mechanism §10).
  __host__ __device__ int difference(std::int64_t j, int t) const {
    return -static_cast<int>(j * (group - 1) + t);
  }
};

/// Where a group lies: the row of its first token, its number in its document, and the row of the
/// document's first query.
struct GroupPlace {
  std::int64_t row = 0;
  std::int64_t index = 0;
  std::int64_t document = 0;
};

/// The arguments of a request; throws Error where they are too large.
struct Condense;
CondenseJob condense_job(const Condense& request);

/// Whether a kernel that knows these widths and groups could sum up the request's queries itself.
bool queries_sum(const Condense& request);

/// Whether rows can be read 16 bytes at a time.
template <typename Rows>
bool rows_fit_vectors(const Rows& rows) {
  return reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.row_stride % 8 == 0 &&
         rows.head_stride % 8 == 0;
}

/// Widths, groups and head reductions that fast kernels have instances for.
inline bool widths_known(const CondenseJob& job) {
  if (job.score_heads != 1) return false;
  if (job.group != 4 && job.group != 8 && job.group != 16 && job.group != 32) return false;
  const int s = job.d_semantic;
  const int p = job.d_positional;
  if (job.semantic_scored) return (s == 512 && p == 64) || (s == 256 && p == 32);
  return s == p && (s == 64 || s == 128);
}

/// The kernel for everything that no fast instance covers.
void condense_plain(const CondenseJob& job, const Queue& queue);

#if defined(__CUDACC__)

/// Scores stay numbers whatever overflows.
__device__ inline float score_bounded(float score) {
  return fminf(fmaxf(score, -FLT_MAX), FLT_MAX);
}

/// Of group `group` of the call; all lanes of a warp ask for the same.
__device__ inline GroupPlace group_place(const CondenseJob& job, std::int64_t group, int lane) {
  if (job.documents.table == nullptr) return {group * job.group, job.first_group + group, 0};
  const DocumentPlace document = document_of_group(job.documents, group, lane);
  const std::int64_t index = group - document.group;
  return {document.row + job.sink + index * job.group, index, document.row};
}

/// b_j (§5), from Σ exp(s_i − top).
__device__ inline float mass_bias(Mass mass, int group, float total, float top, float own) {
  if (mass == Mass::score) return logf(total) + (top - own);
  return mass == Mass::count ? logf(static_cast<float>(group)) : 0.0f;
}

#endif

}  // namespace lca::cuda
