#pragma once
/// What the tests of condensation share.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "attention/cuda/condense/condense.h"
#include "cuda/support.h"

namespace lca::test {

inline constexpr std::array kReduces = {HeadReduce::mean, HeadReduce::sum, HeadReduce::max};

/// An index as containers take it.
inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

inline std::string shape_text(const AttentionShape& shape) {
  return (shape.form == Form::mla ? "mla H " : "gqa H ") + std::to_string(shape.heads) + " KV " +
         std::to_string(shape.kv_heads) + " d_n " + std::to_string(shape.d_nope) + " d_r " +
         std::to_string(shape.d_rope) + " d_c " + std::to_string(shape.d_latent) + " d_v " +
         std::to_string(shape.d_value);
}

inline Layout layout_of(std::int64_t group, std::int64_t window, std::int64_t sink,
                        std::int64_t queries) {
  Settings settings;
  settings.group = group;
  settings.window = window;
  settings.sink = sink;
  settings.summary_queries = queries;
  return Layout(settings);
}

/// Heads that a summary keeps apart, per KV head.
inline std::int64_t kept_heads(const AttentionShape& shape, HeadReduce reduce) {
  return reduce == HeadReduce::max ? shape.heads_per_kv() : 1;
}

/// Compares value by value with |Δ| ≤ tolerance · (1 + |expected|); the first that is not, NaN
/// included, is named.
template <typename T>
::testing::AssertionResult values_near(const std::vector<T>& got, const std::vector<double>& want,
                                       double tolerance) {
  if (got.size() < want.size()) return ::testing::AssertionFailure() << "too few values";
  double worst = 0;
  std::int64_t wrong = 0;
  std::size_t first = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double error = std::fabs(double_of(got[i]) - want[i]) / (1 + std::fabs(want[i]));
    if (!(error <= tolerance)) {
      if (wrong++ == 0) first = i;
    }
    worst = std::fmax(worst, error);  // ignores NaN, which is counted above
  }
  if (wrong == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << wrong << " of " << want.size() << " values are wrong, worst error " << worst
         << "; first at " << first << ": got " << double_of(got[first]) << ", want " << want[first];
}

template <typename T>
bool is_nan_from(const std::vector<T>& values, std::int64_t begin) {
  return std::all_of(values.begin() + begin, values.end(),
                     [](T value) { return std::isnan(double_of(value)); });
}

}  // namespace lca::test
