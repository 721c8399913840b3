#pragma once
/// A mean over many predictions whose errors are alike within a text: its interval counts texts (or
/// windows of them), not predictions.

#include <cstdint>
#include <optional>
#include <span>

namespace lca::eval {

/// What one text or window adds.
struct Cluster {
  double sum = 0;
  std::int64_t count = 0;
};

struct ClusterMean {
  double mean = 0;  ///< over all predictions
  std::int64_t count = 0, clusters = 0;
  /// Standard error over clusters and the 95 % interval by Student's t; not known for one cluster.
  std::optional<double> error, low, high;
};

/// NaN where there are no predictions.
ClusterMean cluster_mean(std::span<const Cluster> clusters);

/// The value that Student's t with `freedom` degrees of freedom stays below with `probability`
/// (0.5 … 1).
double student_quantile(double probability, double freedom);

}  // namespace lca::eval
