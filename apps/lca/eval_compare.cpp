/// `lca eval compare`: two runs over the same prompts.

#include "arguments.h"
#include "command.h"
#include "core/text.h"
#include "eval/compare.h"
#include "terminal.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <string>

namespace lca::cli {
namespace {

constexpr const char* kCompareExamples =
    "Takes the files that `lca eval ruler` and `lca eval needle` write with --results. Samples "
    "with\n"
    "the same prompt are pairs; the interval of the difference is a paired bootstrap over them, 95 "
    "%.\n"
    "Scores are from 0 to 100; mean is the plain mean over the tasks of a length.\n"
    "\n"
    "Examples:\n"
    "  lca eval compare dense.jsonl lca.jsonl\n"
    "  lca eval compare base.jsonl adapter.jsonl --json";

struct CompareFlags {
  std::string first, second;
  CommonFlags common;
  bool json = false;
};

void print_compared_json(const eval::Compared& compared) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const eval::ComparedRow& row : compared.rows) {
    nlohmann::ordered_json line{{"task", row.task}, {"length", row.length}};
    if (row.keys > 0) line["keys"] = row.keys;
    line.update({{"samples", row.samples},
                 {"a", row.first},
                 {"b", row.second},
                 {"difference", row.difference},
                 {"low", row.interval.low},
                 {"high", row.interval.high}});
    rows.push_back(std::move(line));
  }
  print_json({{"rows", rows}, {"only_a", compared.only_first}, {"only_b", compared.only_second}});
}

void print_compared(const eval::Compared& compared) {
  Table table({"task", "length", "samples", "A", "B", "B − A", "95 %"});
  for (const eval::ComparedRow& row : compared.rows) {
    table.add(
        {row.keys > 0 ? fmt::format("{}, {} keys", row.task, row.keys) : text_printable(row.task),
         length_text(row.length), fmt::format("{}", row.samples), fmt::format("{:.1f}", row.first),
         fmt::format("{:.1f}", row.second), fmt::format("{:+.1f}", row.difference),
         fmt::format("{:+.1f} … {:+.1f}", row.interval.low, row.interval.high)});
  }
  print(table.text());
  if (compared.only_first + compared.only_second > 0) {
    print_note(fmt::format("left out: {} samples that only A has, {} that only B has",
                           compared.only_first, compared.only_second));
  }
}

void run(const CompareFlags& flags) {
  const eval::ResultsRead first = eval::results_read(flags.first);
  const eval::ResultsRead second = eval::results_read(flags.second);
  const eval::Compared compared = eval::results_compare(first, second);
  if (flags.json) {
    print_compared_json(compared);
  } else {
    print_compared(compared);
  }
}

}  // namespace

Command eval_compare_command(CLI::App& parent) {
  auto flags = std::make_shared<CompareFlags>();
  CLI::App* app = parent.add_subcommand("compare", "Two results files, sample by sample");
  app->footer(kCompareExamples);
  app->add_option("A", flags->first, "results of one run")->required()->type_name("FILE");
  app->add_option("B", flags->second, "results of another")->required()->type_name("FILE");
  app->add_flag("--json", flags->json, "print JSON");
  flags->common.add(*app);
  return {app, [flags] { run(*flags); }};
}

}  // namespace lca::cli
