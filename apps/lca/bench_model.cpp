/// `lca bench model`: prefill and decoding speed of a whole model, by length, depth and batch.

#include "command.h"
#include "core/error.h"
#include "core/pages.h"
#include "core/text.h"
#include "interrupt.h"
#include "machine.h"
#include "model_flags.h"
#include "models/precision.h"
#include "models/weight_packing.h"
#include "reply.h"
#include "terminal.h"
#include "trained_length.h"

#include <lca/method.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <optional>

namespace lca::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kBenchModelExplanation =
    "Prefill: a prompt is read into an empty session, including the logits of its last token.\n"
    "Decode: tokens are decoded one by one after a context of the given depth, in one session or\n"
    "in several together (--batch); tokens/s counts those of all sessions. Tokens are random: "
    "speed\n"
    "does not depend on them, and no tokenizer is needed. The best of --repeat runs is shown, and\n"
    "the mean.\n"
    "\n"
    "Examples:\n"
    "  lca bench model smollm2\n"
    "  lca bench model smollm2 --prompt 2K,8K --depths none --method dense\n"
    "  lca bench model smollm2 --prompt none --depths 8K --batch 1,4 --json";

constexpr std::int64_t kLongest = std::int64_t{1} << 24;
constexpr std::int64_t kMostSessions = 256;
constexpr std::int64_t kMostRepeats = 1000;

struct BenchModelFlags {
  ModelFlags model;
  TextFlag prompt, generate, depths, batch, repeat;
  bool json = false;
};

/// What to measure, sorted and without duplicates.
struct Wanted {
  std::vector<std::int64_t> prompts, depths, batches;
  std::int64_t generate = 0;
  std::int64_t repeat = 0;
};

/// Seconds of several runs of the same thing.
struct Times {
  double best = 0;
  double sum = 0;
  std::int64_t count = 0;

  void add(double seconds) {
    best = count == 0 ? seconds : std::min(best, seconds);
    sum += seconds;
    ++count;
  }
  double rate(std::int64_t tokens) const { return static_cast<double>(tokens) / best; }
  double rate_mean(std::int64_t tokens) const { return static_cast<double>(tokens * count) / sum; }
};

struct ModelRow {
  std::int64_t length = 0;  // of the prompt, or of the context before the first decoded token
  std::int64_t batch = 1;
  std::int64_t tokens = 0;  // of one run
  Times times{};
  std::size_t cache = 0;  // of all sessions
  std::int64_t peak = 0;  // resident memory of the program
};

struct ModelReport {
  std::vector<ModelRow> prefill, decode;
};

/// A list of lengths; "none" is the empty one.
std::vector<std::int64_t> lengths_parse(std::string_view flag, std::string_view text,
                                        std::int64_t minimum, std::int64_t maximum) {
  if (text == "none") return {};
  std::vector<std::int64_t> list = counts_parse(flag, text, minimum, maximum);
  std::ranges::sort(list);
  const auto repeated = std::ranges::unique(list);
  list.erase(repeated.begin(), repeated.end());
  return list;
}

Wanted wanted_parse(const BenchModelFlags& flags) {
  Wanted wanted;
  wanted.prompts = lengths_parse("--prompt", flags.prompt.text, 1, kLongest);
  wanted.depths = lengths_parse("--depths", flags.depths.text, 0, kLongest);
  wanted.batches = lengths_parse("--batch", flags.batch.text, 1, kMostSessions);
  if (wanted.batches.empty()) fail_input("--batch takes numbers of sessions, not none");
  wanted.generate = count_parse("--generate", flags.generate.text, 1, kLongest);
  wanted.repeat = count_parse("--repeat", flags.repeat.text, 1, kMostRepeats);
  if (wanted.prompts.empty() && wanted.depths.empty()) {
    fail_input("--prompt none and --depths none leave nothing to measure; give one of them");
  }
  return wanted;
}

/// Random ids of the whole vocabulary, the same for the same seed.
class MadeUpTokens {
 public:
  MadeUpTokens(std::int64_t vocabulary, std::uint64_t seed)
      : vocabulary_(static_cast<std::uint64_t>(vocabulary)), state_(seed + 1) {}

  std::int32_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::int32_t>((state_ >> 33) % vocabulary_);
  }
  std::vector<std::int32_t> next(std::int64_t count) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
    for (std::int32_t& token : tokens) token = next();
    return tokens;
  }

 private:
  std::uint64_t vocabulary_;
  std::uint64_t state_;
};

/// The method of all layers, or "mixed".
std::string method_name(const std::vector<Settings>& layers) {
  const auto differs = [&](const Settings& settings) {
    return settings.method != layers.front().method;
  };
  if (std::ranges::any_of(layers, differs)) return "mixed";
  return std::string(method_for(layers.front().method).name());
}

