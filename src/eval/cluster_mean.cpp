#include "eval/cluster_mean.h"

#include <cmath>
#include <limits>
#include <numbers>

namespace lca::eval {
namespace {

/// P(0 < T < t): the density, integrated over an angle (t = √f · tan θ), where it is smooth and
/// bounded.
double student_half(double t, double freedom) {
  const double last = std::atan(t / std::sqrt(freedom));
  constexpr int kSteps = 2000;  // Simpson's rule
  const auto density = [&](double angle) { return std::pow(std::cos(angle), freedom - 1); };
  double sum = density(0) + density(last);
  for (int i = 1; i < kSteps; ++i) sum += (i % 2 == 1 ? 4 : 2) * density(last * i / kSteps);
  const double factor = std::exp(std::lgamma((freedom + 1) / 2) - std::lgamma(freedom / 2)) /
                        std::sqrt(std::numbers::pi);
  return factor * sum * last / kSteps / 3;
}

}  // namespace

double student_quantile(double probability, double freedom) {
  double low = 0, high = 1;
  while (student_half(high, freedom) < probability - 0.5 && high < 1e12) high *= 2;
  for (int i = 0; i < 80; ++i) {
    const double middle = (low + high) / 2;
    (student_half(middle, freedom) < probability - 0.5 ? low : high) = middle;
  }
  return (low + high) / 2;
}

ClusterMean cluster_mean(std::span<const Cluster> clusters) {
  constexpr double kProbability = 0.975;
  ClusterMean result;
  result.clusters = std::ssize(clusters);
  double sum = 0;
  for (const Cluster& cluster : clusters) {
    sum += cluster.sum;
    result.count += cluster.count;
  }
  if (result.count == 0) {
    result.mean = std::numeric_limits<double>::quiet_NaN();
    return result;
  }
  const auto count = static_cast<double>(result.count);
  result.mean = sum / count;
  if (result.clusters < 2) return result;
  // The variance of a ratio of two sums.
  const auto number = static_cast<double>(result.clusters);
  double squares = 0;
  for (const Cluster& cluster : clusters) {
    const double rest = cluster.sum - result.mean * static_cast<double>(cluster.count);
    squares += rest * rest;
  }
  result.error = std::sqrt(number / (number - 1) * squares) / count;
  const double width = student_quantile(kProbability, number - 1) * *result.error;
  result.low = result.mean - width;
  result.high = result.mean + width;
  return result;
}

}  // namespace lca::eval
