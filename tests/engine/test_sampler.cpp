#include "engine/sampler.h"

#include "formats/byte_files.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>
#include <numeric>

namespace lca {
namespace {

using nlohmann::json;
using test::expect_error;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

Sampling warm(std::uint64_t seed = 1) {
  Sampling sampling;
  sampling.temperature = 1;
  sampling.seed = seed;
  return sampling;
}

std::vector<std::int32_t> draw(const Sampling& sampling, const std::vector<float>& logits,
                               int count, const std::vector<std::int32_t>& history = {}) {
  Sampler sampler(sampling);
  std::vector<std::int32_t> picks;
  for (int i = 0; i < count; ++i) picks.push_back(sampler.pick(logits, history, i));
  return picks;
}

TEST(Sampler, TemperatureZeroTakesTheLikeliestAndTheLowestIdOnTies) {
  EXPECT_EQ(draw({}, {1, 3, 2}, 1)[0], 1);
  EXPECT_EQ(draw({}, {1, 3, 3, 3}, 1)[0], 1);
  EXPECT_EQ(draw({}, {-kInfinity, -kInfinity}, 1)[0], 0);
  EXPECT_EQ(draw({}, {0, kInfinity, kInfinity}, 1)[0], 1);
  EXPECT_EQ(draw({}, {-7}, 1)[0], 0);
}

TEST(Sampler, ProbabilitiesAreThoseOfTransformers) {
  const json cases = json::parse(
      test::read_file(std::filesystem::path(LCA_SOURCE_DIR) / "tests/golden/sampler/sampler.json"));
  ASSERT_EQ(cases.size(), 15u);
  constexpr int kDraws = 40000;
  for (const json& entry : cases) {
    SCOPED_TRACE(entry.dump());
    Sampling sampling = warm(99);
    sampling.temperature = entry["temperature"];
    sampling.top_k = entry["top_k"];
    sampling.top_p = entry["top_p"];
    sampling.min_p = entry["min_p"];
    sampling.repetition_penalty = entry["repetition_penalty"];
    const auto logits = entry["logits"].get<std::vector<float>>();
    const auto expected = entry["probabilities"].get<std::vector<double>>();
    std::vector<int> seen(logits.size());
    for (const std::int32_t id :
         draw(sampling, logits, kDraws, entry["history"].get<std::vector<std::int32_t>>())) {
      ++seen[static_cast<std::size_t>(id)];
    }
    double chi = 0;
    int bins = 0;
    for (std::size_t i = 0; i < seen.size(); ++i) {
      if (expected[i] == 0) {
        EXPECT_EQ(seen[i], 0) << "token " << i;
        continue;
      }
      const double wanted = expected[i] * kDraws;
      if (wanted < 5) continue;  // too rare to be significant
      chi += (seen[i] - wanted) * (seen[i] - wanted) / wanted;
      ++bins;
    }
    EXPECT_GE(bins, 1);
    EXPECT_LT(chi, bins + 4 * std::sqrt(2.0 * bins) + 1);
  }
}

TEST(Sampler, TheSameSeedGivesTheSameTokens) {
  std::vector<float> logits(1000);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = std::sin(static_cast<float>(i) * 1.7F) * 3;
  }
  Sampling sampling = warm(42);
  sampling.top_p = 0.95;
  EXPECT_EQ(draw(sampling, logits, 100), draw(sampling, logits, 100));
  Sampling other = sampling;
  other.seed = 43;
  EXPECT_NE(draw(sampling, logits, 100), draw(other, logits, 100));
  // Recorded once: other machines must draw the same.
  const std::vector<float> even(10, 0);
  EXPECT_EQ(draw(warm(0), even, 12),
            (std::vector<std::int32_t>{6, 7, 3, 6, 7, 1, 7, 2, 3, 5, 4, 1}));
  EXPECT_EQ(draw(warm(123456789), even, 12),
            (std::vector<std::int32_t>{5, 4, 7, 8, 2, 6, 2, 2, 5, 7, 2, 3}));
}

TEST(Sampler, ADrawDependsOnItsPositionNotOnThoseBefore) {
  const std::vector<float> even(1000, 0);
  const std::vector<std::int32_t> all = draw(warm(5), even, 50);
  Sampler later(warm(5));
  for (std::int64_t position = 49; position >= 30; --position) {
    EXPECT_EQ(later.pick(even, {}, position), all[static_cast<std::size_t>(position)]);
  }
}

TEST(Sampler, NeighbouringSeedsAreUnrelated) {
  const std::vector<float> even(1000, 0);
  const std::vector<std::int32_t> a = draw(warm(7), even, 200);
  const std::vector<std::int32_t> b = draw(warm(8), even, 200);
  for (int shift = -3; shift <= 3; ++shift) {
    int equal = 0;
    for (int i = 3; i < 197; ++i) {
      equal += a[static_cast<std::size_t>(i)] == b[static_cast<std::size_t>(i + shift)] ? 1 : 0;
    }
    EXPECT_LT(equal, 5) << shift;
  }
}

TEST(Sampler, TopKKeepsAllThatScoreLikeTheLast) {
  Sampling sampling = warm();
  sampling.top_k = 2;
  std::vector<int> seen(4);
  for (const std::int32_t id : draw(sampling, {2, 1, 1, 0}, 2000)) {
    ++seen[static_cast<std::size_t>(id)];
  }
  EXPECT_GT(seen[1], 0);
  EXPECT_GT(seen[2], 0);
  EXPECT_EQ(seen[3], 0);
}

TEST(Sampler, TopPTakesTheLowestIdsOfEquals) {
  Sampling sampling = warm();
  sampling.top_p = 0.5;
  for (const std::int32_t id : draw(sampling, {0, 0, 0, 0}, 500)) EXPECT_LT(id, 2);
  sampling.top_p = 0;
  for (const std::int32_t id : draw(sampling, {0, 1, 1, 0}, 100)) EXPECT_EQ(id, 1);
}

TEST(Sampler, TheRepetitionPenaltyLooksAtItsWindow) {
  Sampling sampling;
  sampling.repetition_penalty = 2;
  sampling.repetition_window = 2;
  const std::vector<float> logits = {4, 3, 2.5F};
  EXPECT_EQ(draw(sampling, logits, 1, {1, 0})[0], 2);     // 2, 1.5, 2.5
  EXPECT_EQ(draw(sampling, logits, 1, {0, 1, 1})[0], 0);  // 0 is too long ago
  sampling.repetition_window = 0;
  EXPECT_EQ(draw(sampling, logits, 1, {0, 1, 1})[0], 2);
  EXPECT_EQ(draw(sampling, logits, 1, {-1, 3, 2147483647, -2147483647 - 1})[0], 0);
  EXPECT_EQ(draw(sampling, {-1, -1.5F}, 1, {0, 0, 0})[0], 1);  // −2, once only
}

TEST(Sampler, WhatTheModelShouldNotProduceIsSafe) {
  expect_error([] { draw({}, {0, kNaN}, 1); }, {"the model produced NaN"}, ErrorKind::internal);
  expect_error([] { draw(warm(), {kNaN, 0}, 1); }, {"NaN"}, ErrorKind::internal);
  expect_error([] { draw(warm(), {}, 1); }, {"no logits"}, ErrorKind::internal);
  Sampling sampling = warm();
  sampling.top_k = 2;
  sampling.top_p = 0.9;
  sampling.min_p = 0.1;
  sampling.repetition_penalty = 1.1;
  for (int round = 0; round < 20; ++round) {
    sampling.seed = static_cast<std::uint64_t>(round);
    EXPECT_EQ(draw(sampling, {-kInfinity, -kInfinity, -kInfinity}, 1, {1})[0], 0);
    EXPECT_EQ(draw(sampling, {-kInfinity, 5, -kInfinity}, 1, {1})[0], 1);
    EXPECT_EQ(draw(sampling, {0, kInfinity, 3}, 1, {1})[0], 1);
    EXPECT_NE(draw(sampling, {kInfinity, 3e38F, kInfinity}, 1, {1})[0], 1);
    EXPECT_EQ(draw(sampling, {-3e38F, 3e38F, 0}, 1, {0, 1})[0], 1);
  }
  sampling.temperature = 1e-300;
  EXPECT_EQ(draw(sampling, {1, 1.0001F, 0}, 1)[0], 1);
}

TEST(Sampler, SettingsOutOfRangeAreNamed) {
  const auto bad = [](const char* name, auto change) {
    Sampling sampling;
    change(sampling);
    expect_error([&] { Sampler{sampling}; }, {name});
    expect_error([&] { sampling.validate(); }, {name});
  };
  for (const double value :
       {-0.1, 1001.0, static_cast<double>(kNaN), static_cast<double>(kInfinity)}) {
    bad("temperature", [value](Sampling& s) { s.temperature = value; });
  }
  for (const double value : {-0.1, 1.1, static_cast<double>(kNaN)}) {
    bad("top_p", [value](Sampling& s) { s.top_p = value; });
    bad("min_p", [value](Sampling& s) { s.min_p = value; });
  }
  for (const double value : {0.0, -1.0, 101.0, static_cast<double>(kNaN)}) {
    bad("repetition_penalty", [value](Sampling& s) { s.repetition_penalty = value; });
  }
  bad("top_k", [](Sampling& s) { s.top_k = -1; });
  bad("repetition_window", [](Sampling& s) { s.repetition_window = -1; });
  EXPECT_NO_THROW(Sampling{}.validate());
}

}  // namespace
}  // namespace lca
