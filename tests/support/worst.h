#pragma once
/// Largest values and differences that propagate NaN. `std::max(0.0, NaN)` is 0, so a loop over it
/// accepts an output that was never written.

#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>

namespace lca::test {

/// The larger of two; NaN if either is NaN. Every comparison with NaN fails.
inline double larger(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
  return a < b ? b : a;
}

/// max|value|; NaN where one is NaN.
template <typename Values>
double largest(const Values& values) {
  double most = 0;
  for (const auto value : values) most = larger(most, std::abs(static_cast<double>(value)));
  return most;
}

/// max|expected − actual|; NaN where sizes differ or either holds a value that is not finite.
template <typename Expected, typename Actual>
double worst_difference(const Expected& expected, const Actual& actual) {
  if (std::size(expected) != std::size(actual)) return std::numeric_limits<double>::quiet_NaN();
  double worst = 0;
  for (std::size_t i = 0; i < std::size(expected); ++i) {
    // ∞ − ∞ is NaN, but ∞ − 1 is not.
    const double difference = static_cast<double>(expected[i]) - static_cast<double>(actual[i]);
    worst = larger(worst, std::abs(difference) + 0 * difference);
  }
  return worst;
}

}  // namespace lca::test
