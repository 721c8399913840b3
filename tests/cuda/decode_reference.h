#pragma once
/// One session of one layer in double precision: what a decode step must give (mechanism §2–§5),
/// with MLA in its absorbed form. Inputs are bf16, so both sides compute from the same numbers.

#include <lca/settings.h>
#include <lca/shape.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "attention/layout.h"
#include "attention/rotate.h"
#include "cuda/support.h"

namespace lca::test {

/// Representatives for one KV head, as made or as read back.
struct DecodedGroup {
  std::vector<double> semantic;
  std::vector<double> positional;
  double bias = 0;
  bool tie = false;  ///< the two best scores are so near that either may be selected
};

class DecodeSession {
 public:
  /// Positions are those of entries where the rotation has frequencies.
  DecodeSession(const AttentionShape& shape, const Settings& settings, const Rotation& rotation,
                double scale, std::int64_t tokens, Random& random, bool outliers)
      : shape_(shape), settings_(settings), layout_(settings), rotation_(rotation), scale_(scale) {
    const std::int64_t kv = shape.kv_heads;
    semantic = random_bf16(random, tokens * kv * shape.d_semantic());
    positional = random_bf16(random, tokens * kv * shape.d_positional());
    unrounded = random_float(random, tokens * shape.heads * d_query(), 0.6);
    for (float& value : unrounded) {
      queries.push_back(bf16_of(double_of(value)));
      // GQA's queries are bf16; MLA's are absorbed in float32, and its summaries are of those.
      if (shape.form == Form::gqa) value = static_cast<float>(double_of(queries.back()));
    }
    if (outliers) {
      for (std::int64_t row = 0; row < tokens * kv; ++row) {
        for (std::int64_t c = 1; c < shape.d_semantic(); c += 97) {
          bf16& value = semantic[static_cast<std::size_t>(row * shape.d_semantic() + c)];
          value = bf16_of(20 * double_of(value));
        }
      }
    }
  }

  std::vector<bf16> semantic;        ///< [tokens][KV][d_semantic]
  std::vector<bf16> positional;      ///< [tokens][KV][d_positional]
  std::vector<bf16> queries;         ///< [tokens][H][d_query]
  std::vector<float> unrounded;      ///< the same before they were rounded to bf16
  std::vector<DecodedGroup> groups;  ///< [m][KV], as readers see them

  std::int64_t d_query() const {
    return shape_.form == Form::mla ? shape_.d_latent + shape_.d_rope : shape_.d_rope;
  }
  DecodedGroup& group(std::int64_t j, std::int64_t kv) {
    return groups[static_cast<std::size_t>(j * shape_.kv_heads + kv)];
  }

  /// A query as the summary keeps it: summed over the heads that share a KV head, or head by head.
  std::vector<double> summary_row(std::int64_t t, std::int64_t kv) const {
    const std::int64_t sharing = shape_.heads_per_kv();
    const bool apart = settings_.head_reduce == HeadReduce::max;
    std::vector<double> row(static_cast<std::size_t>((apart ? sharing : 1) * d_query()));
    for (std::int64_t h = 0; h < sharing; ++h) {
      for (std::int64_t d = 0; d < d_query(); ++d) {
        row[static_cast<std::size_t>((apart ? h * d_query() : 0) + d)] +=
            double_of(unrounded[static_cast<std::size_t>(
                (t * shape_.heads + kv * sharing + h) * d_query() + d)]);
      }
    }
    return row;
  }

  /// Group j as it leaves the window.
  DecodedGroup condense(std::int64_t j, std::int64_t kv) const {
    const Range range = layout_.summary_range(j, 0);
    std::vector<double> mean = summary_row(range.begin, kv);
    for (std::int64_t t = range.begin + 1; t < range.end; ++t) {
      const std::vector<double> row = summary_row(t, kv);
      for (std::size_t d = 0; d < mean.size(); ++d) mean[d] += row[d];
    }
    for (double& value : mean) value /= static_cast<double>(range.size());

    const Range tokens = layout_.group_range(j);
    std::vector<double> scores;
    for (std::int64_t i = tokens.begin; i < tokens.end; ++i) {
      scores.push_back(score(mean, row_of(semantic, i, kv, shape_.d_semantic()),
                             row_of(positional, i, kv, shape_.d_positional())));
    }
    const auto best = std::max_element(scores.begin(), scores.end());
    double sum = 0;
    double second = -std::numeric_limits<double>::infinity();
    for (auto s = scores.begin(); s != scores.end(); ++s) {
      sum += std::exp(*s - *best);
      if (s != best) second = std::max(second, *s);
    }
    DecodedGroup made;
    made.tie = *best - second < 1e-3 * std::max(1.0, std::abs(*best));
    const auto pool = [&](Pool how, const std::vector<bf16>& from, std::int64_t width,
                          bool rotated = false) {
      std::vector<std::vector<double>> rows;
      for (std::int64_t i = tokens.begin; i < tokens.end; ++i) {
        rows.push_back(row_of(from, i, kv, width));
        if (rotated) rotate_row(rotation_, layout_.group_position(j) - i, rows.back().data());
      }
      std::vector<double> pooled(static_cast<std::size_t>(width));
      for (std::int64_t d = 0; d < width; ++d) {
        double weighted = 0;
        double total = 0;
        double largest = -std::numeric_limits<double>::infinity();
        for (std::size_t i = 0; i < scores.size(); ++i) {
          const double value = rows[i][static_cast<std::size_t>(d)];
          weighted += std::exp(scores[i] - *best) / sum * value;
          total += value;
          largest = std::max(largest, value);
        }
        const double selected =
            rows[static_cast<std::size_t>(best - scores.begin())][static_cast<std::size_t>(d)];
        pooled[static_cast<std::size_t>(d)] = how == Pool::weighted ? weighted
                                              : how == Pool::mean
                                                  ? total / static_cast<double>(scores.size())
                                              : how == Pool::max ? largest
                                                                 : selected;
      }
      return pooled;
    };
    made.semantic = pool(settings_.semantic_pool, semantic, shape_.d_semantic());
    made.positional = pool(settings_.positional_pool, positional, shape_.d_positional());
    if (settings_.mass == Mass::count) made.bias = std::log(static_cast<double>(settings_.group));
    if (settings_.mass == Mass::score) {
      made.bias = std::log(sum) + *best - score(mean, made.semantic, made.positional);
    }
    // Scores and mass stay at token positions.
    if (!rotation_.frequencies.empty()) {
      made.positional = pool(settings_.positional_pool, positional, shape_.d_positional(), true);
    }
    return made;
  }

