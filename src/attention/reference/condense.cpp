#include "attention/reference/condense.h"

#include "attention/rotate.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lca::reference {
namespace {

// §3: q̄, the mean of the queries that score group j. [1,H,d_h]
Array summary_query(const Layout& layout, Summary mode, const Array& queries, std::int64_t j,
                    std::span<const Range> prompts) {
  // A decoded token is a prompt of its own length 1: its end is the group's exit itself.
  std::int64_t prompt_end = 0;
  if (mode == Summary::prompt) {
    for (const Range& prompt : prompts) {
      if (prompt.contains(layout.group_exit(j))) prompt_end = prompt.end;
    }
  }
  const Range summary = layout.summary_range(j, prompt_end);

  Array mean(1, queries.columns, queries.width);
  for (std::int64_t h = 0; h < queries.columns; ++h) {
    double* sum = mean.at(0, h);
    for (std::int64_t t = summary.begin; t < summary.end; ++t) {
      for (std::int64_t d = 0; d < queries.width; ++d) sum[d] += queries.at(t, h)[d];
    }
    for (std::int64_t d = 0; d < queries.width; ++d) sum[d] /= static_cast<double>(summary.size());
  }
  return mean;
}

// §3: s_i, the scores scale · q̄_hᵀ k_i^h of one row of keys, reduced over the query heads that
// share KV head `kv`.
double reduced_score(const LayerSpec& spec, const Array& summary, const Array& keys, std::int64_t i,
                     std::int64_t kv) {
  const std::int64_t sharing = spec.shape.heads_per_kv();
  double sum = 0;
  double best = -std::numeric_limits<double>::infinity();
  for (std::int64_t h = kv * sharing; h < (kv + 1) * sharing; ++h) {
    const double score = spec.softmax_scale() * dot(summary.at(0, h), keys.at(i, h), keys.width);
    sum += score;
    best = std::max(best, score);
  }
  switch (spec.settings.head_reduce) {
    case HeadReduce::mean:
      return sum / static_cast<double>(sharing);
    case HeadReduce::sum:
      return sum;
    case HeadReduce::max:
      return best;
  }
  return 0;
}

// §4: α, the softmax of a group's scores, and where it is largest.
struct Weights {
  std::vector<double> alpha;
  std::int64_t argmax = 0;  // the lowest index on ties
  double top = 0;
  double margin = std::numeric_limits<double>::infinity();
};

Weights softmax(const std::vector<double>& scores) {
  Weights weights;
  const auto best = std::max_element(scores.begin(), scores.end());  // the first of equals
  weights.argmax = best - scores.begin();
  weights.top = *best;
  double sum = 0;
  for (auto score = scores.begin(); score != scores.end(); ++score) {
    weights.alpha.push_back(std::exp(*score - weights.top));
    sum += weights.alpha.back();
    if (score != best) weights.margin = std::min(weights.margin, weights.top - *score);
  }
  for (double& alpha : weights.alpha) alpha /= sum;
  return weights;
}

// §4: one pooled row out of rows `group` of one KV head.
void pool(Pool how, const Weights& weights, const Array& rows, const Range& group, std::int64_t kv,
          double* pooled) {
  for (std::int64_t d = 0; d < rows.width; ++d) {
    double weighted = 0;
    double sum = 0;
    double largest = -std::numeric_limits<double>::infinity();
    for (std::int64_t i = group.begin; i < group.end; ++i) {
      const double value = rows.at(i, kv)[d];
      weighted += weights.alpha[static_cast<std::size_t>(i - group.begin)] * value;
      sum += value;
      largest = std::max(largest, value);
    }
    switch (how) {
      case Pool::weighted:
        pooled[d] = weighted;
        break;
      case Pool::mean:
        pooled[d] = sum / static_cast<double>(group.size());
        break;
      case Pool::max:
        pooled[d] = largest;
        break;
      case Pool::select:
        pooled[d] = rows.at(group.begin + weights.argmax, kv)[d];
        break;
    }
  }
}

// §10: the positional rows of a group as representative j keeps them: rotated from their tokens'
// positions to its own. [g,KV,d_positional]
Array rows_at_entry(const LayerSpec& spec, const Layout& layout, const Array& positional,
                    std::int64_t j) {
  const Range group = layout.group_range(j);
  Array rows(group.size(), positional.columns, positional.width);
  for (std::int64_t i = group.begin; i < group.end; ++i) {
    for (std::int64_t kv = 0; kv < positional.columns; ++kv) {
      double* row = rows.at(i - group.begin, kv);
      std::copy_n(positional.at(i, kv), positional.width, row);
      rotate_row(spec.rotation, layout.group_position(j) - i, row);
    }
  }
  return rows;
}

// §5: the bias that a representative's logit carries.
double mass_bias(Mass mass, const std::vector<double>& scores, const Weights& weights,
                 double score_of_representative) {
  switch (mass) {
    case Mass::none:
      return 0;
    case Mass::count:
      return std::log(static_cast<double>(scores.size()));
    case Mass::score: {
      double sum = 0;
      for (double score : scores) sum += std::exp(score - weights.top);
      return std::log(sum) + weights.top - score_of_representative;
    }
  }
  return 0;
}

}  // namespace

