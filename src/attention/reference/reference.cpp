#include "attention/reference/reference.h"

#include "attention/reference/attend.h"
#include "attention/reference/condense.h"
#include "attention/reference/heads.h"
#include "attention/reference/int8.h"
#include "core/error.h"

#include <utility>

namespace lca::reference {

Result attention(const LayerSpec& spec, const LayerWeights& weights, const Queries& queries,
                 const Entries& entries, std::span<const Range> prompts) {
  spec.validate();
  const AttentionShape& shape = spec.shape;
  const std::int64_t tokens = queries.rope.shape[0];
  if (tokens < 1) fail_input("attention needs at least one token");

  const Projections projections = read_projections(shape, weights);
  Sequence sequence = read_sequence(shape, projections, queries, entries, {0, tokens});
  const bool int8 = spec.storage == CacheStorage::int8;
  if (int8) {
    round_int8(shape, Layout(spec.settings).sink, sequence.semantic, sequence.positional);
    sequence.keys = rebuild_keys(shape, projections, sequence.semantic, sequence.positional);
  }
  Representatives representatives = condense(spec, projections, sequence, prompts);
  if (int8) round_int8(shape, 0, representatives.semantic, representatives.positional);
  Attended attended = attend(spec, rebuild_scene(shape, projections, sequence, representatives));

  Result result;
  result.tokens = tokens;
  result.groups = representatives.semantic.rows;
  result.out = std::move(attended.out.values);
  result.lse = std::move(attended.lse.values);
  result.rep_semantic = std::move(representatives.semantic.values);
  result.rep_positional = std::move(representatives.positional.values);
  result.rep_bias = std::move(representatives.bias);
  result.rep_top = std::move(representatives.top);
  result.rep_margin = std::move(representatives.margin);
  return result;
}

Result attention(const LayerSpec& spec, const LayerWeights& weights, const Queries& queries,
                 const Entries& entries, std::int64_t prompt) {
  const Range whole{0, prompt};
  return attention(spec, weights, queries, entries, std::span<const Range>(&whole, 1));
}

}  // namespace lca::reference