  /// Output [H][d_semantic] and lse [H] of the query at position t.
  void attend(std::int64_t t, std::vector<double>& out, std::vector<double>& lse) {
    const Visible seen = layout_.visible(t);
    const auto width = static_cast<std::size_t>(shape_.d_semantic());
    out.assign(static_cast<std::size_t>(shape_.heads) * width, 0.0);
    lse.assign(static_cast<std::size_t>(shape_.heads), 0.0);
    for (std::int64_t kv = 0; kv < shape_.kv_heads; ++kv) {
      std::vector<std::vector<double>> keys, values;
      std::vector<double> biases;
      for (std::int64_t j = 0; j < seen.groups; ++j) {
        keys.push_back(key_of(group(j, kv).semantic, group(j, kv).positional));
        values.push_back(group(j, kv).semantic);
        biases.push_back(group(j, kv).bias);
      }
      const auto exact = [&](const Range& range) {
        for (std::int64_t i = range.begin; i < range.end; ++i) {
          values.push_back(row_of(semantic, i, kv, shape_.d_semantic()));
          keys.push_back(key_of(values.back(), row_of(positional, i, kv, shape_.d_positional())));
          biases.push_back(0);
        }
      };
      exact(seen.sink);
      exact(seen.window);
      const auto far_count = static_cast<std::size_t>(seen.groups + seen.sink.size());
      for (std::int64_t h = kv * shape_.heads_per_kv(); h < (kv + 1) * shape_.heads_per_kv(); ++h) {
        std::vector<double> near;
        for (std::int64_t d = 0; d < d_query(); ++d) near.push_back(query(t, h, d));
        std::vector<double> far = near;
        if (!rotation_.frequencies.empty()) {
          rotate_row(rotation_, layout_.entry_position(t) - t,
                     far.data() + d_query() - shape_.d_positional());
        }
        std::vector<double> logits;
        for (std::size_t i = 0; i < keys.size(); ++i) {
          const std::vector<double>& form = i < far_count ? far : near;
          double dot = 0;
          for (std::size_t d = 0; d < form.size(); ++d) dot += form[d] * keys[i][d];
          logits.push_back(scale_ * dot + biases[i]);
        }
        const double top = *std::max_element(logits.begin(), logits.end());
        double sum = 0;
        for (const double logit : logits) sum += std::exp(logit - top);
        lse[static_cast<std::size_t>(h)] = top + std::log(sum);
        double* row = out.data() + static_cast<std::size_t>(h) * width;
        for (std::size_t i = 0; i < keys.size(); ++i) {
          const double weight = std::exp(logits[i] - top) / sum;
          for (std::size_t d = 0; d < width; ++d) row[d] += weight * values[i][d];
        }
      }
    }
  }

 private:
  double at(const std::vector<bf16>& from, std::int64_t i, std::int64_t kv, std::int64_t d,
            std::int64_t width) const {
    return double_of(from[static_cast<std::size_t>((i * shape_.kv_heads + kv) * width + d)]);
  }
  std::vector<double> row_of(const std::vector<bf16>& from, std::int64_t i, std::int64_t kv,
                             std::int64_t width) const {
    std::vector<double> row;
    for (std::int64_t d = 0; d < width; ++d) row.push_back(at(from, i, kv, d, width));
    return row;
  }
  double query(std::int64_t t, std::int64_t h, std::int64_t d) const {
    return double_of(queries[static_cast<std::size_t>((t * shape_.heads + h) * d_query() + d)]);
  }
  std::vector<double> key_of(const std::vector<double>& of_semantic,
                             const std::vector<double>& of_positional) const {
    if (shape_.form == Form::gqa) return of_positional;
    std::vector<double> key = of_semantic;
    key.insert(key.end(), of_positional.begin(), of_positional.end());
    return key;
  }
  /// The summary's score of an entry, reduced over heads.
  double score(const std::vector<double>& mean, const std::vector<double>& of_semantic,
               const std::vector<double>& of_positional) const {
    const std::vector<double> key = key_of(of_semantic, of_positional);
    double best = -std::numeric_limits<double>::infinity();
    for (std::size_t h = 0; h < mean.size() / key.size(); ++h) {
      double dot = 0;
      for (std::size_t d = 0; d < key.size(); ++d) dot += mean[h * key.size() + d] * key[d];
      best = std::max(best, scale_ * dot);
    }
    return settings_.head_reduce == HeadReduce::mean
               ? best / static_cast<double>(shape_.heads_per_kv())
               : best;
  }

  AttentionShape shape_;
  Settings settings_;
  Layout layout_;
  Rotation rotation_;
  double scale_;
};

}  // namespace lca::test
