/// `lca eval needle`: whether a model finds numbers in long texts, by length and depth.

#include "command.h"
#include "core/context_state.h"
#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "eval/needle.h"
#include "eval_common.h"
#include "eval_needle_report.h"
#include "interrupt.h"
#include "model_flags.h"
#include "reply.h"
#include "terminal.h"
#include "trained_length.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>

namespace lca::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kNeedleExamples =
    "Each sample hides one or more numbers in a long text and asks for one of them, in the "
    "model's\n"
    "chat format and with the wording of RULER's NIAH tasks; the reply begins with RULER's answer\n"
    "prefix. Prompt and reply (16 tokens, greedy) take at most --lengths tokens; depth is the "
    "share\n"
    "of the text before the number, which stands between the two nearest sentences. A hit is a\n"
    "reply that contains the number. outside: the number's sentence is condensed (or forgotten, "
    "with\n"
    "--method window) when the reply begins; straddling: a part of it; inside: nothing of it.\n"
    "The same seed and texts give the same prompts for every method and adapter.\n"
    "\n"
    "Examples:\n"
    "  lca eval needle smollm2 --text essays.txt --lengths 2K,4K --samples 4\n"
    "  lca eval needle smollm2 --text essays/ --lengths 4K,8K --keys 1,4 --depths 0,0.2,0.4,0.6 "
    "\\\n"
    "      --samples 50 --results needle.jsonl --plot needle.svg\n"
    "  lca eval needle smollm2 --text essays.txt --method dense --json";

struct NeedleFlags {
  ModelFlags model;
  TextsFlag texts;
  TextFlag lengths, depths, keys, samples, question, seed, chat_format, results, dump, plot;
  bool no_prefix = false;
  bool json = false;
};

/// Shares from 0 to 1, or percentages: 0.25 or 25%.
std::vector<double> depths_parse(const std::string& text) {
  std::vector<double> depths;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    std::string part = text.substr(at, end - at);
    const bool percent = part.ends_with('%');
    if (percent) part.pop_back();
    const double depth = number_parse("--depths", part, 0, percent ? 100 : 1);
    depths.push_back(percent ? depth / 100 : depth);
    at = end + 1;
  }
  return depths;
}

template <typename T>
void require_different(const char* flag, std::vector<T> values) {
  std::ranges::sort(values);
  if (const auto twice = std::ranges::adjacent_find(values); twice != values.end()) {
    fail_input("{} names {} twice", flag, *twice);
  }
}

eval::NeedleOptions needle_options(const NeedleFlags& flags) {
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 30, kMost = 1'000'000, kKeys = 64;
  static constexpr std::string_view kQuestions[] = {"last", "first", "both"};
  eval::NeedleOptions options;
  options.lengths = counts_parse("--lengths", flags.lengths.text, 1, kMostTokens);
  options.keys = counts_parse("--keys", flags.keys.text, 1, kKeys);
  options.depths = depths_parse(flags.depths.text);
  options.samples = count_parse("--samples", flags.samples.text, 1, kMost);
  options.seed = static_cast<std::uint64_t>(
      count_parse("--seed", flags.seed.text, 0, std::numeric_limits<std::int64_t>::max() - 1));
  options.prefix = !flags.no_prefix;
  switch (choice_parse("--question", flags.question.text, kQuestions)) {
    case 0:
      options.questions = {eval::Question::last};
      break;
    case 1:
      options.questions = {eval::Question::first};
      break;
    default:
      options.questions = {eval::Question::last, eval::Question::first};
  }
  require_different("--lengths", options.lengths);
  require_different("--keys", options.keys);
  require_different("--depths", options.depths);
  return options;
}

Json case_json(const eval::NeedleCase& sample) {
  return {{"length", sample.length},
          {"keys", sample.keys},
          {"depth", sample.depth},
          {"question", eval::question_name(sample.question)},
          {"sample", sample.sample}};
}

