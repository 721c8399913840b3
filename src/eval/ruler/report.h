#pragma once
/// Scores of a run: by task and length, and their means.

#include "eval/intervals.h"
#include "eval/ruler/prompts.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lca::eval {

/// Scores from 0 to 100, with an interval of 95 %.
struct RulerRow {
  std::string task;
  std::int64_t length = 0;
  std::size_t samples = 0;
  double score = 0;
  Interval interval;
  std::string skipped;  ///< why there are no samples
};

/// The plain mean over the tasks that were not skipped.
struct RulerMean {
  std::int64_t length = 0;
  std::size_t tasks = 0;
  double score = 0;
  Interval interval;
};

/// Scores of samples, 0 … 1, as they come.
class RulerScores {
 public:
  explicit RulerScores(const RulerPrompts& prompts);
  void add(std::size_t index, double score);

  /// One row for each part.
  std::vector<RulerRow> rows() const;
  /// One for each length with a score, ascending.
  std::vector<RulerMean> means() const;
  /// Mean of all scores so far, 0 … 100.
  double mean() const;

 private:
  const RulerPrompts& prompts_;
  std::vector<std::vector<double>> scores_;  // of each part, by sample; below 0: not known
};

}  // namespace lca::eval
