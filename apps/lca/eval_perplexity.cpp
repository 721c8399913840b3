/// `lca eval perplexity`: how well a model predicts texts.

#include "command.h"
#include "core/context_state.h"
#include "core/error.h"
#include "core/text.h"
#include "eval/perplexity.h"
#include "eval_common.h"
#include "interrupt.h"
#include "model_flags.h"
#include "reply.h"
#include "terminal.h"
#include "trained_length.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>

namespace lca::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kEvalExamples =
    "The first N tokens of each file are read as one prompt, without a begin token; each but the\n"
    "first is predicted from those before it. --windows reads more windows of N tokens, each by\n"
    "itself. nll is the mean of −ln p in nats, perplexity its exponential, for all predictions "
    "and\n"
    "for each range of positions; intervals (95 %) are over windows. Texts that a model was "
    "trained\n"
    "on are predicted too well: compare methods and adapters on the same windows (--json lists "
    "them).\n"
    "\n"
    "Examples:\n"
    "  lca eval perplexity smollm2 --file book.txt --length 8K\n"
    "  lca eval perplexity smollm2 --file book.txt --length 8K --method dense --json\n"
    "  lca eval perplexity smollm2 --file books/ --length 8K --windows 4 --results books.jsonl\n"
    "  lca eval perplexity path/to/folder --file - --length 4K --adapter path/to/adapter";

struct EvalFlags {
  ModelFlags model;
  TextsFlag files;
  TextFlag length, windows, stride, ranges, results;
  bool json = false;
};

/// Where ranges of positions end: ascending numbers.
std::vector<std::int64_t> ranges_parse(const TextFlag& flag) {
  std::vector<std::int64_t> ends = counts_parse("--ranges", flag.text, 2, kLongestLength);
  const auto wrong = std::ranges::adjacent_find(ends, std::greater_equal());
  if (wrong != ends.end()) {
    fail_input("--ranges takes ascending numbers; {} comes before {}", *wrong, *(wrong + 1));
  }
  return ends;
}

/// What is measured, and what is known of it.
struct PerplexityJob {
  std::vector<std::string> names;                    // of the documents
  std::vector<std::vector<std::int32_t>> documents;  // their tokens
  std::int64_t length = 0;
  std::vector<eval::TextWindow> windows;
  std::vector<eval::PositionRange> ranges;
  std::map<eval::TextWindow, eval::WindowScore> scores;
  std::vector<std::string> warnings;
  std::size_t cache_bytes = 0, dense_bytes = 0;
  std::int64_t read_tokens = 0;  // in this run
  double seconds = 0;
  bool complete = true;

  std::string document(const eval::TextWindow& window) const {
    return fmt::format("{}:{}", window.document, names[window.document]);
  }
  eval::ClusterMean mean(std::size_t range) const {
    std::vector<eval::Cluster> clusters;
    for (const auto& [window, score] : scores) {
      clusters.push_back({score.sums[range], ranges[range].to - ranges[range].from});
    }
    return eval::cluster_mean(clusters);
  }
  eval::ClusterMean mean() const {
    std::vector<eval::Cluster> clusters;
    for (const auto& [window, score] : scores) {
      eval::Cluster cluster{0, length - 1};
      for (const double sum : score.sums) cluster.sum += sum;
      clusters.push_back(cluster);
    }
    return eval::cluster_mean(clusters);
  }
};

Json window_json(const PerplexityJob& job, const eval::TextWindow& window,
                 const eval::WindowScore& score) {
  Json row = {{"document", job.document(window)}, {"from", window.from}, {"tokens", job.length}};
  double all = 0;
  Json ranges = Json::array();
  for (std::size_t i = 0; i < job.ranges.size(); ++i) {
    const auto [from, to] = job.ranges[i];
    all += score.sums[i];
    ranges.push_back({{"from", from},
                      {"to", to},
                      {"tokens", to - from},
                      {"nll", score.sums[i] / static_cast<double>(to - from)}});
  }
  row["nll"] = all / static_cast<double>(job.length - 1);
  row["by_range"] = std::move(ranges);
  return row;
}

/// Takes over the windows that a results file has.
void windows_take_up(PerplexityJob& job, const eval::ResultsFile& results) {
  std::map<std::pair<std::string, std::int64_t>, eval::TextWindow> wanted;
  for (const eval::TextWindow& window : job.windows) {
    wanted[{job.document(window), window.from}] = window;
  }
  for (const Json& row : results.rows()) {
    try {
      const auto found =
          wanted.find({row.at("document").get<std::string>(), row.at("from").get<std::int64_t>()});
      eval::WindowScore score;
      for (const Json& range : row.at("by_range")) {
        score.sums.push_back(range.at("nll").get<double>() * range.at("tokens").get<double>());
      }
      if (score.sums.size() != job.ranges.size()) throw Json::other_error::create(501, "", nullptr);
      if (found != wanted.end()) job.scores[found->second] = std::move(score);
    } catch (const Json::exception&) {
      fail_input("a line of the results file is not one of perplexity: {}",
                 text_printable(row.dump(-1, ' ', false, Json::error_handler_t::replace)));
    }
  }
}