Representatives condense(const LayerSpec& spec, const Projections& projections,
                         const Sequence& sequence, std::span<const Range> prompts) {
  const Settings& settings = spec.settings;
  const Layout layout(settings);
  const std::int64_t groups = layout.groups(sequence.queries.rows);
  const std::int64_t kv_heads = spec.shape.kv_heads;

  Representatives all;
  all.semantic = Array(groups, kv_heads, spec.shape.d_semantic());
  all.positional = Array(groups, kv_heads, spec.shape.d_positional());
  for (std::int64_t j = 0; j < groups; ++j) {
    const Range group = layout.group_range(j);
    const Array summary = summary_query(layout, settings.summary, sequence.queries, j, prompts);

    // Rebuilt keys of a representative need its pooled rows for all KV heads, so its own score
    // comes last.
    std::vector<std::vector<double>> scores(static_cast<std::size_t>(kv_heads));
    std::vector<Weights> weights;
    Array semantic(1, kv_heads, all.semantic.width);
    Array positional(1, kv_heads, all.positional.width);
    for (std::int64_t kv = 0; kv < kv_heads; ++kv) {
      std::vector<double>& of_head = scores[static_cast<std::size_t>(kv)];
      for (std::int64_t i = group.begin; i < group.end; ++i) {
        of_head.push_back(reduced_score(spec, summary, sequence.keys, i, kv));
      }
      weights.push_back(softmax(of_head));
      pool(settings.semantic_pool, weights.back(), sequence.semantic, group, kv,
           semantic.at(0, kv));
      pool(settings.positional_pool, weights.back(), sequence.positional, group, kv,
           positional.at(0, kv));
    }

    const Array keys = rebuild_keys(spec.shape, projections, semantic, positional);
    for (std::int64_t kv = 0; kv < kv_heads; ++kv) {
      const auto at = static_cast<std::size_t>(kv);
      const double own_score = reduced_score(spec, summary, keys, 0, kv);
      all.bias.push_back(mass_bias(settings.mass, scores[at], weights[at], own_score));
      all.top.push_back(weights[at].top);
      all.margin.push_back(weights[at].margin);
    }
    // Scores and mass stay at token positions; what is kept does not have to.
    if (settings.positions == Positions::entry) {
      const Array rows = rows_at_entry(spec, layout, sequence.positional, j);
      for (std::int64_t kv = 0; kv < kv_heads; ++kv) {
        pool(settings.positional_pool, weights[static_cast<std::size_t>(kv)], rows,
             {0, group.size()}, kv, positional.at(0, kv));
      }
    }
    std::copy(semantic.values.begin(), semantic.values.end(), all.semantic.at(j, 0));
    std::copy(positional.values.begin(), positional.values.end(), all.positional.at(j, 0));
  }
  return all;
}

}  // namespace lca::reference
