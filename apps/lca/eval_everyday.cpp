/// `lca eval everyday`: what an adapter and a method cost in short conversations.

#include "command.h"
#include "core/error.h"
#include "core/text.h"
#include "eval/chat_prompt.h"
#include "eval/everyday.h"
#include "eval_common.h"
#include "everyday_prompts.h"
#include "interrupt.h"
#include "model_flags.h"
#include "reply.h"
#include "terminal.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

namespace lca::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kEverydayExamples =
    "The base model (no adapter, dense attention) replies to each prompt, greedily; both models "
    "then\n"
    "predict these replies. KL is the divergence of the measured model from the base, in nats, "
    "the\n"
    "mean over all tokens of the replies; intervals (95 %) are over prompts.\n"
    "\n"
    "Examples:\n"
    "  lca eval everyday smollm2                   with the adapter that comes with the name\n"
    "  lca eval everyday smollm2 --adapter path/to/adapter --prompts mine.txt -n 64 --json\n"
    "  lca eval everyday smollm2 --adapter none --group 16 --window 64      the method alone";

struct EverydayFlags {
  ModelFlags model;
  TextFlag prompts, tokens, chat_format, results;
  bool json = false;
};

/// One prompt a line; empty lines are left out.
std::vector<std::string> prompts_read(const TextFlag& flag) {
  const std::string text =
      flag.given() ? text_read("--prompts", flag.text) : std::string(everyday_prompts());
  std::vector<std::string> prompts;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.pop_back();
    if (!line.empty()) prompts.push_back(std::move(line));
    at = end + 1;
  }
  if (prompts.empty()) {
    fail_input("{}", flag.given() ? path_printable(flag.text) + ": holds no prompts, one a line"
                                  : "this build has no prompts of its own; --prompts names a file");
  }
  return prompts;
}

/// What is measured, and what is known of it.
struct EverydayJob {
  std::vector<std::string> prompts;
  std::map<std::size_t, eval::EverydayScore> scores;
  bool complete = true;
  double seconds = 0;

  template <typename Value>
  eval::ClusterMean mean(const Value& value) const {
    std::vector<eval::Cluster> clusters;
    for (const auto& [index, score] : scores) clusters.push_back({value(score), score.tokens});
    return eval::cluster_mean(clusters);
  }
};

Json score_json(const EverydayJob& job, std::size_t index, const eval::EverydayScore& score) {
  const auto count = static_cast<double>(std::max<std::int64_t>(1, score.tokens));
  return {{"prompt", index},
          {"text", job.prompts[index]},
          {"tokens", score.tokens},
          {"kl", score.kl / count},
          {"base_nll", score.base_nll / count},
          {"nll", score.other_nll / count},
          {"agreed", score.agreed}};
}

void scores_take_up(EverydayJob& job, const eval::ResultsFile& results) {
  for (const Json& row : results.rows()) {
    try {
      const auto index = row.at("prompt").get<std::size_t>();
      eval::EverydayScore score;
      score.tokens = row.at("tokens").get<std::int64_t>();
      const auto count = static_cast<double>(score.tokens);
      score.kl = row.at("kl").get<double>() * count;
      score.base_nll = row.at("base_nll").get<double>() * count;
      score.other_nll = row.at("nll").get<double>() * count;
      score.agreed = row.at("agreed").get<std::int64_t>();
      if (index < job.prompts.size()) job.scores[index] = score;
    } catch (const Json::exception&) {
      fail_input("a line of the results file is not one of everyday: {}",
                 text_printable(row.dump(-1, ' ', false, Json::error_handler_t::replace)));
    }
  }
}

/// Replies of the base, then both models on them. False: Ctrl-C ended it.
bool everyday_measure(EverydayJob& job, const eval::EverydayArm& base,
                      const eval::EverydayArm& other, const ChatTemplate& chat, std::int64_t tokens,
                      eval::ResultsFile* results) {
  std::vector<std::size_t> left;
  for (std::size_t i = 0; i < job.prompts.size(); ++i) {
    if (!job.scores.contains(i)) left.push_back(i);
  }
  if (left.empty()) return true;
  const eval::ChatPrompt prompt(base.model->tokenizer(), chat);
  std::map<std::size_t, eval::EverydayText> texts;
  const bool replied = replies_shown(
      base.model, base.context, left,
      [&](std::size_t i) {
        eval::EverydayText& text = texts[i];
        text.ids = prompt.encode(job.prompts[i], "");
        text.prompt = std::ssize(text.ids);
        return eval::EvalPrompt{text.ids, tokens};
      },
      [&](std::size_t i, const eval::EvalReply& reply) {
        eval::EverydayText& text = texts.at(i);
        text.ids.insert(text.ids.end(), reply.tokens.begin(), reply.tokens.end());
        text.ended = reply.ended;
      },
      base.session, "replies of the base", [] { return std::string(); });
  if (!replied) return false;

  const InterruptWatch interrupts;
  const InterruptStop stop;
  Progress progress(static_cast<double>(left.size()));
  progress.step("comparing", 0);
  std::size_t done = 0;
  try {
    eval::everyday_run(
        base, other, left, [&](std::size_t i) -> const eval::EverydayText& { return texts.at(i); },
        [&](std::size_t i, const eval::EverydayScore& score) {
          if (results != nullptr) results->add(score_json(job, i, score));
          job.scores[i] = score;
          ++done;
          progress.reached(static_cast<double>(done),
                           fmt::format("compared {} of {} replies", done, left.size()));
        },
        stop.token());
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::cancelled) throw;
    return false;
  }
  return true;
}

