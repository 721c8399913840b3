// Intervals of confidence: known bounds, coverage, and what resampling must give.

#include "eval/draw.h"
#include "eval/intervals.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace lca::test {
namespace {

using eval::Interval;
using eval::share_interval;

/// P(at most `hits` of `samples`) at share p.
double binomial_below(std::int64_t hits, std::int64_t samples, double p) {
  double sum = 0;
  for (std::int64_t k = 0; k <= hits; ++k) {
    const auto x = static_cast<double>(k), n = static_cast<double>(samples);
    sum += std::exp(std::lgamma(n + 1) - std::lgamma(x + 1) - std::lgamma(n - x + 1) +
                    (k > 0 ? x * std::log(p) : 0) + (k < samples ? (n - x) * std::log1p(-p) : 0));
  }
  return sum;
}

TEST(Intervals, SharesHaveTheBoundsOfTheBinomialDistribution) {
  for (const auto& [hits, samples] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 2}, {3, 7}, {1, 200}, {199, 200}, {100, 200}, {475, 500}, {4000, 9000}}) {
    const Interval interval = share_interval(hits, samples, 0.95);
    EXPECT_NEAR(1 - binomial_below(hits - 1, samples, interval.low), 0.025, 1e-9);
    EXPECT_NEAR(binomial_below(hits, samples, interval.high), 0.025, 1e-9);
  }
}

TEST(Intervals, NoneAndAllHaveBoundsInClosedForm) {
  EXPECT_EQ(share_interval(0, 100).low, 0);
  EXPECT_NEAR(share_interval(0, 100).high, 1 - std::pow(0.025, 1.0 / 100), 1e-12);
  EXPECT_EQ(share_interval(100, 100).high, 1);
  EXPECT_NEAR(share_interval(100, 100).low, std::pow(0.025, 1.0 / 100), 1e-12);
  EXPECT_EQ(share_interval(0, 0).low, 0);
  EXPECT_EQ(share_interval(0, 0).high, 1);
}

TEST(Intervals, FourHundredSeventyFiveOfFiveHundredAreSurelyNinetyThreePercent) {
  EXPECT_GE(share_interval(475, 500, 0.9).low, 0.93);
  EXPECT_LT(share_interval(474, 500, 0.9).low, share_interval(475, 500, 0.9).low);
}

TEST(Intervals, OfAMeanHasTheWidthOfTheNormalDistribution) {
  eval::Draw draw{5};
  std::vector<std::vector<double>> groups(2);
  for (int i = 0; i < 400; ++i) groups[0].push_back(draw.unit());
  for (int i = 0; i < 100; ++i) groups[1].push_back(3 + draw.unit());
  const Interval interval = eval::mean_interval(groups);
  const double mean = (eval::mean_of(groups[0]) + eval::mean_of(groups[1])) / 2;
  const double sigma = std::sqrt((1.0 / 12 / 400 + 1.0 / 12 / 100) / 4);
  EXPECT_NEAR(interval.low, mean - 1.96 * sigma, 0.3 * sigma);
  EXPECT_NEAR(interval.high, mean + 1.96 * sigma, 0.3 * sigma);
  const Interval again = eval::mean_interval(groups);
  EXPECT_EQ(interval.low, again.low);
  EXPECT_EQ(interval.high, again.high);
}

TEST(Intervals, OfScoresIsExactWhereEachIsZeroOrOne) {
  const std::vector<double> ones(20, 1.0);
  EXPECT_LT(eval::score_interval(ones).low, 0.84);
  EXPECT_EQ(eval::score_interval(ones).high, 1);
  const std::vector<double> parts = {0, 0.25, 0.5, 1, 1, 0.75, 0.5, 0.25};
  const Interval interval = eval::score_interval(parts);
  EXPECT_LT(interval.low, eval::mean_of(parts));
  EXPECT_GT(interval.high, eval::mean_of(parts));
  EXPECT_GT(interval.low, 0.2);
}

}  // namespace
}  // namespace lca::test
