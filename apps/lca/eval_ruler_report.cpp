#include "eval_ruler_report.h"

#include "arguments.h"
#include "core/text.h"
#include "terminal.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <utility>

namespace lca::cli {
namespace {

std::string score_text(double score, const eval::Interval& interval) {
  return fmt::format("{:.1f} ({:.1f}–{:.1f})", score, interval.low, interval.high);
}

}  // namespace

void ruler_print_json(const RulerReport& report) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array(),
                         means = nlohmann::ordered_json::array();
  for (const eval::RulerRow& row : report.rows) {
    const bool known = row.samples > 0;
    const auto number = [&](double value) {
      return known ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
    };
    rows.push_back(
        {{"task", row.task},
         {"length", row.length},
         {"samples", row.samples},
         {"score", number(row.score)},
         {"low", number(row.interval.low)},
         {"high", number(row.interval.high)},
         {"skipped", known ? nlohmann::ordered_json() : nlohmann::ordered_json(row.skipped)}});
  }
  for (const eval::RulerMean& mean : report.means) {
    means.push_back({{"length", mean.length},
                     {"tasks", mean.tasks},
                     {"score", mean.score},
                     {"low", mean.interval.low},
                     {"high", mean.interval.high}});
  }
  print_json({{"rows", rows},
              {"means", means},
              {"complete", report.complete},
              {"built_in_words", report.built_in_words},
              {"model", report.model},
              {"settings", settings_json(report.settings)},
              {"reused_samples", report.reused},
              {"seconds", report.seconds},
              {"warnings", report.warnings}});
}

void ruler_print(const RulerReport& report) {
  std::vector<std::int64_t> lengths;
  std::vector<std::string> tasks;
  std::map<std::pair<std::string, std::int64_t>, const eval::RulerRow*> cells;
  for (const eval::RulerRow& row : report.rows) {
    if (std::ranges::find(lengths, row.length) == lengths.end()) lengths.push_back(row.length);
    if (std::ranges::find(tasks, row.task) == tasks.end()) tasks.push_back(row.task);
    cells[{row.task, row.length}] = &row;
  }
  std::vector<std::string> header{"task"};
  for (const std::int64_t length : lengths) header.push_back(length_text(length));
  Table table(header);
  for (const std::string& task : tasks) {
    std::vector<std::string> line{text_printable(task)};
    for (const std::int64_t length : lengths) {
      const auto found = cells.find({task, length});
      const bool known = found != cells.end() && found->second->samples > 0;
      line.push_back(known ? score_text(found->second->score, found->second->interval) : "–");
    }
    table.add(std::move(line));
  }
  std::vector<std::string> line{"mean"};
  for (const std::int64_t length : lengths) {
    const auto mean = std::ranges::find(report.means, length, &eval::RulerMean::length);
    line.push_back(mean == report.means.end() ? "–" : score_text(mean->score, mean->interval));
  }
  table.add(std::move(line));
  print(fmt::format("{}\n{}\n\n{}", path_printable(report.model), settings_line(report.settings),
                    table.text()));
  std::vector<std::string> told;
  for (const eval::RulerRow& row : report.rows) {
    if (row.samples > 0) continue;
    std::string note = fmt::format("{} skipped: {}", text_printable(row.task), row.skipped);
    if (std::ranges::find(told, note) == told.end()) told.push_back(std::move(note));
  }
  for (const std::string& note : told) print_note(note);
  std::size_t samples = 0;
  for (const eval::RulerRow& row : report.rows) samples += row.samples;
  print_note(fmt::format(
      "{} samples in {}{}", samples, seconds_text(report.seconds),
      report.reused > 0 ? fmt::format(", {} of them from the results file", report.reused) : ""));
}

}  // namespace lca::cli
