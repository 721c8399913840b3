#include "formats/byte_files.h"
#include "models/rope.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <random>

namespace lca {
namespace {

using nlohmann::json;

RopeConfig standard(std::int64_t width, double base = 10000) {
  RopeConfig config;
  config.width = width;
  config.base = base;
  return config;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& expected,
                 double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i] / expected[i], 1, tolerance) << "pair " << i;
  }
}

TEST(Rope, YarnOfDeepSeekV2LiteHasItsFrequencies) {
  RopeConfig config = standard(64);
  config.kind = RopeKind::yarn;
  config.layout = RopeLayout::adjacent;
  config.factor = 40;
  config.original_length = 4096;
  config.mscale = config.mscale_all_dim = 0.707;
  const Rope rope(config);
  EXPECT_DOUBLE_EQ(rope.multiplier(1), 1);
  EXPECT_FALSE(rope.depends_on_length());
  expect_near(rope.frequencies(1),
              {1.0,
               0.7498942093324559,
               0.5623413251903491,
               0.4216965034285823,
               0.31622776601683794,
               0.23713737056616555,
               0.17782794100389226,
               0.1333521432163324,
               0.1,
               0.07498942093324558,
               0.056234132519034905,
               0.03900692656714386,
               0.026879360111431223,
               0.018378146218877827,
               0.01244795587027246,
               0.008334508951020777,
               0.0055,
               0.0035619974943291656,
               0.002249365300761396,
               0.0013705136361428923,
               0.0007905694150420945,
               0.00041499039849078964,
               0.0001778279410038922,
               3.33380358040831e-05,
               2.5e-05,
               1.8747355233311396e-05,
               1.4058533129758728e-05,
               1.0542412585714557e-05,
               7.905694150420947e-06,
               5.9284342641541385e-06,
               4.445698525097307e-06,
               3.33380358040831e-06},
              1e-12);
}

// Over a long enough text even the lowest frequency makes many rotations: the range of the
// interpolation then ends after the last pair, and is clipped at the width, not at the number of
// pairs.
TEST(Rope, YarnsBlendMayEndBehindTheLastPair) {
  RopeConfig config = standard(8);
  config.kind = RopeKind::yarn;
  config.factor = 4;
  config.original_length = 1'000'000;
  config.beta_fast = 10'000;
  // 8·ln(1e6 / 2π·turns) / 2·ln(1e4) is 1.2 for 10,000 rotations and 5.2 for one: from 1 to 6.
  std::vector<double> expected;
  for (const double ramp : {0.0, 0.0, 0.2, 0.4}) {
    expected.push_back(std::pow(10.0, -static_cast<double>(expected.size())) *
                       (1 - ramp + ramp / 4));
  }
  expect_near(Rope(config).frequencies(10), expected, 1e-12);
}

TEST(Rope, LongropeOfMiniCpm3HasItsFrequencies) {
  RopeConfig config = standard(32);
  config.kind = RopeKind::longrope;
  config.original_length = 32768;
  config.short_factors = {
      1.0591234137867171, 1.1241891283591912, 1.2596935748670968, 1.5380380402321725,
      2.093982484148734,  3.1446935121267696, 4.937952647693647,  7.524541999994549,
      10.475458000005451, 13.062047352306353, 14.85530648787323,  15.906017515851266,
      16.461961959767827, 16.740306425132907, 16.87581087164081,  16.940876586213285};
  config.long_factors = config.short_factors;
  const Rope rope(config);
  EXPECT_EQ(rope.multiplier(100000), 1);
  EXPECT_FALSE(rope.depends_on_length());
  const std::vector<double> expected = {
      0.944177030724558,      0.5002195013316965,    0.2510354679313192,
      0.11561998881188174,    0.0477558913491356,    0.017882229954105613,
      0.006404025890457605,   0.002363305846442496,  0.000954612199294274,
      0.00043051545444830827, 0.0002128719230902323, 0.00011179916080607636,
      6.0746100765142545e-05, 3.359205685423315e-05, 1.873852275437901e-05,
      1.0496973996529262e-05};
  expect_near(rope.frequencies(10), expected, 1e-12);
  expect_near(rope.frequencies(100000), expected, 1e-12);
}

TEST(Rope, EveryKindAgreesWithTransformers) {
  const json cases = json::parse(
      test::read_file(std::filesystem::path(LCA_SOURCE_DIR) / "tests/golden/rope/rope.json"));
  ASSERT_EQ(cases.size(), 15u);
  for (const json& entry : cases) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    const ModelConfig config = model_config_from_json(entry["config"].dump(), "golden");
    const Rope rope(config.rope);
    for (const json& at : entry["lengths"]) {
      const auto length = at["length"].get<std::int64_t>();
      SCOPED_TRACE(length);
      EXPECT_NEAR(rope.multiplier(length), at["multiplier"].get<double>(), 1e-9);
      // transformers computes them in float32, powers of a large base among them.
      expect_near(rope.frequencies(length), at["frequencies"].get<std::vector<double>>(), 2e-6);
    }
  }
}