/// Runs all measurements on a model.
class Bench {
 public:
  Bench(std::shared_ptr<const Model> model, SessionOptions options, Wanted wanted, int threads)
      : model_(std::move(model)),
        options_(std::move(options)),
        wanted_(std::move(wanted)),
        context_(threads) {}

  /// Throws Error (bad input) if the largest measurement would not fit into memory.
  void require_memory() {
    const auto require = [&](std::int64_t length, std::int64_t batch, const std::string& what) {
      const Memory memory = session_memory(*model_, options_, length, context_.threads());
      const auto caches = static_cast<double>(memory.caches);
      memory_require(caches * static_cast<double>(batch - 1) + static_cast<double>(memory.total()),
                     what);
    };
    if (!wanted_.prompts.empty()) {
      const std::int64_t length = wanted_.prompts.back();
      require(length, 1, fmt::format("--prompt {}", length));
    }
    if (!wanted_.depths.empty()) {
      const std::int64_t depth = wanted_.depths.back();
      const std::int64_t batch = wanted_.batches.back();
      require(decoded_end(depth), batch, fmt::format("--depths {} with --batch {}", depth, batch));
    }
  }

  /// Positions of the longest session.
  std::int64_t longest() const {
    const std::int64_t prompt = wanted_.prompts.empty() ? 0 : wanted_.prompts.back();
    return wanted_.depths.empty() ? prompt : std::max(prompt, decoded_end(wanted_.depths.back()));
  }

  ModelReport measure() {
    std::vector<std::int64_t> lengths;  // a prompt is also the context of the depth of its length
    std::ranges::set_union(wanted_.prompts, wanted_.depths, std::back_inserter(lengths));
    for (const std::int64_t length : lengths) {
      std::vector<Session> sessions;
      if (std::ranges::binary_search(wanted_.prompts, length)) {
        sessions.push_back(prefill_measure(length));
      }
      if (std::ranges::binary_search(wanted_.depths, length)) {
        for (const std::int64_t batch : wanted_.batches) decode_measure(sessions, length, batch);
      }
    }
    return std::move(report_);
  }

 private:
  /// The last position a decoding run after `depth` tokens can reach.
  std::int64_t decoded_end(std::int64_t depth) const {
    const auto runs = static_cast<std::int64_t>(wanted_.batches.size());
    return depth + 1 + runs * (1 + wanted_.repeat * wanted_.generate);
  }

  Session session_make(std::int64_t length, Times* times = nullptr) {
    Session session(model_, context_, options_);
    const std::vector<std::int32_t> tokens =
        MadeUpTokens(model_->info().vocabulary, 0).next(length);
    const Stopwatch watch;
    prefill_shown(session, tokens, "reading");
    if (times != nullptr) times->add(watch.seconds());
    return session;
  }

  void row_begin() {
    heap_trim();
    peak_memory_reset();
  }

  Session prefill_measure(std::int64_t length) {
    row_begin();
    ModelRow row{length, 1, length};
    std::optional<Session> session;
    for (std::int64_t run = 0; run < wanted_.repeat; ++run) {
      session.reset();
      session.emplace(session_make(length, &row.times));
    }
    row.cache = session->cache_bytes();
    row.peak = peak_memory();
    report_.prefill.push_back(row);
    return std::move(*session);
  }

  /// Decodes in `batch` sessions of depth `depth`. Missing sessions are forks of the first and
  /// decode other tokens. The runs follow one another, so later ones are a few tokens deeper.
  void decode_measure(std::vector<Session>& sessions, std::int64_t depth, std::int64_t batch) {
    row_begin();
    if (sessions.empty()) sessions.push_back(session_make(std::max<std::int64_t>(depth, 1)));
    while (std::ssize(sessions) < batch) {
      sessions.push_back(sessions.front().fork(sessions.front().length()));
    }
    std::vector<Session*> together;
    for (Session& session : sessions) together.push_back(&session);
    MadeUpTokens made_up(model_->info().vocabulary, 1);

    ModelRow row{depth, batch, batch * wanted_.generate};
    Progress progress(static_cast<double>(wanted_.repeat * wanted_.generate));
    const std::string label = fmt::format("decoding after {} tokens, batch {}", depth, batch);
    progress.step(label, 0);
    const auto step = [&] {
      interrupt_check();
      if (batch == 1) {
        together.front()->decode(made_up.next());
      } else {
        sessions_decode(together, made_up.next(batch));
      }
    };
    step();  // warm-up
    for (std::int64_t run = 0; run < wanted_.repeat; ++run) {
      const Stopwatch watch;
      for (std::int64_t i = 0; i < wanted_.generate; ++i) {
        step();
        progress.reached(static_cast<double>(run * wanted_.generate + i + 1), label);
      }
      row.times.add(watch.seconds());
    }
    for (const Session* session : together) row.cache += session->cache_bytes();
    row.peak = peak_memory();
    report_.decode.push_back(row);
  }

