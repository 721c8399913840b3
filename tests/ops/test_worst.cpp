// The measure of error that other tests rely on.

#include "support/compare.h"
#include "support/worst.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace lca::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(WorstDifference, IsTheLargestOfAll) {
  EXPECT_EQ(worst_difference(std::vector<float>{1, 2, 3}, std::vector<double>{1, 4, 2.5}), 2);
  EXPECT_EQ(worst_difference(std::vector<float>{}, std::vector<float>{}), 0);
  EXPECT_EQ(largest(std::vector<float>{1, -3, 2}), 3);
}

TEST(WorstDifference, SeesNanAnywhere) {
  for (const double bad : {kNan, kInfinity, -kInfinity}) {
    for (std::size_t at = 0; at < 3; ++at) {
      const std::vector<double> good{1, 2, 3};
      std::vector<double> other = good;
      other[at] = bad;
      EXPECT_FALSE(worst_difference(good, other) <= kInfinity);
      EXPECT_FALSE(worst_difference(other, good) <= kInfinity);
      EXPECT_FALSE(worst_difference(other, other) <= kInfinity);
      EXPECT_EQ(error_of(good, other), kInfinity);
      EXPECT_EQ(error_of(other, good), kInfinity);
    }
  }
  EXPECT_FALSE(largest(std::vector<double>{kNan, 1}) <= kInfinity);
  EXPECT_FALSE(largest(std::vector<double>{1, kNan}) <= kInfinity);
}

TEST(WorstDifference, SizesMustAgree) {
  EXPECT_FALSE(worst_difference(std::vector<float>{1}, std::vector<float>{1, 2}) <= kInfinity);
}

}  // namespace
}  // namespace lca::test
