/// `lca eval ruler`: the thirteen tasks of RULER.

#include "command.h"
#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "eval/chat_prompt.h"
#include "eval/ruler/run.h"
#include "eval_common.h"
#include "eval_ruler_report.h"
#include "interrupt.h"
#include "model_flags.h"
#include "reply.h"
#include "terminal.h"
#include "trained_length.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lca::cli {
namespace {

using RulerJson = nlohmann::ordered_json;

constexpr const char* kRulerExamples =
    "Prompts are made as NVIDIA/RULER's scripts make them: prompt and reply take at most "
    "--lengths\n"
    "tokens, and the same seed, lists and tokenizer give the same texts. A reply is greedy; its\n"
    "score is the share of references it contains (qa: whether it contains one). low and high are\n"
    "an interval of 95 % over samples. Tasks whose texts are not given are skipped:\n"
    "  --essays        niah_single_2, niah_single_3, niah_multikey_1, niah_multivalue,\n"
    "                  niah_multiquery\n"
    "  --squad         qa_1 (dev-v2.0.json)\n"
    "  --hotpotqa      qa_2 (hotpot_dev_distractor_v1.json)\n"
    "\n"
    "Examples:\n"
    "  lca eval ruler smollm2 --lengths 4K,8K --samples 50 --essays essays/*.txt\n"
    "  lca eval ruler smollm2 --tasks vt,fwe --lengths 4K --method dense --results dense.jsonl\n"
    "  lca eval ruler smollm2 --lengths 4K --dump prompts.jsonl --dump-only\n"
    "  lca eval ruler smollm2 --prompts prompts.jsonl --results lca.jsonl --json\n"
    "  lca eval compare dense.jsonl lca.jsonl";

struct RulerFlags {
  ModelFlags model;
  TextFlag lengths, samples, tasks, seed, words, squad, hotpotqa, chat_format, results, dump,
      prompts;
  std::vector<std::string> essays;
  bool dump_only = false, json = false;
};

std::vector<const eval::RulerTask*> tasks_parse(const std::string& text) {
  std::vector<const eval::RulerTask*> tasks;
  if (text == "all") {
    for (const eval::RulerTask& task : eval::ruler_tasks()) tasks.push_back(&task);
    return tasks;
  }
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string name = text.substr(at, end - at);
    const eval::RulerTask* task = eval::ruler_task_find(name);
    if (task == nullptr) {
      fail_input("--tasks: unknown task \"{}\"; the tasks are {}", text_printable(name),
                 eval::ruler_task_names());
    }
    if (std::ranges::find(tasks, task) != tasks.end()) {
      fail_input("--tasks names {} twice", name);
    }
    tasks.push_back(task);
    at = end + 1;
  }
  return tasks;
}

std::vector<std::int64_t> lengths_parse(const TextFlag& flag) {
  constexpr std::int64_t kLongest = std::int64_t{1} << 30;
  std::vector<std::int64_t> lengths = counts_parse("--lengths", flag.text, 1, kLongest);
  std::ranges::sort(lengths);
  if (const auto twice = std::ranges::adjacent_find(lengths); twice != lengths.end()) {
    fail_input("--lengths names {} twice", *twice);
  }
  return lengths;
}

/// Flags that say how prompts are made, which a file of prompts does not ask for.
void check_flags(const RulerFlags& flags) {
  if (flags.dump_only && !flags.dump.given()) fail_input("--dump-only goes with --dump");
  if (flags.prompts.given()) {
    for (const TextFlag* other : {&flags.seed, &flags.words, &flags.squad, &flags.hotpotqa}) {
      if (other->given()) {
        fail_input("{} does not go with --prompts, whose prompts are made already",
                   other->option->get_name());
      }
    }
    if (!flags.essays.empty()) {
      fail_input("--essays does not go with --prompts, whose prompts are made already");
    }
  }
  if (flags.dump.given()) writable_check(flags.dump.text);
}

/// Texts of the tasks, and what tells them apart from others.
struct RulerTexts {
  eval::RulerSources sources;
  RulerJson fingerprint = RulerJson::object();
};