/// The case of a line of results; nothing where the line is of another kind.
std::optional<eval::NeedleCase> case_read(const Json& row) {
  try {
    const auto question = row.at("question").get<std::string>();
    return eval::NeedleCase{row.at("length").get<std::int64_t>(),
                            row.at("keys").get<std::int64_t>(), row.at("depth").get<double>(),
                            question == "first" ? eval::Question::first : eval::Question::last,
                            row.at("sample").get<std::int64_t>()};
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

auto case_order(const eval::NeedleCase& sample) {
  return std::tuple(sample.length, sample.keys, sample.depth, sample.question, sample.sample);
}

/// One run: what is asked for, what a results file had of it, and what came since.
class NeedleRun {
 public:
  NeedleRun(const eval::NeedleTask& task, const SessionOptions& session)
      : task_(task), layers_(session.settings) {
    for (std::size_t i = 0; i < task.count(); ++i) missing_.emplace(case_order(task.at(i)), i);
  }

  /// Takes over what was measured earlier; other samples of the same run stay in the file unused.
  void take_up(eval::ResultsFile& results) {
    results_ = &results;
    for (const Json& row : results.rows()) {
      const std::optional<eval::NeedleCase> sample = case_read(row);
      const std::optional<eval::Place> place = place_read(row);
      const auto hit = row.find("hit");
      if (!sample || !place || hit == row.end() || !hit->is_boolean()) {
        fail_input("a line of the results file is not one of needle: {}",
                   text_printable(row.dump(-1, ' ', false, Json::error_handler_t::replace)));
      }
      const auto found = missing_.find(case_order(*sample));
      if (found == missing_.end()) continue;
      missing_.erase(found);
      ++reused_;
      count(*sample, *place, hit->get<bool>());
    }
  }

  /// Indices of the samples that are left, in their order.
  std::vector<std::size_t> left() const {
    std::vector<std::size_t> which;
    for (const auto& [order, index] : missing_) which.push_back(index);
    std::ranges::sort(which);
    return which;
  }

  eval::EvalPrompt make(std::size_t index) {
    eval::NeedlePrompt prompt = task_.make(task_.at(index));
    const auto length = std::ssize(prompt.ids);
    const eval::Place place = eval::place_of(layers_, prompt.begin, prompt.end, length);
    asked_[index] = {place, prompt.key, prompt.value};
    return {std::move(prompt.ids), eval::kNeedleReply};
  }

  void done(std::size_t index, const eval::EvalReply& reply) {
    const Asked asked = asked_.extract(index).mapped();
    const eval::NeedleCase sample = task_.at(index);
    const bool hit = eval::needle_hit(reply.text, asked.value);
    count(sample, asked.place, hit);
    if (results_ == nullptr) return;
    Json row = case_json(sample);
    row.update({{"place", eval::place_name(asked.place)},
                {"hit", hit},
                {"key", asked.key},
                {"value", asked.value},
                {"reply", reply.text},
                {"prompt_tokens", reply.prompt_tokens}});
    results_->add(row);
  }

  const eval::NeedleTable& table() const { return table_; }
  std::int64_t reused() const { return reused_; }
  std::string note() const { return fmt::format(", {} found", share_text(hits_, samples_)); }

 private:
  struct Asked {
    eval::Place place = eval::Place::inside;
    std::string key, value;
  };

  static std::optional<eval::Place> place_read(const Json& row) {
    const auto found = row.find("place");
    if (found == row.end() || !found->is_string()) return std::nullopt;
    for (const eval::Place place :
         {eval::Place::inside, eval::Place::straddling, eval::Place::outside}) {
      if (found->get<std::string>() == eval::place_name(place)) return place;
    }
    return std::nullopt;
  }

  void count(const eval::NeedleCase& sample, eval::Place place, bool hit) {
    table_.add(sample, place, hit);
    ++samples_;
    if (hit) ++hits_;
  }

  const eval::NeedleTask& task_;
  const std::vector<Settings> layers_;
  std::map<decltype(case_order({})), std::size_t> missing_;
  std::map<std::size_t, Asked> asked_;
  eval::ResultsFile* results_ = nullptr;
  eval::NeedleTable table_;
  std::int64_t hits_ = 0, samples_ = 0, reused_ = 0;
};

/// Writes every prompt with what is asked for, before the model runs.
void dump_write(const std::string& path, const eval::NeedleTask& task, const Tokenizer& tokenizer,
                const SessionOptions& session) {
  const InterruptWatch interrupts;
  FileWriter writer(path);
  for (std::size_t i = 0; i < task.count(); ++i) {
    interrupt_check();
    const eval::NeedleCase sample = task.at(i);
    const eval::NeedlePrompt prompt = task.make(sample);
    const auto length = std::ssize(prompt.ids);
    Json row = case_json(sample);
    row.update({{"place", eval::place_name(
                              eval::place_of(session.settings, prompt.begin, prompt.end, length))},
                {"key", prompt.key},
                {"value", prompt.value},
                {"needle_begin", prompt.begin},
                {"needle_end", prompt.end},
                {"prompt_tokens", length},
                {"prompt", tokenizer.decode(prompt.ids, true)}});
    const std::string line = row.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    writer.write(std::as_bytes(std::span(line)));
  }
  writer.commit();
}

void run(const NeedleFlags& flags) {
  flags.model.check();
  const eval::NeedleOptions options = needle_options(flags);
  for (const TextFlag* out : {&flags.dump, &flags.plot}) {
    if (out->given()) writable_check(out->text);
  }
  const std::vector<TextsFlag::Text> texts = flags.texts.read();
  const std::shared_ptr<const Model> model = flags.model.load();
  tokenizer_warn(model->tokenizer());
  const SessionOptions session = flags.model.session_options(*model);
  Context context(flags.model.threads());
  const std::int64_t longest = std::ranges::max(options.lengths);
  session_require(*model, session, longest, context.threads(),
                  fmt::format("prompts of {} tokens", longest));

  std::vector<std::string> contents;
  for (const TextsFlag::Text& text : texts) contents.push_back(text.text);
  const eval::NeedleTask task(model->tokenizer(), chat_template(*model, flags.chat_format),
                              contents, options, &context.state().pool);
  Json fingerprint = run_fingerprint("needle", *model, session);
  fingerprint["texts"] = texts.empty() ? "built-in" : texts_fingerprint(texts);
  fingerprint["seed"] = options.seed;
  fingerprint["prefix"] = options.prefix;
  fingerprint["chat_format"] = chat_format_name(chat_template(*model, flags.chat_format).format());
  const std::unique_ptr<eval::ResultsFile> results = results_open(flags.results, fingerprint);
  for (const std::int64_t length : options.lengths) {  // says so now where one is too short
    task.make({length, std::ranges::max(options.keys), 0.5, options.questions.front(), 0});
  }

  NeedleRun measured(task, session);
  if (results) measured.take_up(*results);
  ContextWarning warning(model->info(), session.settings);
  warning.check(longest);
  if (flags.dump.given()) dump_write(flags.dump.text, task, model->tokenizer(), session);
  const Stopwatch watch;
  const bool complete = replies_shown(
      model, context, measured.left(), [&](std::size_t i) { return measured.make(i); },
      [&](std::size_t i, const eval::EvalReply& reply) { measured.done(i, reply); }, session,
      "needles", [&] { return measured.note(); });

  NeedleReport report;
  report.rows = measured.table().rows();
  report.options = options;
  report.settings = session.settings;
  report.model = model->info().path;
  report.tokens_of_text = task.haystack().tokens();
  report.built_in = task.haystack().is_built_in();
  report.reused = measured.reused();
  report.complete = complete;
  report.seconds = watch.seconds();
  report.warnings = warning.given();
  if (flags.plot.given()) needle_plot(report, flags.plot.text);
  if (flags.json) {
    needle_print_json(report);
  } else {
    needle_print(report);
  }
  if (!complete) throw Error(ErrorKind::cancelled, "interrupted");
}

}  // namespace

Command eval_needle_command(CLI::App& parent) {
  auto flags = std::make_shared<NeedleFlags>();
  CLI::App* app = parent.add_subcommand("needle", "Whether a model finds numbers in long texts");
  app->footer(kNeedleExamples);
  flags->lengths.add(*app, "--lengths", "N,N,...", "tokens of prompt and reply", "4K,8K");
  flags->depths.add(*app, "--depths", "X,X,...", "shares of the text before the number",
                    "0,0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1");
  flags->keys.add(*app, "--keys", "N,N,...", "numbers in a text, of which one is asked for", "1");
  flags->samples.add(*app, "--samples", "N", "of each length, depth and number of keys", "4");
  flags->texts.add(*app, "--text", TextsFlag::Values::several,
                   "texts to hide them in, used in turn; without it sentences that repeat");
  flags->question.add(*app, "--question", "last|first|both", "where the question is", "last");
  flags->seed.add(*app, "--seed", "N", "the same seed gives the same prompts", "0");
  app->add_flag("--no-prefix", flags->no_prefix, "do not begin the reply for the model");
  flags->chat_format.add(*app, "--chat-format", chat_format_placeholder(),
                         "the chat format; the model's own unless given");
  flags->results.add(*app, "--results", "FILE",
                     "keep every sample in this file, and go on where it ends");
  flags->dump.add(*app, "--dump", "FILE", "write the prompts and what is asked for, as JSON lines");
  flags->plot.add(*app, "--plot", "FILE", "draw the heat map as SVG");
  app->add_flag("--json", flags->json, "print JSON");
  flags->model.add(*app, "auto");
  return {app, [flags] { run(*flags); }};
}

}  // namespace lca::cli
