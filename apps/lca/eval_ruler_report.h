#pragma once
/// What `lca eval ruler` prints.

#include "eval/ruler/report.h"

#include <lca/settings.h>

#include <cstddef>
#include <string>
#include <vector>

namespace lca::cli {

struct RulerReport {
  std::vector<eval::RulerRow> rows;
  std::vector<eval::RulerMean> means;
  std::vector<Settings> settings;
  std::string model;
  bool complete = true, built_in_words = false;
  std::size_t reused = 0;
  double seconds = 0;
  std::vector<std::string> warnings;
};

void ruler_print_json(const RulerReport& report);
/// A table, with notes on what was skipped.
void ruler_print(const RulerReport& report);

}  // namespace lca::cli