RulerTexts texts_load(const RulerFlags& flags) {
  RulerTexts texts;
  const auto print_of = [](const std::vector<std::string>& words) {
    std::string all;
    for (const std::string& word : words) all.append(word).append(1, '\n');
    return eval::text_hash(all);
  };
  auto words = std::make_shared<eval::WordLists>(
      flags.words.given() ? eval::words_load(flags.words.text) : eval::words_built_in());
  texts.fingerprint["words"] =
      words->built_in ? "built-in"
                      : eval::text_hash(print_of(words->nouns) + print_of(words->adjectives) +
                                        print_of(words->verbs) + print_of(words->many));
  texts.sources.keys = std::make_shared<eval::KeyWords>(*words);
  texts.sources.words = std::move(words);
  if (!flags.essays.empty()) {
    const std::vector<std::filesystem::path> files(flags.essays.begin(), flags.essays.end());
    auto essay = std::make_shared<eval::Essay>(eval::Essay::load(files));
    texts.fingerprint["essays"] =
        eval::text_hash(fmt::format("{}", fmt::join(essay->sentences(essay->words()), " ")));
    texts.sources.essay = std::move(essay);
  }
  const auto questions = [&](const char* name, const TextFlag& flag, auto load) {
    std::shared_ptr<const eval::QuestionSet> set;
    if (!flag.given()) return set;
    auto loaded = std::make_shared<eval::QuestionSet>(load(flag.text));
    std::vector<std::string> asked = loaded->documents;
    for (const eval::QaItem& each : loaded->questions) asked.push_back(each.text);
    texts.fingerprint[name] = print_of(asked);
    set = std::move(loaded);
    return set;
  };
  texts.sources.squad = questions("squad", flags.squad, eval::squad_load);
  texts.sources.hotpotqa = questions("hotpotqa", flags.hotpotqa, eval::hotpotqa_load);
  return texts;
}

/// Prompts of a file, those that --tasks and --lengths name where these are given.
std::vector<eval::RulerPrompt> prompts_load(const RulerFlags& flags, RulerJson& fingerprint) {
  std::vector<eval::RulerPrompt> prompts = eval::ruler_prompts_read(flags.prompts.text);
  std::string all;
  for (const eval::RulerPrompt& prompt : prompts) {
    all += eval::text_hash(prompt.sample.input + prompt.sample.prefix);
  }
  fingerprint["prompts"] = eval::text_hash(all);
  if (flags.tasks.given()) {
    const auto tasks = tasks_parse(flags.tasks.text);
    std::erase_if(prompts, [&](const eval::RulerPrompt& prompt) {
      return std::ranges::none_of(tasks, [&](auto* task) { return task->name == prompt.task; });
    });
  }
  if (flags.lengths.given()) {
    const std::vector<std::int64_t> lengths = lengths_parse(flags.lengths);
    std::erase_if(prompts, [&](const eval::RulerPrompt& prompt) {
      return std::ranges::find(lengths, prompt.length) == lengths.end();
    });
  }
  if (prompts.empty()) {
    fail_input("{}: holds no prompt of these tasks and lengths",
               path_printable(flags.prompts.text));
  }
  return prompts;
}

void dump_prompts(const std::string& path, eval::RulerPrompts& prompts,
                  const eval::ChatPrompt& chat) {
  const InterruptWatch interrupts;
  FileWriter writer(path);
  Progress progress(static_cast<double>(prompts.count()));
  for (std::size_t i = 0; i < prompts.count(); ++i) {
    interrupt_check();
    progress.step(fmt::format("writing prompt {} of {}", i + 1, prompts.count()), 1);
    eval::RulerPrompt prompt = prompts.at(i);
    prompt.sample.tokens = std::ssize(chat.encode(prompt.sample.input, prompt.sample.prefix));
    const std::string line =
        eval::ruler_prompt_json(prompt).dump(-1, ' ', false, RulerJson::error_handler_t::replace) +
        "\n";
    writer.write(std::as_bytes(std::span(line)));
  }
  writer.commit();
}

/// The prompts of the run, and what decides them.
std::unique_ptr<eval::RulerPrompts> prompts_prepare(const RulerFlags& flags,
                                                    const eval::ChatPrompt& chat,
                                                    RulerJson& fingerprint) {
  constexpr std::int64_t kMostSamples = 1'000'000, kLargestSeed = 0xffffffff;
  const auto samples =
      static_cast<std::size_t>(count_parse("--samples", flags.samples.text, 1, kMostSamples));
  if (flags.prompts.given()) {
    std::vector<eval::RulerPrompt> prompts = prompts_load(flags, fingerprint);
    const std::size_t most = flags.samples.given() ? samples : prompts.size();
    return std::make_unique<eval::RulerPrompts>(std::move(prompts), most);
  }
  eval::RulerPlan plan;
  plan.tasks = tasks_parse(flags.tasks.text);
  plan.lengths = lengths_parse(flags.lengths);
  plan.samples = samples;
  plan.options.seed =
      static_cast<std::uint32_t>(count_parse("--seed", flags.seed.text, 0, kLargestSeed));
  RulerTexts texts = texts_load(flags);
  plan.options.sources = std::move(texts.sources);
  plan.options.measure.prompt = [&chat](eval::RulerSample& sample) {
    sample.ids = chat.encode(sample.input, sample.prefix);
    return std::ssize(sample.ids);
  };
  plan.options.measure.text = [&chat](const std::string& text) {
    return std::ssize(chat.tokenizer().encode(text, {false, false}));
  };
  fingerprint["seed"] = plan.options.seed;
  fingerprint["texts"] = std::move(texts.fingerprint);
  const InterruptWatch interrupts;
  Progress progress(static_cast<double>(plan.tasks.size() * plan.lengths.size()));
  return std::make_unique<eval::RulerPrompts>(plan, [&](const eval::RulerPart& part) {
    interrupt_check();
    progress.step(fmt::format("fitting {} into {}", part.task, length_text(part.length)), 1);
  });
}

