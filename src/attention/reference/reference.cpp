#include "attention/reference/reference.h"

#include "attention/reference/condense.h"
#include "attention/reference/heads.h"
#include "attention/rotate.h"
#include "core/error.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lca::reference {
namespace {

// One thing a query sees: its logit and its value.
struct Seen {
  double logit;
  const double* value;
};

// The softmax of the logits over the values; returns the log of its denominator.
double softmax_mean(const std::vector<Seen>& seen, std::int64_t width, double* out) {
  double top = seen.front().logit;
  for (const Seen& one : seen) top = std::max(top, one.logit);
  double sum = 0;
  for (const Seen& one : seen) {
    const double weight = std::exp(one.logit - top);
    sum += weight;
    for (std::int64_t d = 0; d < width; ++d) out[d] += weight * one.value[d];
  }
  for (std::int64_t d = 0; d < width; ++d) out[d] /= sum;
  return top + std::log(sum);
}

// §10: a query as sink and representatives see it: rotated from t to its entry's position.
std::vector<double> query_at_entry(const LayerSpec& spec, const Layout& layout, const double* query,
                                   std::int64_t t) {
  std::vector<double> rotated(query, query + spec.shape.d_score());
  if (spec.settings.positions == Positions::entry) {
    rotate_row(spec.rotation, layout.entry_position(t) - t, rotated.data() + spec.shape.d_nope);
  }
  return rotated;
}

}  // namespace

Result attention(const LayerSpec& spec, const LayerWeights& weights, const Queries& queries,
                 const Entries& entries, std::span<const Range> prompts) {
  spec.validate();
  const AttentionShape& shape = spec.shape;
  const std::int64_t tokens = queries.rope.shape[0];
  if (tokens < 1) fail_input("attention needs at least one token");

  const Projections projections = read_projections(shape, weights);
  Sequence sequence;
  sequence.queries = read_queries(shape, queries, tokens);
  sequence.semantic = read(shape.form == Form::mla ? "c" : "v", entries.semantic, tokens,
                           shape.kv_heads, shape.d_semantic());
  sequence.positional = read(shape.form == Form::mla ? "k_rope" : "k", entries.positional, tokens,
                             shape.kv_heads, shape.d_positional());
  sequence.keys = rebuild_keys(shape, projections, sequence.semantic, sequence.positional);
  const Array values = rebuild_values(shape, projections, sequence.semantic);

  Representatives representatives = condense(spec, projections, sequence, prompts);
  const Array rep_keys =
      rebuild_keys(shape, projections, representatives.semantic, representatives.positional);
  const Array rep_values = rebuild_values(shape, projections, representatives.semantic);

  // §2: query t attends to representatives j < m(t+1) and to tokens of local(t+1).
  const Layout layout(spec.settings);
  const double scale = spec.softmax_scale();
  Array out(tokens, shape.heads, shape.d_value);
  Array lse(tokens, shape.heads, 1);
  std::vector<Seen> seen;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const Visible visible = layout.visible(t);
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      const double* query = sequence.queries.at(t, h);
      const std::vector<double> far = query_at_entry(spec, layout, query, t);
      seen.clear();
      for (std::int64_t j = 0; j < visible.groups; ++j) {
        const std::int64_t kv = h / shape.heads_per_kv();
        const double bias = representatives.bias[static_cast<std::size_t>(j * shape.kv_heads + kv)];
        const double logit = scale * dot(far.data(), rep_keys.at(j, h), rep_keys.width) + bias;
        seen.push_back({logit, rep_values.at(j, h)});
      }
      const auto see_exact = [&](const Range& exact, const double* from) {
        for (std::int64_t i = exact.begin; i < exact.end; ++i) {
          const double logit = scale * dot(from, sequence.keys.at(i, h), sequence.keys.width);
          seen.push_back({logit, values.at(i, h)});
        }
      };
      see_exact(visible.sink, far.data());
      see_exact(visible.window, query);
      *lse.at(t, h) = softmax_mean(seen, shape.d_value, out.at(t, h));
    }
  }

  Result result;
  result.tokens = tokens;
  result.groups = representatives.semantic.rows;
  result.out = std::move(out.values);
  result.lse = std::move(lse.values);
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
