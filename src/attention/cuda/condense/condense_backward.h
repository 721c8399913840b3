#pragma once
/// Gradients of condensation on the GPU (mechanism §8): from representatives to the rows they are
/// pooled from and to the summaries, and from the means of queries to the queries. Sums have a
/// fixed order: gradients are the same bits in every run.

#include "attention/cuda/condense/condense.h"

namespace lca::cuda {

/// `forward.out_scores` are those that the forward pass wrote; its other outputs are not used.
struct CondenseBackward {
  Condense forward;
  HeadRows grad_semantic;    ///< [count][KV][d_semantic], of the representatives
  HeadRows grad_positional;  ///< [count][KV][d_positional], at the position they are kept at
  const float* grad_bias = nullptr;  ///< [count][KV]; null: 0. Read where mass is `score`
  OutRows semantic;                  ///< [rows][KV][d_semantic], rows as in forward.semantic
  OutRows positional;                ///< [rows][KV][d_positional]
  bool accumulate = false;           ///< adds to what is in `semantic` and `positional`
  /// Gradients of the summary, one row for each group, per head where the reduction is `max`:
  /// MLA's part in latent space [count][1 or H][d_c] bf16, as products read it, and the positional
  /// part [count][KV or H][d_positional] float. May be null.
  bf16* summary_semantic = nullptr;
  float* summary_positional = nullptr;
};

/// Writes the rows of all groups; other rows are left as they are.
void condense_backward(const CondenseBackward& request, const Queue& queue);
/// condense_sums of this pass.
bool condense_backward_sums(const CondenseBackward& request);

/// Zeros in the rows of `tokens` tokens that belong to no group; `groups` are all groups of the
/// only document, where there is no table. Each tensor may be without data.
void gaps_clear(const Layout& layout, const Documents& documents, std::int64_t tokens,
                std::int64_t groups, std::int64_t heads, const OutRows& semantic,
                const OutRows& positional, const Queue& queue);

/// Adds up rows in order: sum[width] of values [rows][width].
void rows_sum(const bf16* values, std::int64_t rows, std::int64_t width, bf16* sum,
              const Queue& queue);
void rows_sum(const float* values, std::int64_t rows, std::int64_t width, float* sum,
              const Queue& queue);

/// From gradients of query means to those of all queries: each query gathers them from the groups
/// that it scores, and gets 0 where there are none.
struct QueryGrads {
  Layout layout;
  std::int64_t prompt = 0;  ///< > 0: one mean, of the prompt's last queries
  Documents documents;
  std::int64_t tokens = 0;
  std::int64_t groups = 0;  ///< of the only document, where there is no table
  std::int64_t heads = 0;
  std::int64_t rope_heads = 0;  ///< KV; H where the reduction is `max`
  const bf16* nope = nullptr;   ///< MLA [groups][H][d_n]
  const float* rope = nullptr;  ///< [groups][rope_heads][d_rope]
  OutRows q_nope, q_rope;       ///< [tokens][H][…]; each may be without data
  bool accumulate = false;
};
void query_grads(const QueryGrads& request, const Queue& queue);

}  // namespace lca::cuda