struct EverydayMeans {
  eval::ClusterMean kl, base_nll, nll, agreed;

  explicit EverydayMeans(const EverydayJob& job)
      : kl(job.mean([](const eval::EverydayScore& s) { return s.kl; })),
        base_nll(job.mean([](const eval::EverydayScore& s) { return s.base_nll; })),
        nll(job.mean([](const eval::EverydayScore& s) { return s.other_nll; })),
        agreed(
            job.mean([](const eval::EverydayScore& s) { return static_cast<double>(s.agreed); })) {}
};

void everyday_print_json(const EverydayJob& job, const Model& model,
                         const SessionOptions& session) {
  const EverydayMeans means(job);
  const auto interval = [](const eval::ClusterMean& mean) {
    return mean.low ? Json::array({*mean.low, *mean.high}) : Json();
  };
  Json rows = Json::array();
  for (const auto& [index, score] : job.scores) rows.push_back(score_json(job, index, score));
  print_json({{"kl", means.kl.mean},
              {"kl_interval", interval(means.kl)},
              {"base_perplexity", std::exp(means.base_nll.mean)},
              {"perplexity", std::exp(means.nll.mean)},
              {"agreement", means.agreed.mean},
              {"tokens", means.kl.count},
              {"prompts", means.kl.clusters},
              {"rows", rows},
              {"complete", job.complete},
              {"model", model.info().path},
              {"device", model.info().device},
              {"settings", settings_json(session.settings)},
              {"seconds", job.seconds}});
}

void everyday_print(const EverydayJob& job, const Model& model, const SessionOptions& session) {
  const EverydayMeans means(job);
  Table table({"of the base's replies", "mean", "95 %"});
  const auto add = [&](const char* label, const eval::ClusterMean& mean, const auto& text) {
    table.add({label, text(mean.mean),
               mean.low ? fmt::format("{} – {}", text(*mean.low), text(*mean.high)) : "–"});
  };
  const auto nats = [](double value) { return fmt::format("{:.5f}", value); };
  const auto perplexity = [](double value) { return fmt::format("{:.4f}", std::exp(value)); };
  const auto percent = [](double value) {
    return fmt::format("{:.2f} %", 100 * std::clamp(value, 0.0, 1.0));
  };
  add("KL from the base, nats", means.kl, nats);
  add("perplexity", means.nll, perplexity);
  add("perplexity, base", means.base_nll, perplexity);
  add("same likeliest token", means.agreed, percent);
  print(fmt::format("{}\n{}\n\n{}", path_printable(model.info().path),
                    settings_line(session.settings), table.text()));
  print_note(fmt::format("{} tokens of {} replies in {}{}", count_text(means.kl.count),
                         means.kl.clusters, seconds_text(job.seconds),
                         job.complete ? "" : "; interrupted"));
}

void run(const EverydayFlags& flags) {
  constexpr std::int64_t kMostTokens = 1 << 20;
  flags.model.check();
  const std::int64_t tokens = count_parse("-n", flags.tokens.text, 1, kMostTokens);
  EverydayJob job;
  job.prompts = prompts_read(flags.prompts);
  const std::shared_ptr<const Model> base_model = flags.model.load_base();
  const std::shared_ptr<const Model> model = flags.model.load();
  tokenizer_warn(model->tokenizer());
  const ChatTemplate chat = chat_template(*base_model, flags.chat_format);
  Context base_context(flags.model.threads()), context(flags.model.threads());
  Settings dense;
  dense.method = MethodKind::dense;
  const eval::EverydayArm base{base_model, base_context, {{dense}}};
  const eval::EverydayArm other{model, context, flags.model.session_options(*model)};

  const TextsFlag::Text prompts{"", fmt::format("{}", fmt::join(job.prompts, "\n"))};
  Json fingerprint = run_fingerprint("everyday", *model, other.session);
  fingerprint["base"] = base_model->fingerprint();
  fingerprint["prompts"] = texts_fingerprint({&prompts, 1});
  fingerprint["tokens"] = tokens;
  fingerprint["chat_format"] = chat_format_name(chat.format());
  const std::unique_ptr<eval::ResultsFile> results = results_open(flags.results, fingerprint);
  if (results) scores_take_up(job, *results);
  const Stopwatch watch;
  job.complete = everyday_measure(job, base, other, chat, tokens, results.get());
  job.seconds = watch.seconds();
  if (!job.scores.empty() && flags.json) {
    everyday_print_json(job, *model, other.session);
  } else if (!job.scores.empty()) {
    everyday_print(job, *model, other.session);
  }
  if (!job.complete) throw Error(ErrorKind::cancelled, "interrupted");
}

}  // namespace

Command eval_everyday_command(CLI::App& parent) {
  auto flags = std::make_shared<EverydayFlags>();
  CLI::App* app = parent.add_subcommand(
      "everyday", "How far a model with an adapter is from its base in short conversations");
  app->footer(kEverydayExamples);
  flags->prompts.add(*app, "--prompts", "FILE",
                     "prompts, one a line; built in unless given; - reads standard input");
  flags->tokens.add(*app, "-n,--tokens", "N", "maximum number of tokens of a reply", "128");
  flags->chat_format.add(*app, "--chat-format", chat_format_placeholder(),
                         "the chat format; the model's own unless given");
  flags->results.add(*app, "--results", "FILE",
                     "keep every reply's score in this file, and go on where it ends");
  app->add_flag("--json", flags->json, "print JSON");
  flags->model.add(*app, "auto");
  return {app, [flags] { run(*flags); }};
}

}  // namespace lca::cli
