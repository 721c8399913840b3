#include "eval/intervals.h"

#include "eval/draw.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

namespace lca::eval {
namespace {

constexpr std::uint64_t kResampleSeed = 20261117;

/// Continued fraction of the incomplete beta function, evaluated from the front (Lentz).
double beta_fraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300;
  constexpr int kMostTerms = 10000;
  const auto apart = [](double value) { return std::abs(value) < kTiny ? kTiny : value; };
  double d = 1 / apart(1 - (a + b) * x / (a + 1));
  double c = 1, fraction = d;
  for (int m = 1; m <= kMostTerms; ++m) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    d = 1 / apart(1 + even * d);
    c = apart(1 + even / c);
    fraction *= c * d;
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    d = 1 / apart(1 + odd * d);
    c = apart(1 + odd / c);
    fraction *= c * d;
    if (std::abs(c * d - 1) < 1e-15) break;
  }
  return fraction;
}

/// The distribution function of the beta distribution.
double beta_share(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double front = std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) +
                                a * std::log(x) + b * std::log1p(-x));
  return x < (a + 1) / (a + b + 2) ? front * beta_fraction(a, b, x) / a
                                   : 1 - front * beta_fraction(b, a, 1 - x) / b;
}

double beta_quantile(double a, double b, double share) {
  double low = 0, high = 1;
  for (int i = 0; i < 200 && high - low > 1e-16 * high; ++i) {
    const double middle = (low + high) / 2;
    (beta_share(a, b, middle) < share ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace

double mean_of(std::span<const double> values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

Interval share_interval(std::int64_t hits, std::int64_t samples, double confidence) {
  const double tail = (1 - confidence) / 2;
  const auto k = static_cast<double>(hits), n = static_cast<double>(samples);
  return {hits == 0 ? 0 : beta_quantile(k, n - k + 1, tail),
          hits == samples ? 1 : beta_quantile(k + 1, n - k, 1 - tail)};
}

Interval mean_interval(std::span<const std::vector<double>> groups, double confidence,
                       int resamples) {
  if (groups.empty()) return {};
  Draw draw{kResampleSeed};
  std::vector<double> means(static_cast<std::size_t>(resamples));
  for (double& mean : means) {
    for (const std::vector<double>& values : groups) {
      double sum = 0;
      for (std::size_t i = 0; i < values.size(); ++i) sum += values[draw.below(values.size())];
      mean += sum / static_cast<double>(values.size());
    }
    mean /= static_cast<double>(groups.size());
  }
  std::ranges::sort(means);
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(means.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const std::size_t above = std::min(below + 1, means.size() - 1);
    return std::lerp(means[below], means[above], place - static_cast<double>(below));
  };
  return {at((1 - confidence) / 2), at((1 + confidence) / 2)};
}

Interval score_interval(const std::vector<double>& scores, double confidence) {
  const bool shares = std::ranges::all_of(scores, [](double s) { return s == 0 || s == 1; });
  if (shares) {
    return share_interval(std::ranges::count(scores, 1.0), static_cast<std::int64_t>(scores.size()),
                          confidence);
  }
  return mean_interval({&scores, 1}, confidence);
}

}  // namespace lca::eval