  std::shared_ptr<const Model> model_;
  SessionOptions options_;
  Wanted wanted_;
  Context context_;
  ModelReport report_;
};

std::string table_text(const ModelReport& report) {
  std::string text;
  if (!report.prefill.empty()) {
    Table table({"prompt", "tokens/s", "mean", "seconds", "cache", "peak memory"});
    for (const ModelRow& row : report.prefill) {
      table.add({length_text(row.length), number_text(row.times.rate(row.tokens)),
                 number_text(row.times.rate_mean(row.tokens)), number_text(row.times.best),
                 bytes_text(static_cast<double>(row.cache)),
                 bytes_text(static_cast<double>(row.peak))});
    }
    text += "\n" + table.text();
  }
  if (!report.decode.empty()) {
    Table table({"depth", "batch", "tokens/s", "mean", "ms a step", "cache", "peak memory"});
    for (const ModelRow& row : report.decode) {
      const auto steps = static_cast<double>(row.tokens / row.batch);
      table.add(
          {length_text(row.length), fmt::format("{}", row.batch),
           number_text(row.times.rate(row.tokens)), number_text(row.times.rate_mean(row.tokens)),
           number_text(row.times.best / steps * 1e3), bytes_text(static_cast<double>(row.cache)),
           bytes_text(static_cast<double>(row.peak))});
    }
    text += "\n" + table.text();
  }
  return text;
}

Json row_json(Json json, const ModelRow& row) {
  json["tokens_per_s"] = row.times.rate(row.tokens);
  json["tokens_per_s_mean"] = row.times.rate_mean(row.tokens);
  json["seconds"] = row.times.best;
  json["cache_bytes"] = row.cache;
  json["peak_bytes"] = row.peak;
  return json;
}

void run(const BenchModelFlags& flags) {
  flags.model.check();
  const Wanted wanted = wanted_parse(flags);

  const Stopwatch loading;
  const std::shared_ptr<const Model> model = flags.model.load();
  const double load_seconds = loading.seconds();
  std::int64_t peak = peak_memory();
  const ModelInfo& info = model->info();
  const SessionOptions options = flags.model.session_options(*model);
  const int threads = Context(flags.model.threads()).threads();
  const InterruptWatch interrupts;
  Bench bench(model, options, wanted, threads);
  bench.require_memory();
  ContextWarning warning(info, options.settings, "speed is measured all the same");
  warning.check(bench.longest());
  const ModelReport report = bench.measure();

  const std::string method = method_name(options.settings);
  const std::string_view precision = precision_name(info.precision);
  if (!flags.json) {
    print(fmt::format("{}, {}, {}, {} threads ({})\n{}\n{}", path_printable(info.path), method,
                      precision, threads, machine_name(), settings_line(options.settings),
                      table_text(report)));
    return;
  }
  Json prefill = Json::array();
  for (const ModelRow& row : report.prefill) {
    prefill.push_back(row_json({{"tokens", row.length}}, row));
    peak = std::max(peak, row.peak);
  }
  Json decode = Json::array();
  for (const ModelRow& row : report.decode) {
    decode.push_back(row_json({{"depth", row.length}, {"batch", row.batch}}, row));
    peak = std::max(peak, row.peak);
  }
  print_json({{"prefill", std::move(prefill)},
              {"decode", std::move(decode)},
              {"method", method},
              {"model", info.path},
              {"machine", machine_name()},
              {"date", date_text()},
              {"threads", threads},
              {"precision", precision},
              {"settings", settings_json(options.settings)},
              {"generate", wanted.generate},
              {"repeat", wanted.repeat},
              {"load_s", load_seconds},
              {"weights", packing_name(info.weights)},
              {"weight_bytes", info.weight_bytes},
              {"peak_bytes", peak},
              {"warnings", warning.given()}});
}

}  // namespace

Command bench_model_command(CLI::App& parent) {
  auto flags = std::make_shared<BenchModelFlags>();
  CLI::App* app = parent.add_subcommand("model", "Prefill and decoding of a whole model");
  app->footer(kBenchModelExplanation);
  flags->prompt.add(*app, "--prompt", "N,N,...|none", "lengths of prompts to read", "2K,8K");
  flags->depths.add(*app, "--depths", "N,N,...|none", "context lengths to decode after", "0,8K");
  flags->generate.add(*app, "--generate", "N", "tokens decoded at each depth", "48");
  flags->batch.add(*app, "--batch", "N,N,...", "sessions that decode together", "1");
  flags->repeat.add(*app, "--repeat", "N", "runs of each measurement; the best is shown", "2");
  app->add_flag("--json", flags->json, "print JSON");
  flags->model.add(*app, "auto");
  return {app, [flags] { run(*flags); }};
}

}  // namespace lca::cli
