/// Gradients of condensation (mechanism §8): from a representative to the rows it is pooled from,
/// to the weights α and the bias, from these to the scores, and from the scores to the summary
/// queries, to the scored rows and to W_uk.

#include "attention/reference/condense.h"
#include "attention/reference/group.h"
#include "attention/rotate.h"

#include <algorithm>

namespace lca::reference {
namespace {

// The gradients of one pass over all groups; keys are folded into rows and weights at the end.
class GroupGradients {
 public:
  GroupGradients(const LayerSpec& spec, const Projections& projections, const Sequence& sequence)
      : spec_(spec), layout_(spec.settings), projections_(projections), sequence_(sequence) {
    const AttentionShape& shape = spec.shape;
    const std::int64_t tokens = sequence.queries.rows;
    grads_.queries = Array(tokens, shape.heads, shape.d_score());
    grads_.semantic = Array(tokens, shape.kv_heads, shape.d_semantic());
    grads_.positional = Array(tokens, shape.kv_heads, shape.d_positional());
    grads_.w_uk = Array(projections.w_uk.rows, projections.w_uk.columns, projections.w_uk.width);
    keys_ = Array(tokens, shape.heads, shape.d_score());
  }

  void add(std::int64_t j, const Group& group, const RepresentativeGrads& grads) {
    const AttentionShape& shape = spec_.shape;
    Array summary(1, shape.heads, shape.d_score());
    // Gradients of the representative at token positions, as the scores see it.
    Array semantic(1, shape.kv_heads, shape.d_semantic());
    Array positional(1, shape.kv_heads, shape.d_positional());
    std::copy_n(grads.semantic.at(j, 0), semantic.values.size(), semantic.values.begin());
    if (spec_.settings.mass == Mass::score) {
      Array keys(1, shape.heads, shape.d_score());
      for (std::int64_t kv = 0; kv < shape.kv_heads; ++kv) {
        // b_j = log Σ exp(s_i) − s_rep
        score_backward(group, group.keys, 0, kv, -bias_grad(grads, j, kv), summary, keys);
      }
      rebuild_keys_backward(shape, projections_, group.semantic, keys, semantic, positional,
                            grads_.w_uk);
    }
    for (std::int64_t kv = 0; kv < shape.kv_heads; ++kv) {
      add_head(j, kv, group, grads, semantic, positional, summary);
    }
    const double share = 1.0 / static_cast<double>(group.queries.size());
    for (std::int64_t t = group.queries.begin; t < group.queries.end; ++t) {
      add_scaled(share, summary.at(0, 0), shape.heads * shape.d_score(), grads_.queries.at(t, 0));
    }
  }

  CondenseGrads finish() {
    rebuild_keys_backward(spec_.shape, projections_, sequence_.semantic, keys_, grads_.semantic,
                          grads_.positional, grads_.w_uk);
    return std::move(grads_);
  }

 private:
  double bias_grad(const RepresentativeGrads& grads, std::int64_t j, std::int64_t kv) const {
    return grads.bias[static_cast<std::size_t>(j * spec_.shape.kv_heads + kv)];
  }

  // One KV head: through its pools to rows and α, and on to its scores.
  void add_head(std::int64_t j, std::int64_t kv, const Group& group,
                const RepresentativeGrads& grads, const Array& semantic, const Array& positional,
                Array& summary) {
    const Settings& settings = spec_.settings;
    const Weights& weights = group.weights[static_cast<std::size_t>(kv)];
    std::vector<double> alpha(weights.alpha.size(), 0.0);
    pool_backward(settings.semantic_pool, weights, sequence_.semantic, group.rows, kv,
                  semantic.at(0, kv), grads_.semantic, alpha);
    pool_backward(settings.positional_pool, weights, sequence_.positional, group.rows, kv,
                  positional.at(0, kv), grads_.positional, alpha);
    kept_backward(j, kv, group, grads.positional.at(j, kv), alpha);

    double mean = 0;
    for (std::size_t i = 0; i < alpha.size(); ++i) mean += weights.alpha[i] * alpha[i];
    for (std::int64_t i = group.rows.begin; i < group.rows.end; ++i) {
      const auto member = static_cast<std::size_t>(i - group.rows.begin);
      double score = weights.alpha[member] * (alpha[member] - mean);
      if (settings.mass == Mass::score) score += bias_grad(grads, j, kv) * weights.alpha[member];
      score_backward(group, sequence_.keys, i, kv, score, summary, keys_);
    }
  }

  // §10: the kept positional row is pooled from rotated rows; their gradients are rotated back.
  void kept_backward(std::int64_t j, std::int64_t kv, const Group& group, const double* grad,
                     std::vector<double>& alpha) {
    const Pool how = spec_.settings.positional_pool;
    const Weights& weights = group.weights[static_cast<std::size_t>(kv)];
    if (spec_.settings.positions == Positions::token) {
      pool_backward(how, weights, sequence_.positional, group.rows, kv, grad, grads_.positional,
                    alpha);
      return;
    }
    const Array rows = rows_at_entry(spec_, layout_, sequence_.positional, j);
    Array rows_grad(rows.rows, rows.columns, rows.width);
    pool_backward(how, weights, rows, {0, rows.rows}, kv, grad, rows_grad, alpha);
    for (std::int64_t i = group.rows.begin; i < group.rows.end; ++i) {
      double* row = rows_grad.at(i - group.rows.begin, kv);
      rotate_row(spec_.rotation, i - layout_.group_position(j), row);
      add_scaled(1, row, rows.width, grads_.positional.at(i, kv));
    }
  }

  // The gradient `grad` of the reduced score of row i of `keys`: to q̄ and to that row.
  void score_backward(const Group& group, const Array& keys, std::int64_t i, std::int64_t kv,
                      double grad, Array& summary, Array& keys_grad) const {
    const std::vector<double> slope = reduce_heads_slope(
        spec_.settings.head_reduce, head_scores(spec_, group.summary, keys, i, kv));
    for (std::size_t at = 0; at < slope.size(); ++at) {
      const std::int64_t h = kv * spec_.shape.heads_per_kv() + static_cast<std::int64_t>(at);
      const double factor = spec_.softmax_scale() * slope[at] * grad;
      add_scaled(factor, keys.at(i, h), keys.width, summary.at(0, h));
      add_scaled(factor, group.summary.at(0, h), keys.width, keys_grad.at(i, h));
    }
  }

  const LayerSpec& spec_;
  Layout layout_;
  const Projections& projections_;
  const Sequence& sequence_;
  CondenseGrads grads_;
  Array keys_;  // [n,H,d_h]
};

}  // namespace

CondenseGrads condense_backward(const LayerSpec& spec, const Projections& projections,
                                const Sequence& sequence, std::span<const Range> prompts,
                                std::span<const float> scores, const RepresentativeGrads& grads) {
  GroupGradients gradients(spec, projections, sequence);
  const auto per_group = static_cast<std::size_t>(spec.shape.kv_heads * spec.settings.group);
  for (std::int64_t j = 0; j < grads.semantic.rows; ++j) {
    const std::span<const float> chosen =
        scores.empty() ? scores
                       : scores.subspan(static_cast<std::size_t>(j) * per_group, per_group);
    gradients.add(j, group_condense(spec, projections, sequence, prompts, j, chosen), grads);
  }
  return gradients.finish();
}

}  // namespace lca::reference