/// Measures what is missing, with a progress line.
void windows_measure(PerplexityJob& job, const std::shared_ptr<const Model>& model,
                     Context& context, const SessionOptions& session, eval::ResultsFile* results) {
  std::vector<eval::TextWindow> left;
  for (const eval::TextWindow& window : job.windows) {
    if (!job.scores.contains(window)) left.push_back(window);
  }
  const InterruptWatch interrupts;
  const InterruptStop stop;
  const auto total = static_cast<std::int64_t>(left.size()) * job.length;
  Progress progress(static_cast<double>(total));
  progress.step(fmt::format("reading {} tokens", count_text(total)), 0);
  const Stopwatch watch;
  eval::ReadOptions options;
  options.session = session;
  options.stop = stop.token();
  options.progress = [&](std::int64_t tokens) {
    job.read_tokens = tokens;
    const double rate = static_cast<double>(tokens) / std::max(1e-9, watch.seconds());
    progress.reached(static_cast<double>(tokens),
                     fmt::format("reading {} of {} tokens, {} tokens/s", count_text(tokens),
                                 count_text(total), number_text(rate)));
  };
  try {
    eval::perplexity_run(
        model, context, job.documents, left, job.length, job.ranges,
        [&](std::size_t index, eval::WindowScore score, const Session& read) {
          job.cache_bytes = read.cache_bytes();
          job.dense_bytes = read.dense_bytes();
          if (results != nullptr) results->add(window_json(job, left[index], score));
          job.scores[left[index]] = std::move(score);
        },
        options);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::cancelled) throw;
    job.complete = false;
  }
  job.seconds = watch.seconds();
}

Json optional_json(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

void mean_add(Json& json, const eval::ClusterMean& mean) {
  json["nll"] = mean.mean;
  json["perplexity"] = std::exp(mean.mean);
  json["nll_error"] = optional_json(mean.error);
  json["perplexity_low"] = mean.low ? Json(std::exp(*mean.low)) : Json();
  json["perplexity_high"] = mean.high ? Json(std::exp(*mean.high)) : Json();
}

void print_report_json(const PerplexityJob& job, const Model& model,
                       const SessionOptions& session) {
  const ModelInfo& info = model.info();
  Json report = {{"tokens", static_cast<std::int64_t>(job.scores.size()) * job.length}};
  mean_add(report, job.mean());
  report["by_range"] = Json::array();
  for (std::size_t i = 0; i < job.ranges.size(); ++i) {
    const auto [from, to] = job.ranges[i];
    const eval::ClusterMean mean = job.mean(i);
    Json range = {{"from", from}, {"to", to}, {"tokens", mean.count}};
    mean_add(range, mean);
    report["by_range"].push_back(std::move(range));
  }
  report["windows"] = Json::array();
  for (const auto& [window, score] : job.scores) {
    report["windows"].push_back(window_json(job, window, score));
  }
  report.update(
      {{"complete", job.complete},
       {"model", info.path},
       {"context", info.context},
       {"longest_in_range", longest_in_range_json(info.context, session.settings)},
       {"settings", settings_json(session.settings)},
       {"seconds", job.seconds},
       {"tokens_per_s", static_cast<double>(job.read_tokens) / std::max(1e-9, job.seconds)},
       {"cache_bytes", job.cache_bytes},
       {"dense_cache_bytes", job.dense_bytes},
       {"warnings", job.warnings}});
  print_json(report);
}

void print_report(const PerplexityJob& job, const Model& model, const SessionOptions& session) {
  const bool several = job.scores.size() > 1;
  std::vector<std::string> header = {"tokens", "predictions", "nll", "perplexity"};
  if (several) header.emplace_back("95 %");
  Table table(header);
  const auto add = [&](const std::string& label, const eval::ClusterMean& mean) {
    std::vector<std::string> row = {label, count_text(mean.count), fmt::format("{:.4f}", mean.mean),
                                    fmt::format("{:.3f}", std::exp(mean.mean))};
    if (several) {
      row.push_back(fmt::format("{:.3f} – {:.3f}", std::exp(*mean.low), std::exp(*mean.high)));
    }
    table.add(std::move(row));
  };
  for (std::size_t i = 0; i < job.ranges.size(); ++i) {
    const auto [from, to] = job.ranges[i];
    add(fmt::format("{} – {}", length_text(from == 1 ? 0 : from), length_text(to)), job.mean(i));
  }
  if (job.ranges.size() > 1) add("all", job.mean());
  print(fmt::format("{}\n{}\n\n{}", path_printable(model.info().path),
                    settings_line(session.settings), table.text()));
  if (several || job.windows.size() > 1) {
    print_note(fmt::format("{} windows of {} tokens from {} documents{}", job.scores.size(),
                           count_text(job.length), job.documents.size(),
                           job.complete ? "" : "; interrupted"));
  }
  if (job.read_tokens == 0) return;
  const auto cache = static_cast<double>(job.cache_bytes);
  const auto dense = static_cast<double>(job.dense_bytes);
  print_note(fmt::format("{} tokens in {} ({} tokens/s); cache {}, dense would need {}",
                         job.read_tokens, seconds_text(job.seconds),
                         number_text(static_cast<double>(job.read_tokens) / job.seconds),
                         bytes_text(cache, dense), bytes_text(dense)));
}

/// Encodes the documents and lays windows over them.
PerplexityJob job_make(const EvalFlags& flags, const std::vector<TextsFlag::Text>& texts,
                       const Model& model, Context& context, std::int64_t length,
                       std::int64_t stride, std::int64_t most) {
  PerplexityJob job;
  job.length = length;
  job.documents.resize(texts.size());
  context.state().pool.run(std::ssize(texts), [&](std::int64_t task, int) {
    const auto i = static_cast<std::size_t>(task);
    job.documents[i] = model.tokenizer().encode(texts[i].text);
  });
  std::vector<std::int64_t> sizes;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    job.names.push_back(texts[i].path);
    check_ids(job.documents[i], model.info());
    sizes.push_back(std::ssize(job.documents[i]));
  }
  job.windows = eval::text_windows(sizes, length, stride, most);
  std::size_t shorter = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] >= length) continue;
    if (++shorter == 1 && (job.windows.empty() || sizes.size() == 1)) {
      fail_input("{}: holds {} tokens, fewer than --length {}", path_printable(job.names[i]),
                 sizes[i], length);
    }
  }
  if (shorter > 0) {
    job.warnings.push_back(
        fmt::format("{} of {} documents hold fewer than {} tokens and are left "
                    "out",
                    shorter, sizes.size(), length));
  }
  job.ranges = eval::position_ranges(ranges_parse(flags.ranges), length);
  return job;
}

