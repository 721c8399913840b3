// Lengths in tokens and in positions, against a count of what every query sees.

#include "attention/layout.h"
#include "attention/trained_length.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace lca {
namespace {

constexpr std::int64_t kTokens = 120;

// Positions of a prefix of n tokens, one query after the other: tokens, or distinct rows.
std::int64_t counted_positions(const Settings& settings, std::int64_t n) {
  if (settings.positions == Positions::token) return n;
  std::int64_t most = 0;
  for (std::int64_t t = 0; t < n; ++t) {
    const Visible visible = Layout(settings).visible(t);
    std::int64_t rows = visible.groups;
    for (std::int64_t i = 0; i <= t; ++i) {
      rows += visible.sink.contains(i) || visible.window.contains(i) ? 1 : 0;
    }
    most = std::max(most, rows);
  }
  return most;
}

template <typename Check>
void for_all(Check&& check) {
  for (const Positions positions : {Positions::token, Positions::entry}) {
    for (const MethodKind method : {MethodKind::lca, MethodKind::dense, MethodKind::window}) {
      for (std::int64_t g = 1; g <= 5; ++g) {
        for (std::int64_t w = 1; w <= 5; ++w) {
          for (std::int64_t s = 0; s <= 4; ++s) {
            Settings settings;
            settings.positions = positions;
            settings.method = method;
            settings.group = g;
            settings.window = w;
            settings.sink = s;
            check(settings);
            if (::testing::Test::HasFailure()) {
              FAIL() << "positions " << static_cast<int>(positions) << " method "
                     << static_cast<int>(method) << " g=" << g << " w=" << w << " s=" << s;
            }
          }
        }
      }
    }
  }
}

TEST(TrainedLength, PositionsAreThoseOfTheQueryThatNeedsMost) {
  for_all([](const Settings& settings) {
    for (std::int64_t n = 0; n <= kTokens; ++n) {
      ASSERT_EQ(positions_needed(settings, n), counted_positions(settings, n)) << "n=" << n;
    }
  });
}

TEST(TrainedLength, TheLongestContextFitsAndOneTokenMoreDoesNot) {
  for_all([](const Settings& settings) {
    for (std::int64_t positions = 1; positions <= 40; ++positions) {
      const std::int64_t longest = longest_context(settings, positions);
      ASSERT_GE(longest, positions);
      if (longest == kEndlessContext) {
        // A window never needs more than it holds.
        ASSERT_EQ(settings.method, MethodKind::window);
        ASSERT_LE(counted_positions(settings, kTokens), positions);
        continue;
      }
      ASSERT_LE(positions_needed(settings, longest), positions) << "T=" << positions;
      ASSERT_GT(positions_needed(settings, longest + 1), positions) << "T=" << positions;
    }
  });
}

TEST(TrainedLength, ItHoldsAtTheSizeOfRealModels) {
  std::mt19937_64 random(1);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    Settings settings;
    settings.positions = Positions::entry;
    settings.group = draw(1, 128);
    settings.window = draw(1, 4096);
    settings.sink = draw(0, 64);
    const std::int64_t positions = draw(1, 1 << 20);
    const std::int64_t longest = longest_context(settings, positions);
    ASSERT_LE(positions_needed(settings, longest), positions) << "round " << round;
    ASSERT_GT(positions_needed(settings, longest + 1), positions) << "round " << round;
  }
  Settings smollm2;
  smollm2.positions = Positions::entry;
  smollm2.sink = 16;
  EXPECT_EQ(longest_context(smollm2, 8192), 115262);
  EXPECT_EQ(positions_needed(smollm2, 131072), 9181);
}

TEST(TrainedLength, TheLayerThatNeedsMostCounts) {
  std::vector<Settings> layers(3);
  for (Settings& layer : layers) layer.positions = Positions::entry;
  layers[1].group = 4;
  layers[2].window = 64;
  EXPECT_EQ(longest_context(layers, 8192), longest_context(layers[1], 8192));
  EXPECT_EQ(positions_needed(layers, 50000), positions_needed(layers[1], 50000));
  layers[0].positions = Positions::token;
  EXPECT_EQ(longest_context(layers, 8192), 8192);
  EXPECT_EQ(positions_needed(layers, 50000), 50000);
}

TEST(TrainedLength, NumbersBeyondAnyModelDoNotOverflow) {
  Settings settings;
  settings.positions = Positions::entry;
  settings.group = std::int64_t{1} << 40;
  EXPECT_EQ(longest_context(settings, std::int64_t{1} << 50), kEndlessContext);
  EXPECT_EQ(longest_context(settings, 8192), 8192);
  EXPECT_EQ(positions_needed(settings, std::int64_t{1} << 45),
            1024 + (std::int64_t{1} << 40) - 1 + 30);
}

}  // namespace
}  // namespace lca
