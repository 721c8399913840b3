#pragma once
/// The steps of condensing one group (mechanism §3–§5, §10), for both directions.

#include "attention/layout.h"
#include "attention/reference/condense.h"
#include "attention/reference/heads.h"

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace lca::reference {

/// §3: the queries whose mean scores group j.
Range summary_queries_of(const Layout& layout, Summary mode, std::int64_t j,
                         std::span<const Range> prompts);

/// q̄, the mean of queries `summary`. [1,H,d_h]
Array summary_query(const Array& queries, const Range& summary);

/// §3: the scores scale · q̄_hᵀ k_i^h of one row of keys, for the query heads of KV head `kv`.
std::vector<double> head_scores(const LayerSpec& spec, const Array& summary, const Array& keys,
                                std::int64_t i, std::int64_t kv);

/// s_i: those scores as one number.
double reduce_heads(HeadReduce how, const std::vector<double>& scores);

/// ∂s_i / ∂(score of each head).
std::vector<double> reduce_heads_slope(HeadReduce how, const std::vector<double>& scores);

/// §4: α, the softmax of a group's scores, and where it is largest.
struct Weights {
  std::vector<double> alpha;
  std::int64_t argmax = 0;  ///< the lowest index on ties
  double top = 0;
  double margin = std::numeric_limits<double>::infinity();
};
Weights softmax(const std::vector<double>& scores);

/// §4: one pooled row out of rows `group` of one KV head.
void pool(Pool how, const Weights& weights, const Array& rows, const Range& group, std::int64_t kv,
          double* pooled);

/// The gradient `grad` of a pooled row: added to those of the rows, and to those of α.
void pool_backward(Pool how, const Weights& weights, const Array& rows, const Range& group,
                   std::int64_t kv, const double* grad, Array& rows_grad,
                   std::vector<double>& alpha_grad);

/// One group, condensed at token positions.
struct Group {
  Range rows;                               ///< its tokens
  Range queries;                            ///< those that score it
  Array summary;                            ///< q̄ [1,H,d_h]
  std::vector<std::vector<double>> scores;  ///< [KV][g]
  std::vector<Weights> weights;             ///< [KV]
  Array semantic;                           ///< [1,KV,d_semantic]
  Array positional;                         ///< [1,KV,d_positional]
  Array keys;                               ///< [1,H,d_h], rebuilt from the two
};

/// Group j of a sequence. `chosen` [KV,g] are the scores of a forward pass whose selected rows are
/// to be followed; empty: the reference's own.
Group group_condense(const LayerSpec& spec, const Projections& projections,
                     const Sequence& sequence, std::span<const Range> prompts, std::int64_t j,
                     std::span<const float> chosen = {});

/// §10: the positional rows of a group as representative j keeps them: rotated from their tokens'
/// positions to its own. [g,KV,d_positional]
Array rows_at_entry(const LayerSpec& spec, const Layout& layout, const Array& positional,
                    std::int64_t j);

/// §5: the bias that a representative's logit carries.
double mass_bias(Mass mass, const std::vector<double>& scores, const Weights& weights,
                 double score_of_representative);

}  // namespace lca::reference
