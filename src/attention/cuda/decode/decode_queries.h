#pragma once
/// What a decode step makes of its queries before it attends.

#include "attention/cuda/views.h"

namespace lca::cuda {

/// Completes the absorbed queries and their summaries, and keeps the raw queries for the sequence's
/// next prompt.
struct StepQueries {
  AttentionShape shape;
  HeadReduce reduce = HeadReduce::mean;
  bool summarise = false;                 ///< MLA with method lca
  const SessionView* sessions = nullptr;  ///< [batch]; raw queries go to their recent_…
  int batch = 0;
  const bf16* nope = nullptr;  ///< MLA [batch][H][d_n]
  const bf16* rope = nullptr;  ///< [batch][H][d_r]
  /// MLA [batch][H][d_c + d_r]: the RoPE part is written; with reduction `max` the latent part too.
  bf16* absorbed = nullptr;
  /// MLA [batch][d_c + d_r], or [batch][H][d_c + d_r] with `max`: the latent part is read where it
  /// is to be rounded, the RoPE part is written.
  float* summary = nullptr;
  /// MLA [batch][H][d_c + d_r]: latent parts in float32, to be rounded into `absorbed` and added up
  /// into `summary`; null where both have them.
  const float* each = nullptr;
  std::int64_t recent = 0;  ///< rows of raw queries: query t goes to row t % recent
};
void step_queries(const StepQueries& job, const Queue& queue);

}  // namespace lca::cuda
