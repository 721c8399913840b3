#pragma once
/// What `lca eval needle` reports: a table, JSON, a picture.

#include "eval/needle.h"

#include <cstdint>
#include <string>
#include <vector>

namespace lca::cli {

struct NeedleReport {
  std::vector<eval::NeedleRow> rows;
  eval::NeedleOptions options;
  std::vector<Settings> settings;
  std::string model;
  std::int64_t tokens_of_text = 0;
  bool built_in = false;
  std::int64_t reused = 0;  ///< samples from a results file
  bool complete = true;
  double seconds = 0;
  std::vector<std::string> warnings;
};

void needle_print(const NeedleReport& report);
void needle_print_json(const NeedleReport& report);
/// Writes the heat maps, one for each number of keys and place of the question.
void needle_plot(const NeedleReport& report, const std::string& path);

}  // namespace lca::cli