void run(const RulerFlags& flags) {
  flags.model.check();
  check_flags(flags);
  if (flags.tasks.given()) tasks_parse(flags.tasks.text);  // before the model is loaded
  lengths_parse(flags.lengths);
  const std::shared_ptr<const Model> model = flags.model.load();
  tokenizer_warn(model->tokenizer());
  const SessionOptions session = flags.model.session_options(*model);
  Context context(flags.model.threads());
  const ChatTemplate format = chat_template(*model, flags.chat_format);
  const eval::ChatPrompt chat(model->tokenizer(), format);
  RulerJson fingerprint = run_fingerprint("ruler", *model, session);
  fingerprint["chat_format"] = chat_format_name(format.format());
  const std::unique_ptr<eval::RulerPrompts> prompts = prompts_prepare(flags, chat, fingerprint);
  if (flags.dump.given()) dump_prompts(flags.dump.text, *prompts, chat);
  if (flags.dump_only) return;

  ContextWarning warning(model->info(), session.settings);
  std::int64_t longest = 0;
  for (const eval::RulerPart& part : prompts->parts()) {
    if (part.samples > 0) longest = std::max(longest, part.length);
  }
  if (longest > 0) {
    session_require(*model, session, longest, context.threads(),
                    fmt::format("prompts of {} tokens", longest));
    warning.check(longest);
  }
  const std::unique_ptr<eval::ResultsFile> results = results_open(flags.results, fingerprint);
  eval::RulerRun measured(*prompts, chat);
  if (results) measured.take_up(*results);
  const Stopwatch watch;
  RulerReport report;
  report.complete = replies_shown(
      model, context, measured.left(), [&](std::size_t i) { return measured.make(i); },
      [&](std::size_t i, const eval::EvalReply& reply) { measured.done(i, reply); }, session,
      "samples", [&] { return fmt::format(", score {:.1f}", measured.scores().mean()); });
  report.rows = measured.scores().rows();
  report.means = measured.scores().means();
  report.settings = session.settings;
  report.model = model->info().path;
  report.built_in_words = !flags.prompts.given() && !flags.words.given();
  report.reused = measured.reused();
  report.seconds = watch.seconds();
  report.warnings = warning.given();
  if (flags.json) {
    ruler_print_json(report);
  } else {
    ruler_print(report);
  }
  if (!report.complete) throw Error(ErrorKind::cancelled, "interrupted");
}

}  // namespace

Command eval_ruler_command(CLI::App& parent) {
  auto flags = std::make_shared<RulerFlags>();
  CLI::App* app = parent.add_subcommand("ruler", "RULER's thirteen tasks");
  app->footer(kRulerExamples);
  flags->lengths.add(*app, "--lengths", "N,N,...", "tokens of prompt and reply", "4K,8K");
  flags->samples.add(*app, "--samples", "N", "of each task and length", "20");
  flags->tasks.add(*app, "--tasks", "NAME,...", "tasks, or all", "all");
  flags->seed.add(*app, "--seed", "N", "the same seed gives the same prompts", "42");
  flags->words.add(*app, "--words", "DIR",
                   "nounlist.txt, adjectivelist.txt and verblist.txt of wonderwords; without it "
                   "built-in words");
  app->add_option("--essays", flags->essays,
                  "text files, or RULER's PaulGrahamEssays.json, that needles are hidden in")
      ->type_name("FILE");
  flags->squad.add(*app, "--squad", "FILE", "questions of SQuAD");
  flags->hotpotqa.add(*app, "--hotpotqa", "FILE", "questions of HotpotQA");
  flags->chat_format.add(*app, "--chat-format", chat_format_placeholder(),
                         "the chat format; the model's own unless given");
  flags->results.add(*app, "--results", "FILE",
                     "keep every sample in this file, and go on where it ends");
  flags->dump.add(*app, "--dump", "FILE", "write prompts and references as JSON lines");
  app->add_flag("--dump-only", flags->dump_only, "stop after that");
  flags->prompts.add(*app, "--prompts", "FILE", "read prompts that --dump wrote");
  app->add_flag("--json", flags->json, "print JSON");
  flags->model.add(*app, "auto");
  return {app, [flags] { run(*flags); }};
}

}  // namespace lca::cli
