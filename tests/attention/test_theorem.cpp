// Theorem 1 of the paper (mechanism §5 and §9.3): with mass `count` the distance from dense
// attention is at most V(e^{2·Q·δ_k·scale} − 1) + δ_v for measured Q, V, δ_k, δ_v. Without mass it
// is not.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "attention/layout.h"
#include "support/engine.h"
#include "support/random_layer.h"
#include "support/worst.h"

namespace lca::test {
namespace {

constexpr std::array kPools{Pool::weighted, Pool::mean, Pool::max, Pool::select};

class Theorem : public ::testing::TestWithParam<Engine> {};

INSTANTIATE_TEST_SUITE_P(Of, Theorem, engines(), engine_name);

double norm(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value * value;
  return std::sqrt(sum);
}

std::vector<double> row_of(const Buffer& buffer, std::int64_t i, std::int64_t first,
                           std::int64_t width) {
  std::vector<double> row;
  for (std::int64_t d = 0; d < width; ++d) row.push_back(buffer.get(i, 0, first + d));
  return row;
}

double distance(const std::vector<double>& a, const std::vector<double>& b, std::size_t offset) {
  std::vector<double> delta;
  for (std::size_t d = 0; d < a.size(); ++d) delta.push_back(a[d] - b[offset + d]);
  return norm(delta);
}

// A layer of one head whose keys and values are the stored entries themselves.
LayerSpec theorem_spec(DType dtype, Mass mass) {
  LayerSpec spec;
  spec.shape = AttentionShape::gqa(1, 1, 4, 3);
  spec.dtype = dtype;
  spec.settings.group = 5;
  spec.settings.window = 3;
  spec.settings.sink = 1;
  spec.settings.summary_queries = 5;
  spec.settings.mass = mass;
  return spec;
}

// The largest ‖dense − LCA‖ − bound over all queries: the theorem says it is never positive.
double worst_excess(const Engine& engine, const LayerSpec& spec, const Tokens& tokens) {
  const Layer layer{spec, {}, {}};
  const reference::Result ours = engine.compute(layer, tokens);
  const reference::Result dense = engine.compute(layer.with(dense_settings()), tokens);
  const Layout layout(spec.settings);
  const std::int64_t width = spec.shape.d_rope;
  const std::int64_t d_value = spec.shape.d_value;
  double worst = -1;
  for (std::int64_t t = 0; t < tokens.count; ++t) {
    const double query = norm(row_of(tokens.query, t, 0, width));
    double largest_value = 0;
    for (std::int64_t i = 0; i <= t; ++i) {
      largest_value = larger(largest_value, norm(row_of(tokens.entry, i, 0, d_value)));
    }
    double delta_k = 0;
    double delta_v = 0;
    for (std::int64_t j = 0; j < layout.groups(t + 1); ++j) {
      const Range group = layout.group_range(j);
      for (std::int64_t i = group.begin; i < group.end; ++i) {
        delta_k =
            larger(delta_k, distance(row_of(tokens.entry, i, d_value, width), ours.rep_positional,
                                     static_cast<std::size_t>(j * width)));
        delta_v = larger(delta_v, distance(row_of(tokens.entry, i, 0, d_value), ours.rep_semantic,
                                           static_cast<std::size_t>(j * d_value)));
      }
    }
    std::vector<double> difference;
    for (std::int64_t d = 0; d < d_value; ++d) {
      const auto at = static_cast<std::size_t>(t * d_value + d);
      difference.push_back(ours.out[at] - dense.out[at]);
    }
    const double bound =
        largest_value * std::expm1(2 * query * delta_k * spec.softmax_scale()) + delta_v;
    worst = larger(worst, (norm(difference) - bound) / larger(1.0, largest_value));
  }
  return worst;
}

TEST_P(Theorem, HoldsWithMassCountOnRandomInputs) {
  const Engine& engine = GetParam();
  Random random(15);
  for (int trial = 0; trial < 20; ++trial) {
    LayerSpec spec = theorem_spec(engine.dtype, Mass::count);
    spec.settings.semantic_pool =
        random.pick({Pool::weighted, Pool::mean, Pool::select, Pool::max});
    spec.settings.positional_pool =
        random.pick({Pool::weighted, Pool::mean, Pool::select, Pool::max});
    // From groups of nearly equal tokens, where the bound is tight, to unrelated ones.
    const double spread = std::pow(10.0, -3 * random.unit());
    Tokens tokens = random_tokens(spec, 40, random);
    for (std::int64_t i = 0; i < tokens.count; ++i) {
      const std::int64_t first = std::max<std::int64_t>(0, (i - 1) / 5 * 5 + 1);
      for (std::int64_t k = 0; k < tokens.entry.width() && i > 0; ++k) {
        const double shared = tokens.entry.get(first, 0, k);
        if (i != first) tokens.entry.set(i, 0, k, shared + spread * random.normal());
      }
    }
    tokens.split();
    EXPECT_LE(worst_excess(engine, spec, tokens), 2 * engine.tolerance)
        << describe(spec) << " spread=" << spread;
  }
}

TEST_P(Theorem, HoldsWithMassCountOnAdversarialInputs) {
  const Engine& engine = GetParam();
  Random random(16);
  for (double size : {0.0, 0.01, 1.0, 5.0}) {
    for (bool opposed : {false, true}) {
      for (Pool pool : kPools) {
        LayerSpec spec = theorem_spec(engine.dtype, Mass::count);
        spec.settings.positional_pool = pool;
        Tokens tokens = random_tokens(spec, 36, random);
        // All queries point one way, keys lie along it on alternating sides and values with them:
        // every deviation moves the output in the same direction.
        for (std::int64_t i = 0; i < tokens.count; ++i) {
          const double side = i % 2 == 0 ? 1 : -1;
          for (std::int64_t k = 0; k < 4; ++k) tokens.query.set(i, 0, k, k == 0 ? 1.5 : 0);
          for (std::int64_t k = 0; k < tokens.entry.width(); ++k) tokens.entry.set(i, 0, k, 0);
          tokens.entry.set(i, 0, 0, opposed ? -side : side);
          tokens.entry.set(i, 0, 3, size * side);
        }
        tokens.split();
        EXPECT_LE(worst_excess(engine, spec, tokens), 2 * engine.tolerance)
            << describe(spec) << " size=" << size;
      }
    }
  }
}

// Two tokens of the window against a group of 16, all at logit 0. The values show the probability
// of each.
struct Counterexample {
  LayerSpec spec;
  Tokens tokens;
};

Counterexample counterexample(DType dtype, Mass mass) {
  Counterexample example;
  example.spec = theorem_spec(dtype, mass);
  example.spec.settings.group = 16;
  example.spec.settings.window = 2;
  example.spec.settings.sink = 0;
  Random random(17);
  example.tokens = random_tokens(example.spec, 18, random);
  for (std::int64_t i = 0; i < 18; ++i) {
    for (std::int64_t k = 0; k < example.tokens.entry.width(); ++k) {
      example.tokens.entry.set(i, 0, k, k == 0 && i < 16 ? 1 : 0);
    }
  }
  example.tokens.split();
  return example;
}

TEST_P(Theorem, FailsWithoutMassBecauseAGroupOfEqualTokensThenWeighsAsOne) {
  const Engine& engine = GetParam();
  const double rounding = engine.is_reference ? 4e-15 : engine.dtype == DType::f32 ? 1e-6 : 4e-3;
  const auto group_share = [&](Mass mass, bool dense) {
    const Counterexample example = counterexample(engine.dtype, mass);
    Layer layer{example.spec, {}, {}};
    if (dense) layer = layer.with(dense_settings());
    return engine.compute(layer, example.tokens).out[17 * 3];
  };
  EXPECT_NEAR(group_share(Mass::none, true), 16.0 / 18.0, rounding);
  EXPECT_NEAR(group_share(Mass::none, false), 1.0 / 3.0, rounding);
  EXPECT_NEAR(group_share(Mass::count, false), 16.0 / 18.0, rounding);
  EXPECT_NEAR(group_share(Mass::score, false), 16.0 / 18.0, rounding);

  // Both deviations are 0, so the bound is 0.
  const Counterexample none = counterexample(engine.dtype, Mass::none);
  EXPECT_NEAR(worst_excess(engine, none.spec, none.tokens), 16.0 / 18.0 - 1.0 / 3.0, rounding * 2);
  const Counterexample count = counterexample(engine.dtype, Mass::count);
  EXPECT_LE(worst_excess(engine, count.spec, count.tokens), rounding * 2);
}

TEST_P(Theorem, IsNotNeededAtTheSummaryQueryWhereMassScoreKeepsTheDenseMass) {
  // One head and one summary query: the query that scores the last group is the one that attends.
  const Engine& engine = GetParam();
  Random random(18);
  for (Pool pool : kPools) {
    LayerSpec spec = theorem_spec(engine.dtype, Mass::score);
    spec.settings.summary_queries = 1;
    spec.settings.positional_pool = pool;
    const Layer layer{spec, {}, {}};
    const std::int64_t n = 1 + 3 + 5;  // sink, window, one group: the last query is its exit
    const Tokens tokens = random_tokens(spec, n, random);
    const reference::Result ours = engine.compute(layer, tokens);
    const reference::Result dense = engine.compute(layer.with(dense_settings()), tokens);
    ASSERT_EQ(ours.groups, 1);
    EXPECT_NEAR(ours.lse.back(), dense.lse.back(),
                engine.tolerance * std::max(1.0, std::abs(dense.lse.back())));
  }
}

}  // namespace
}  // namespace lca::test
