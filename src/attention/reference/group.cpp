#include "attention/reference/group.h"

#include "attention/rotate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace lca::reference {
namespace {

// The row a forward pass of less precision selected. Scores it could not tell apart are told apart
// by the exact ones.
std::int64_t chosen_row(std::span<const float> chosen, const std::vector<double>& exact) {
  const float top = *std::max_element(chosen.begin(), chosen.end());
  std::size_t best = exact.size();
  for (std::size_t i = 0; i < exact.size(); ++i) {
    if (chosen[i] == top && (best == exact.size() || exact[i] > exact[best])) best = i;
  }
  return static_cast<std::int64_t>(best == exact.size() ? 0 : best);
}

}  // namespace

Range summary_queries_of(const Layout& layout, Summary mode, std::int64_t j,
                         std::span<const Range> prompts) {
  // A decoded token is a prompt of its own length 1: its end is the group's exit itself.
  std::int64_t prompt_end = 0;
  if (mode == Summary::prompt) {
    for (const Range& prompt : prompts) {
      if (prompt.contains(layout.group_exit(j))) prompt_end = prompt.end;
    }
  }
  return layout.summary_range(j, prompt_end);
}

Array summary_query(const Array& queries, const Range& summary) {
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

std::vector<double> head_scores(const LayerSpec& spec, const Array& summary, const Array& keys,
                                std::int64_t i, std::int64_t kv) {
  const std::int64_t sharing = spec.shape.heads_per_kv();
  std::vector<double> scores;
  for (std::int64_t h = kv * sharing; h < (kv + 1) * sharing; ++h) {
    scores.push_back(spec.softmax_scale() * dot(summary.at(0, h), keys.at(i, h), keys.width));
  }
  return scores;
}

double reduce_heads(HeadReduce how, const std::vector<double>& scores) {
  const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
  switch (how) {
    case HeadReduce::mean:
      return sum / static_cast<double>(scores.size());
    case HeadReduce::sum:
      return sum;
    case HeadReduce::max:
      return *std::max_element(scores.begin(), scores.end());
  }
  return 0;
}

std::vector<double> reduce_heads_slope(HeadReduce how, const std::vector<double>& scores) {
  if (how == HeadReduce::sum) return std::vector<double>(scores.size(), 1.0);
  if (how == HeadReduce::mean) {
    return std::vector<double>(scores.size(), 1.0 / static_cast<double>(scores.size()));
  }
  std::vector<double> slope(scores.size(), 0.0);
  const auto best = std::max_element(scores.begin(), scores.end());
  slope[static_cast<std::size_t>(best - scores.begin())] = 1;
  return slope;
}

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

void pool_backward(Pool how, const Weights& weights, const Array& rows, const Range& group,
                   std::int64_t kv, const double* grad, Array& rows_grad,
                   std::vector<double>& alpha_grad) {
  for (std::int64_t i = group.begin; i < group.end; ++i) {
    const auto member = static_cast<std::size_t>(i - group.begin);
    double* to = rows_grad.at(i, kv);
    switch (how) {
      case Pool::weighted:
        add_scaled(weights.alpha[member], grad, rows.width, to);
        alpha_grad[member] += dot(grad, rows.at(i, kv), rows.width);
        break;
      case Pool::mean:
        add_scaled(1.0 / static_cast<double>(group.size()), grad, rows.width, to);
        break;
      case Pool::max:
        break;  // below: each channel has a row of its own
      case Pool::select:
        if (i == group.begin + weights.argmax) add_scaled(1, grad, rows.width, to);
        break;
    }
  }
  if (how != Pool::max) return;
  for (std::int64_t d = 0; d < rows.width; ++d) {
    std::int64_t best = group.begin;
    for (std::int64_t i = group.begin; i < group.end; ++i) {
      if (rows.at(i, kv)[d] > rows.at(best, kv)[d]) best = i;
    }
    rows_grad.at(best, kv)[d] += grad[d];
  }
}

Group group_condense(const LayerSpec& spec, const Projections& projections,
                     const Sequence& sequence, std::span<const Range> prompts, std::int64_t j,
                     std::span<const float> chosen) {
  const Settings& settings = spec.settings;
  const Layout layout(settings);
  const std::int64_t kv_heads = spec.shape.kv_heads;

  Group group;
  group.rows = layout.group_range(j);
  group.queries = summary_queries_of(layout, settings.summary, j, prompts);
  group.summary = summary_query(sequence.queries, group.queries);
  group.semantic = Array(1, kv_heads, spec.shape.d_semantic());
  group.positional = Array(1, kv_heads, spec.shape.d_positional());
  for (std::int64_t kv = 0; kv < kv_heads; ++kv) {
    std::vector<double> scores;
    for (std::int64_t i = group.rows.begin; i < group.rows.end; ++i) {
      scores.push_back(reduce_heads(settings.head_reduce,
                                    head_scores(spec, group.summary, sequence.keys, i, kv)));
    }
    Weights weights = softmax(scores);
    if (!chosen.empty()) {
      weights.argmax = chosen_row(
          chosen.subspan(static_cast<std::size_t>(kv) * scores.size(), scores.size()), scores);
    }
    pool(settings.semantic_pool, weights, sequence.semantic, group.rows, kv,
         group.semantic.at(0, kv));
    pool(settings.positional_pool, weights, sequence.positional, group.rows, kv,
         group.positional.at(0, kv));
    group.scores.push_back(std::move(scores));
    group.weights.push_back(std::move(weights));
  }
  group.keys = rebuild_keys(spec.shape, projections, group.semantic, group.positional);
  return group;
}

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

}  // namespace lca::reference
