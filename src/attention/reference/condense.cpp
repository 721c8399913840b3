#include "attention/reference/condense.h"

#include "attention/reference/group.h"

#include <algorithm>

namespace lca::reference {

Sequence read_sequence(const AttentionShape& shape, const Projections& projections,
                       const Queries& queries, const Entries& entries, const Range& range) {
  const bool mla = shape.form == Form::mla;
  Sequence sequence;
  sequence.queries = read_queries(shape, queries, range);
  sequence.semantic =
      read_rows(mla ? "c" : "v", entries.semantic, range, shape.kv_heads, shape.d_semantic());
  sequence.positional = read_rows(mla ? "k_rope" : "k", entries.positional, range, shape.kv_heads,
                                  shape.d_positional());
  sequence.keys = rebuild_keys(shape, projections, sequence.semantic, sequence.positional);
  return sequence;
}

Representatives condense(const LayerSpec& spec, const Projections& projections,
                         const Sequence& sequence, std::span<const Range> prompts) {
  const Layout layout(spec.settings);
  const std::int64_t groups = layout.groups(sequence.queries.rows);
  const std::int64_t kv_heads = spec.shape.kv_heads;

  Representatives all;
  all.semantic = Array(groups, kv_heads, spec.shape.d_semantic());
  all.positional = Array(groups, kv_heads, spec.shape.d_positional());
  for (std::int64_t j = 0; j < groups; ++j) {
    const Group group = group_condense(spec, projections, sequence, prompts, j);
    for (std::int64_t kv = 0; kv < kv_heads; ++kv) {
      const auto at = static_cast<std::size_t>(kv);
      const Weights& weights = group.weights[at];
      const double own_score = reduce_heads(spec.settings.head_reduce,
                                            head_scores(spec, group.summary, group.keys, 0, kv));
      all.bias.push_back(mass_bias(spec.settings.mass, group.scores[at], weights, own_score));
      all.scores.insert(all.scores.end(), group.scores[at].begin(), group.scores[at].end());
      all.top.push_back(weights.top);
      all.margin.push_back(weights.margin);
    }
    std::copy(group.semantic.values.begin(), group.semantic.values.end(), all.semantic.at(j, 0));
    // Scores and mass stay at token positions; what is kept does not have to.
    if (spec.settings.positions == Positions::token) {
      std::copy(group.positional.values.begin(), group.positional.values.end(),
                all.positional.at(j, 0));
      continue;
    }
    const Array rows = rows_at_entry(spec, layout, sequence.positional, j);
    for (std::int64_t kv = 0; kv < kv_heads; ++kv) {
      pool(spec.settings.positional_pool, group.weights[static_cast<std::size_t>(kv)], rows,
           {0, rows.rows}, kv, all.positional.at(j, kv));
    }
  }
  return all;
}

}  // namespace lca::reference
