#include "eval_needle_report.h"

#include "arguments.h"
#include "core/file.h"
#include "core/text.h"
#include "eval_common.h"
#include "plot_heat.h"
#include "terminal.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

namespace lca::cli {
namespace {

/// All samples of one cell of the map, whatever their place.
struct NeedleCell {
  std::int64_t hits = 0, samples = 0, outside = 0, inside = 0;

  bool is_outside() const { return outside == samples; }
  bool is_inside() const { return inside == samples; }
};

NeedleCell cell_of(const NeedleReport& report, std::int64_t length, std::int64_t keys, double depth,
                   eval::Question question) {
  NeedleCell cell;
  for (const eval::NeedleRow& row : report.rows) {
    if (row.length != length || row.keys != keys || row.depth != depth || row.question != question)
      continue;
    cell.hits += row.hits;
    cell.samples += row.samples;
    if (row.place == eval::Place::outside) cell.outside += row.samples;
    if (row.place == eval::Place::inside) cell.inside += row.samples;
  }
  return cell;
}

std::string depth_text(double depth) { return fmt::format("{:.3g} %", 100 * depth); }

std::string map_title(std::int64_t keys, eval::Question question) {
  const std::string what = keys == 1 ? "one number" : fmt::format("one of {} numbers", keys);
  return question == eval::Question::last ? what : what + ", question first";
}

std::string cell_text(const NeedleCell& cell) {
  if (cell.samples == 0) return "–";
  const std::string share = share_text(cell.hits, cell.samples);
  if (cell.is_outside()) return share;
  return cell.is_inside() ? fmt::format("({})", share) : fmt::format("[{}]", share);
}

template <typename Visit>
void maps_visit(const NeedleReport& report, const Visit& visit) {
  for (const std::int64_t keys : report.options.keys) {
    for (const eval::Question question : report.options.questions) visit(keys, question);
  }
}

std::string totals_text(const NeedleReport& report) {
  Table table({"tokens", "keys", "question", "place", "hits", "samples", "found"});
  std::vector<eval::NeedleRow> sums;
  for (const eval::NeedleRow& row : report.rows) {
    const auto same = std::ranges::find_if(sums, [&](const eval::NeedleRow& sum) {
      return sum.length == row.length && sum.keys == row.keys && sum.place == row.place &&
             sum.question == row.question;
    });
    if (same == sums.end()) {
      sums.push_back(row);
    } else {
      same->hits += row.hits;
      same->samples += row.samples;
    }
  }
  for (const eval::NeedleRow& row : sums) {
    table.add({length_text(row.length), fmt::format("{}", row.keys),
               std::string(eval::question_name(row.question)),
               std::string(eval::place_name(row.place)), fmt::format("{}", row.hits),
               fmt::format("{}", row.samples), share_text(row.hits, row.samples)});
  }
  return table.text();
}

}  // namespace

void needle_print(const NeedleReport& report) {
  std::string text =
      fmt::format("{}\n{}\n", path_printable(report.model), settings_line(report.settings));
  maps_visit(report, [&](std::int64_t keys, eval::Question question) {
    std::vector<std::string> header = {"depth"};
    for (const std::int64_t length : report.options.lengths) header.push_back(length_text(length));
    Table table(header);
    for (const double depth : report.options.depths) {
      std::vector<std::string> line = {depth_text(depth)};
      for (const std::int64_t length : report.options.lengths) {
        line.push_back(cell_text(cell_of(report, length, keys, depth, question)));
      }
      table.add(std::move(line));
    }
    text += fmt::format("\n{}\n{}", map_title(keys, question), table.text());
  });
  text += fmt::format("\n{}", totals_text(report));
  print(text);
  print_note("(…) the number was exact when the reply began, […] in some samples or in part");
  if (report.built_in) print_note("the text was short sentences that repeat; --text names others");
  std::int64_t samples = 0;
  for (const eval::NeedleRow& row : report.rows) samples += row.samples;
  print_note(fmt::format("{} samples, {} of them from the results file, in {}{}", samples,
                         report.reused, seconds_text(report.seconds),
                         report.complete ? "" : "; interrupted"));
}

void needle_print_json(const NeedleReport& report) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const eval::NeedleRow& row : report.rows) {
    rows.push_back({{"length", row.length},
                    {"keys", row.keys},
                    {"depth", row.depth},
                    {"place", eval::place_name(row.place)},
                    {"question", eval::question_name(row.question)},
                    {"hits", row.hits},
                    {"samples", row.samples}});
  }
  print_json({{"rows", rows},
              {"complete", report.complete},
              {"seed", report.options.seed},
              {"prefix", report.options.prefix},
              {"text_tokens", report.tokens_of_text},
              {"built_in_text", report.built_in},
              {"model", report.model},
              {"settings", settings_json(report.settings)},
              {"reused_samples", report.reused},
              {"seconds", report.seconds},
              {"warnings", report.warnings}});
}

void needle_plot(const NeedleReport& report, const std::string& path) {
  std::vector<HeatMap> maps;
  maps_visit(report, [&](std::int64_t keys, eval::Question question) {
    HeatMap map;
    map.title = map_title(keys, question);
    for (const std::int64_t length : report.options.lengths) {
      map.columns.push_back(length_text(length));
    }
    for (const double depth : report.options.depths) {
      map.rows.push_back(depth_text(depth));
      map.cells.emplace_back();
      for (const std::int64_t length : report.options.lengths) {
        const NeedleCell cell = cell_of(report, length, keys, depth, question);
        HeatCell drawn;
        drawn.known = cell.samples > 0;
        if (drawn.known) {
          drawn.share = static_cast<double>(cell.hits) / static_cast<double>(cell.samples);
          drawn.text = share_text(cell.hits, cell.samples);
          drawn.framed = cell.is_inside();
        }
        map.cells.back().push_back(std::move(drawn));
      }
    }
    maps.push_back(std::move(map));
  });
  const Settings& first = report.settings.front();
  const std::string svg = plot_heat_svg("Numbers found in a long text",
                                        fmt::format("{}; framed: exact when the reply begins",
                                                    settings_line(std::vector<Settings>{first})),
                                        "tokens", "depth", maps);
  FileWriter writer(path);
  writer.write(std::as_bytes(std::span(svg)));
  writer.commit();
}

}  // namespace lca::cli
