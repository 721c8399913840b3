// The likeliest token against a plain loop.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "ops/likeliest.h"
#include "support/random.h"

namespace lca::test {
namespace {

TEST(Likeliest, IsTheFirstOfTheLargest) {
  Random random(3);
  for (const std::size_t count : {1U, 2U, 63U, 64U, 65U, 128U, 1000U}) {
    for (int trial = 0; trial < 40; ++trial) {
      // Few different values, so that there are ties.
      std::vector<float> logits(count);
      for (float& value : logits) value = static_cast<float>(random.integer(-9, 3));
      std::size_t best = 0;
      for (std::size_t i = 0; i < count; ++i) {
        if (logits[i] > logits[best]) best = i;
      }
      ASSERT_EQ(likeliest_token(logits), static_cast<std::int32_t>(best)) << count;
      logits[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(count) - 1))] =
          std::numeric_limits<float>::quiet_NaN();
      ASSERT_EQ(likeliest_token(logits), -1) << count;
    }
  }
}

}  // namespace
}  // namespace lca::test
