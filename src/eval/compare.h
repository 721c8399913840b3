#pragma once
/// Two runs over the same prompts, compared sample by sample.

#include "eval/intervals.h"
#include "eval/results_file.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lca::eval {

/// A results file, read without opening it for a run; a last line that is not whole is left out.
struct ResultsRead {
  Json header;  ///< the fingerprint
  std::vector<Json> rows;
};
/// Throws Error naming what is wrong with the file.
ResultsRead results_read(const std::filesystem::path& path);

/// Samples of one kind that both runs have; scores from 0 to 100.
struct ComparedRow {
  std::string task;  ///< "needle" for needles; "mean": the plain mean over the tasks of a length
  std::int64_t length = 0;
  std::int64_t keys = 0;  ///< of needles
  std::size_t samples = 0;
  double first = 0, second = 0;
  double difference = 0;  ///< second − first
  Interval interval;      ///< of the difference, 95 %: a paired bootstrap over samples
};

struct Compared {
  std::vector<ComparedRow> rows;                ///< by length and task, then the means of lengths
  std::size_t only_first = 0, only_second = 0;  ///< samples without a partner
};

/// Pairs samples of two runs of the same command. Throws Error (incompatible) where their prompts
/// are not the same, and where no sample is in both.
Compared results_compare(const ResultsRead& first, const ResultsRead& second);

}  // namespace lca::eval
