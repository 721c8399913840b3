#include "eval/compare.h"

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "eval/ruler/tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>

namespace lca::eval {
namespace {

/// What a header says of the model; everything else in it decides the prompts.
constexpr std::string_view kModelFields[] = {
    "lca", "model", "adapter", "settings", "precision", "weights", "groups", "cache", "device"};

/// One sample of either command.
struct ComparedSample {
  std::string task;
  std::int64_t length = 0, keys = 0;
  std::string which;   // among those of the same task, length and keys
  double score = 0;    // 0 … 1
  std::string prompt;  // its hash; empty: not in the file

  /// Sorts by length, and RULER's tasks in its order.
  auto kind() const {
    const RulerTask* known = ruler_task_find(task);
    const std::ptrdiff_t place = known == nullptr ? -1 : known - ruler_tasks().data();
    return std::tuple(length, place, task, keys);
  }
};
using ComparedKind = decltype(ComparedSample{}.kind());

std::string compare_shown(const Json& json) {
  return text_printable(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

ComparedSample compared_sample(const Json& row) {
  ComparedSample sample;
  try {
    sample.length = row.at("length").get<std::int64_t>();
    if (row.contains("hit")) {
      sample.task = "needle";
      sample.keys = row.at("keys").get<std::int64_t>();
      sample.which = Json{row.at("depth"), row.at("question"), row.at("sample")}.dump();
      sample.score = row.at("hit").get<bool>() ? 1 : 0;
      sample.prompt = compare_shown(Json{row.value("key", ""), row.value("value", "")});
    } else {
      sample.task = row.at("task").get<std::string>();
      sample.which = row.at("index").dump();
      sample.score = row.at("score").get<double>();
      sample.prompt = row.value("prompt", "");
    }
  } catch (const Json::exception&) {
    fail_input("a line is no sample of needles or of RULER's tasks: {}", compare_shown(row));
  }
  if (!(sample.score >= 0 && sample.score <= 1)) {
    fail_input("a score is not from 0 to 1: {}", compare_shown(row));
  }
  return sample;
}

using ComparedSamples = std::map<ComparedKind, std::map<std::string, ComparedSample>>;

ComparedSamples compared_samples(const ResultsRead& results) {
  ComparedSamples samples;
  for (const Json& row : results.rows) {
    ComparedSample sample = compared_sample(row);
    samples[sample.kind()].insert_or_assign(sample.which, sample);
  }
  return samples;
}

/// Lines of RULER's tasks carry hashes of their prompts, which say more than how these were made.
/// The chat format around them is not hashed.
void require_same_prompts(const Json& first, const Json& second) {
  const Json ruler = "ruler";
  const bool hashed =
      first.value("command", Json()) == ruler && second.value("command", Json()) == ruler;
  const auto check = [hashed](const Json& one, const Json& other) {
    for (const auto& [name, value] : one.items()) {
      if (hashed && name != "chat_format") continue;
      if (std::ranges::find(kModelFields, name) != std::end(kModelFields)) continue;
      const Json there = other.contains(name) ? other[name] : Json();
      if (there != value) {
        fail_incompatible("the runs had other prompts: {} is {} in one and {} in the other",
                          text_printable(name), compare_shown(value), compare_shown(there));
      }
    }
  };
  check(first, second);
  check(second, first);
}

/// Means and differences of pairs.
struct ComparedPairs {
  std::vector<double> first, second, difference;

  void add(double one, double other) {
    first.push_back(one);
    second.push_back(other);
    difference.push_back(other - one);
  }
};

ComparedRow compared_row(std::string task, std::int64_t length, std::int64_t keys,
                         std::span<const ComparedPairs* const> groups) {
  ComparedRow row{std::move(task), length, keys, 0, 0, 0, 0, {}};
  std::vector<std::vector<double>> differences;
  const double share = 100.0 / static_cast<double>(groups.size());
  for (const ComparedPairs* pairs : groups) {
    row.samples += pairs->first.size();
    row.first += share * mean_of(pairs->first);
    row.second += share * mean_of(pairs->second);
    differences.push_back(pairs->difference);
  }
  row.difference = row.second - row.first;
  const Interval interval = mean_interval(differences);
  row.interval = {100 * interval.low, 100 * interval.high};
  return row;
}

}  // namespace

ResultsRead results_read(const std::filesystem::path& path) {
  const MappedFile mapped(path, FileAccess::read);
  const std::string_view text(reinterpret_cast<const char*>(mapped.bytes().data()),
                              mapped.bytes().size());
  const std::string name = path_printable(path.string());
  ResultsRead read;
  std::size_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string_view::npos) break;
    Json line = Json::parse(text.substr(at, end - at), nullptr, false);
    at = end + 1;
    ++number;
    if (!line.is_object()) fail_input("{}: line {} is no JSON object", name, number);
    if (number == 1) {
      read.header = std::move(line);
    } else {
      read.rows.push_back(std::move(line));
    }
  }
  if (!read.header.is_object() || !read.header.contains("lca_results")) {
    fail_input("{}: is no results file of an evaluation", name);
  }
  return read;
}

Compared results_compare(const ResultsRead& first, const ResultsRead& second) {
  require_same_prompts(first.header, second.header);
  const ComparedSamples ones = compared_samples(first);
  ComparedSamples others = compared_samples(second);
  Compared compared;
  std::map<ComparedKind, ComparedPairs> pairs;
  for (const auto& [kind, samples] : ones) {
    for (const auto& [which, one] : samples) {
      auto& partners = others[kind];
      const auto other = partners.find(which);
      if (other == partners.end()) {
        ++compared.only_first;
        continue;
      }
      if (one.prompt != other->second.prompt) {
        fail_incompatible("the runs had other prompts: sample {} of {} at {} differs", which,
                          text_printable(one.task), one.length);
      }
      pairs[kind].add(one.score, other->second.score);
      partners.erase(other);
    }
  }
  for (const auto& [kind, samples] : others) compared.only_second += samples.size();
  if (pairs.empty()) fail_incompatible("no sample is in both files");

  std::map<std::int64_t, std::vector<const ComparedPairs*>> by_length;
  for (const auto& [kind, each] : pairs) {
    const auto& [length, place, task, keys] = kind;
    const ComparedPairs* group = &each;
    compared.rows.push_back(compared_row(task, length, keys, {&group, 1}));
    by_length[length].push_back(group);
  }
  for (const auto& [length, groups] : by_length) {
    if (groups.size() > 1) compared.rows.push_back(compared_row("mean", length, 0, groups));
  }
  return compared;
}

}  // namespace lca::eval
