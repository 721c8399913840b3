#include "attention/reference/backward.h"

#include <algorithm>
#include <utility>

namespace lca::reference {
namespace {

void add_array(const Array& from, Array& to) {
  add_scaled(1, from.values.data(), static_cast<std::int64_t>(from.values.size()),
             to.values.data());
}

// Stores a document's rows among those of all documents.
void place_rows(const Array& from, std::int64_t first, Array& to) {
  if (from.values.empty()) return;
  std::copy(from.values.begin(), from.values.end(), to.at(first, 0));
}

// One document: attention, the rebuilt keys and values, then condensation.
struct DocumentGrads {
  Array queries;  // [n,H,d_h]
  Array semantic, positional;
};

DocumentGrads document_backward(const LayerSpec& spec, const Projections& projections,
                                const Sequence& sequence, const Array& out_grad, Array& w_uk,
                                Array& w_uv) {
  const AttentionShape& shape = spec.shape;
  const Range prompt{0, sequence.queries.rows};
  const std::span<const Range> prompts(&prompt, 1);
  const Representatives representatives = condense(spec, projections, sequence, prompts);
  const Scene scene = rebuild_scene(shape, projections, sequence, representatives);
  Scene grads = attend_backward(spec, scene, out_grad);

  const auto rebuild_backward = [&](const Array& semantic, const HeadRows& rows,
                                    Array& semantic_grad, Array& positional_grad) {
    rebuild_keys_backward(shape, projections, semantic, rows.keys, semantic_grad, positional_grad,
                          w_uk);
    rebuild_values_backward(shape, projections, semantic, rows.values, semantic_grad, w_uv);
  };
  RepresentativeGrads of_groups{
      Array(representatives.semantic.rows, shape.kv_heads, shape.d_semantic()),
      Array(representatives.semantic.rows, shape.kv_heads, shape.d_positional()),
      std::move(grads.bias)};
  rebuild_backward(representatives.semantic, grads.groups, of_groups.semantic,
                   of_groups.positional);

  CondenseGrads all = condense_backward(spec, projections, sequence, prompts, {}, of_groups);
  add_array(all.w_uk, w_uk);
  add_array(grads.queries, all.queries);
  rebuild_backward(sequence.semantic, grads.exact, all.semantic, all.positional);
  return {std::move(all.queries), std::move(all.semantic), std::move(all.positional)};
}

}  // namespace

Gradients attention_backward(const OperatorSpec& spec, const LayerWeights& weights,
                             const Queries& queries, const Entries& entries,
                             const ConstTensor& out_grad) {
  spec.validate();
  const AttentionShape& shape = spec.layer.shape;
  const std::int64_t tokens = spec.tokens();
  const Projections projections = read_projections(shape, weights);
  Gradients all{Array(tokens, shape.heads, shape.d_nope),
                Array(tokens, shape.heads, shape.d_rope),
                Array(tokens, shape.kv_heads, shape.d_semantic()),
                Array(tokens, shape.kv_heads, shape.d_positional()),
                Array(projections.w_uk.rows, projections.w_uk.columns, projections.w_uk.width),
                Array(projections.w_uv.rows, projections.w_uv.columns, projections.w_uv.width)};
  for (std::size_t d = 0; d + 1 < spec.starts.size(); ++d) {
    const Range range{spec.starts[d], spec.starts[d + 1]};
    const Sequence sequence = read_sequence(shape, projections, queries, entries, range);
    const Array grad =
        read_rows("the gradient of out", out_grad, range, shape.heads, shape.d_value);
    const DocumentGrads part =
        document_backward(spec.layer, projections, sequence, grad, all.w_uk, all.w_uv);
    const HeadParts of_queries = heads_split(part.queries, shape.d_nope, shape.heads);
    place_rows(of_queries.nope, range.begin, all.q_nope);
    place_rows(of_queries.rope, range.begin, all.q_rope);
    place_rows(part.semantic, range.begin, all.semantic);
    place_rows(part.positional, range.begin, all.positional);
  }
  return all;
}

}  // namespace lca::reference
