#pragma once
/// Intervals of confidence: how far a score of some samples may lie from that of very many.

#include <cstdint>
#include <span>
#include <vector>

namespace lca::eval {

struct Interval {
  double low = 0, high = 0;
};

/// Clopper and Pearson's interval of a share of which `hits` of `samples` were seen: exact for any
/// number of samples. A bound on one side at 95 % is that end of the interval of 90 %. No samples:
/// 0 … 1.
Interval share_interval(std::int64_t hits, std::int64_t samples, double confidence = 0.95);

/// Interval of a mean of means, one for each group of values: percentiles over resamples, in which
/// each group is drawn again from its own values, always the same ones. A group may not be empty.
/// Over differences of pairs it is a paired bootstrap.
Interval mean_interval(std::span<const std::vector<double>> groups, double confidence = 0.95,
                       int resamples = 10000);

/// Interval of the mean of scores from 0 to 1: `share_interval` where each is 0 or 1, else
/// `mean_interval`.
Interval score_interval(const std::vector<double>& scores, double confidence = 0.95);

/// The plain mean; 0 for none.
double mean_of(std::span<const double> values);

}  // namespace lca::eval