void run(const EvalFlags& flags) {
  constexpr std::int64_t kMostWindows = 1'000'000;
  flags.model.check();
  if (!flags.files.given()) {
    fail_input("--file is missing; it takes a text file, a folder, or - for standard input");
  }
  if (!flags.length.given())
    fail_input("--length is missing; it takes the number of tokens to read");
  const std::int64_t length = count_parse("--length", flags.length.text, 2);
  const std::int64_t stride =
      flags.stride.given() ? count_parse("--stride", flags.stride.text, 1) : length;
  const std::int64_t most = flags.windows.text == "all"
                                ? 0
                                : count_parse("--windows", flags.windows.text, 1, kMostWindows);
  const std::vector<std::int64_t> ends = ranges_parse(flags.ranges);
  const std::shared_ptr<const Model> model = flags.model.load();
  const std::vector<TextsFlag::Text> texts = flags.files.read();
  Context context(flags.model.threads());
  PerplexityJob job = job_make(flags, texts, *model, context, length, stride, most);
  const SessionOptions session = flags.model.session_options(*model);
  session_require(*model, session, length, context.threads(),
                  fmt::format("a text of {} tokens", length));

  Json fingerprint = run_fingerprint("perplexity", *model, session);
  fingerprint.update({{"texts", texts_fingerprint(texts)},
                      {"length", length},
                      {"stride", stride},
                      {"ranges", ends}});
  const std::unique_ptr<eval::ResultsFile> results = results_open(flags.results, fingerprint);
  if (results) windows_take_up(job, *results);
  for (const std::string& text : job.warnings) print_note("lca: warning: " + text);
  ContextWarning warning(model->info(), session.settings, "its predictions may be far off");
  warning.check(length);
  job.warnings.insert(job.warnings.end(), warning.given().begin(), warning.given().end());
  windows_measure(job, model, context, session, results.get());
  if (!job.scores.empty() && flags.json) {
    print_report_json(job, *model, session);
  } else if (!job.scores.empty()) {
    print_report(job, *model, session);
  }
  if (!job.complete) throw Error(ErrorKind::cancelled, "interrupted");
}

}  // namespace

Command eval_perplexity_command(CLI::App& parent) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* app = parent.add_subcommand("perplexity", "How well a model predicts texts");
  app->footer(kEvalExamples);
  flags->files.add(*app, "--file", TextsFlag::Values::one,
                   "a text, or a folder of them; may be repeated; - reads standard input "
                   "(required)");
  flags->length.add(*app, "--length", "N", "tokens of a window (required)");
  flags->windows.add(*app, "--windows", "N|all", "windows of each text, at most", "1");
  flags->stride.add(*app, "--stride", "N",
                    "tokens from the beginning of one window to the next; --length unless given");
  flags->ranges.add(*app, "--ranges", "N,N,...", "where ranges of positions end",
                    "2K,4K,8K,16K,32K,64K,112K");
  flags->results.add(*app, "--results", "FILE",
                     "keep every window in this file, and go on where it ends");
  app->add_flag("--json", flags->json, "print JSON");
  flags->model.add(*app, "f32");
  return {app, [flags] { run(*flags); }};
}

}  // namespace lca::cli