TEST(Rope, OnlyDynamicAndLongropeDependOnTheLength) {
  RopeConfig config = standard(8);
  EXPECT_FALSE(Rope(config).depends_on_length());
  config.kind = RopeKind::dynamic;
  config.factor = 2;
  config.original_length = 100;
  EXPECT_TRUE(Rope(config).depends_on_length());
  EXPECT_EQ(Rope(config).frequencies(100), Rope(config).frequencies(1));
  EXPECT_LT(Rope(config).frequencies(101)[3], Rope(config).frequencies(100)[3]);
  config.kind = RopeKind::longrope;
  config.short_factors = {1, 1, 1, 1};
  config.long_factors = {1, 1, 1, 2};
  EXPECT_TRUE(Rope(config).depends_on_length());
  EXPECT_EQ(Rope(config).frequencies(101)[3], Rope(config).frequencies(100)[3] / 2);
}

TEST(Rope, DivisorsOfTheFileApplyToTheFrequencies) {
  RopeConfig config = standard(4, 100);
  config.frequency_divisors = {2, 5};
  expect_near(Rope(config).frequencies(1), {0.5, 0.02}, 1e-15);
}

TEST(Rope, TablesHoldCosinesAndSinesTimesTheMultiplier) {
  RopeConfig config = standard(4, 100);
  config.kind = RopeKind::yarn;
  config.original_length = 4096;
  config.attention_factor = 2;
  const Rope rope(config);
  std::vector<float> cos(6);
  std::vector<float> sin(6);
  rope.table(5, 3, 8, cos.data(), sin.data());
  const std::vector<double> frequency = rope.frequencies(8);
  for (std::size_t row = 0; row < 3; ++row) {
    for (std::size_t i = 0; i < 2; ++i) {
      const double angle = static_cast<double>(5 + row) * frequency[i];
      EXPECT_FLOAT_EQ(cos[row * 2 + i], static_cast<float>(2 * std::cos(angle)));
      EXPECT_FLOAT_EQ(sin[row * 2 + i], static_cast<float>(2 * std::sin(angle)));
    }
  }
}

TEST(Rope, PositionsInTheMillionsKeepTheirAngle) {
  const Rope rope(standard(128));
  std::vector<float> cos(64);
  std::vector<float> sin(64);
  const std::int64_t position = 9'999'991;
  rope.table(position, 1, position + 1, cos.data(), sin.data());
  for (std::size_t i = 0; i < 64; ++i) {
    const long double exact = static_cast<long double>(position) *
                              std::pow(10000.0L, -2.0L * static_cast<long double>(i) / 128.0L);
    EXPECT_NEAR(cos[i], static_cast<double>(std::cos(exact)), 3e-7) << i;
    EXPECT_NEAR(sin[i], static_cast<double>(std::sin(exact)), 3e-7) << i;
  }
}

TEST(RopeApply, RotatesThePairsOfBothLayoutsAndNothingElse) {
  for (const RopeLayout layout : {RopeLayout::halves, RopeLayout::adjacent}) {
    constexpr std::int64_t kRows = 3, kHeads = 2, kWidth = 6, kStrideHead = 8, kStrideRow = 20;
    std::mt19937 random(7);
    std::vector<float> rows(kRows * kStrideRow);
    for (float& x : rows) x = static_cast<float>(random() % 1000) / 500 - 1;
    const std::vector<float> before = rows;
    const Rope rope(standard(kWidth));
    std::vector<float> cos(kRows * kWidth / 2);
    std::vector<float> sin(kRows * kWidth / 2);
    rope.table(11, kRows, 14, cos.data(), sin.data());
    rope_apply(rows.data(), kRows, kHeads, kStrideRow, kStrideHead, kWidth, layout, cos.data(),
               sin.data());
    std::vector<float> expected = before;
    for (std::size_t row = 0; row < kRows; ++row) {
      for (std::size_t head = 0; head < kHeads; ++head) {
        const std::size_t at = row * kStrideRow + head * kStrideHead;
        for (std::size_t i = 0; i < kWidth / 2; ++i) {
          const std::size_t a = at + (layout == RopeLayout::halves ? i : 2 * i);
          const std::size_t b = at + (layout == RopeLayout::halves ? i + kWidth / 2 : 2 * i + 1);
          const float c = cos[row * kWidth / 2 + i];
          const float s = sin[row * kWidth / 2 + i];
          expected[a] = before[a] * c - before[b] * s;
          expected[b] = before[a] * s + before[b] * c;
        }
      }
    }
    for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_NEAR(rows[i], expected[i], 1e-6) << i;
  }
}

TEST(RopeApply, ProductsDependOnDistancesOnly) {
  for (const RopeLayout layout : {RopeLayout::halves, RopeLayout::adjacent}) {
    const Rope rope(standard(16));
    const auto turned = [&](std::int64_t position, float start) {
      std::vector<float> x(16);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = start + static_cast<float>(i % 5) / 3;
      std::vector<float> cos(8);
      std::vector<float> sin(8);
      rope.table(position, 1, position + 1, cos.data(), sin.data());
      rope_apply(x.data(), 1, 1, 16, 16, 16, layout, cos.data(), sin.data());
      return x;
    };
    const auto product = [&](std::int64_t p, std::int64_t q) {
      const std::vector<float> a = turned(p, 0.25F);
      const std::vector<float> b = turned(q, -0.5F);
      double sum = 0;
      for (std::size_t i = 0; i < 16; ++i) sum += static_cast<double>(a[i]) * b[i];
      return sum;
    };
    EXPECT_NEAR(product(10, 3), product(1'000'010, 1'000'003), 1e-5);
    EXPECT_NEAR(product(0, 0), product(77, 77), 1e-5);
  }
}

}  // namespace
}  // namespace lca
