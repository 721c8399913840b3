/// `lca bench model`: how fast a whole model reads and writes with each method.

#include "command.h"
#include "core/error.h"
#include "core/text.h"
#include "interrupt.h"
#include "machine.h"
#include "model_flags.h"
#include "reply.h"
#include "terminal.h"

#include <lca/method.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>

namespace lca::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kExplanation =
    "Each prompt is read into an empty session, then tokens are decoded after it. The tokens are\n"
    "made up: speed does not depend on them, and no tokenizer is needed.\n"
    "\n"
    "Examples:\n"
    "  lca bench model smollm2 --lengths 1K,4K,8K\n"
    "  lca bench model path/to/folder --lengths 4K --methods lca,dense,window --json";

constexpr std::int64_t kLongest = std::int64_t{1} << 24;

struct Flags {
  ModelFlags model;
  TextFlag lengths, methods, decode;
  bool json = false;
};

struct Measured {
  std::int64_t length = 0;
  MethodKind kind = MethodKind::lca;
  double prefill = 0;  // tokens a second
  double decode = 0;
  std::size_t cache = 0;
  std::int64_t peak = 0;  // resident memory of the program
};

std::string method_name(MethodKind kind) { return std::string(method_for(kind).name()); }

std::vector<MethodKind> methods_parse(std::string_view text) {
  static constexpr std::string_view kNames[] = {"lca", "dense", "window"};
  std::vector<MethodKind> kinds;
  for (;;) {
    const std::size_t comma = text.find(',');
    const auto kind =
        static_cast<MethodKind>(choice_parse("--methods", text.substr(0, comma), kNames));
    if (std::ranges::find(kinds, kind) == kinds.end()) kinds.push_back(kind);
    if (comma == std::string_view::npos) return kinds;
    text.remove_prefix(comma + 1);
  }
}

SessionOptions with_method(SessionOptions options, MethodKind kind) {
  for (Settings& settings : options.settings) settings.method = kind;
  return options;
}

/// Ids all over the vocabulary, the same every time.
std::vector<std::int32_t> tokens_made_up(std::int64_t count, std::int64_t vocabulary) {
  std::vector<std::int32_t> tokens;
  std::uint64_t state = 1;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    tokens.push_back(
        static_cast<std::int32_t>((state >> 33) % static_cast<std::uint64_t>(vocabulary)));
  }
  return tokens;
}

Measured measure(const std::shared_ptr<const Model>& model, const SessionOptions& options,
                 MethodKind kind, std::int64_t length, std::int64_t decoded, int threads) {
  const InterruptWatch interrupts;
  Context context(threads);
  memory_trim();
  peak_memory_reset();
  Session session(model, context, options);
  const std::vector<std::int32_t> tokens =
      tokens_made_up(length + decoded, model->info().vocabulary);
  const std::span<const std::int32_t> all(tokens);

  Measured measured{length, kind};
  const Stopwatch prefill;
  prefill_shown(session, all.first(static_cast<std::size_t>(length)),
                fmt::format("{} reads", method_name(kind)));
  measured.prefill = static_cast<double>(length) / prefill.seconds();
  const Stopwatch decode;
  for (const std::int32_t token : all.subspan(static_cast<std::size_t>(length))) {
    interrupt_check();
    session.decode(token);
  }
  measured.decode = static_cast<double>(decoded) / decode.seconds();
  measured.cache = session.cache_bytes();
  measured.peak = peak_memory();
  return measured;
}

std::string table_text(const std::vector<Measured>& rows) {
  Table table({"tokens", "method", "prefill tokens/s", "decode tokens/s", "cache", "peak memory"});
  for (const Measured& row : rows) {
    table.add({length_text(row.length), method_name(row.kind), number_text(row.prefill),
               number_text(row.decode), bytes_text(static_cast<double>(row.cache)),
               bytes_text(static_cast<double>(row.peak))});
  }
  return table.text();
}

Json rows_json(const std::vector<Measured>& rows) {
  Json list = Json::array();
  for (const Measured& row : rows) {
    list.push_back({{"length", row.length},
                    {"method", method_name(row.kind)},
                    {"prefill_tokens_per_s", row.prefill},
                    {"decode_tokens_per_s", row.decode},
                    {"cache_bytes", row.cache},
                    {"peak_bytes", row.peak}});
  }
  return list;
}

void run(const Flags& flags) {
  flags.model.check();
  const std::vector<std::int64_t> lengths =
      counts_parse("--lengths", flags.lengths.text, 1, kLongest);
  const std::vector<MethodKind> methods = methods_parse(flags.methods.text);
  const std::int64_t decoded = count_parse("--decode", flags.decode.text, 1, kLongest);

  const std::shared_ptr<const Model> model = flags.model.load();
  const SessionOptions options = flags.model.session_options(*model);
  const int threads = Context(flags.model.threads()).threads();
  const std::int64_t longest = std::ranges::max(lengths);
  for (const MethodKind kind : methods) {
    session_require(*model, with_method(options, kind), longest + decoded, threads,
                    fmt::format("{} tokens ({})", longest, method_name(kind)));
  }
  std::vector<Measured> rows;
  for (const std::int64_t length : lengths) {
    for (const MethodKind kind : methods) {
      rows.push_back(measure(model, with_method(options, kind), kind, length, decoded, threads));
    }
  }
  const bool f32 = model->info().precision == Precision::f32;
  if (flags.json) {
    print_json({{"model", model->info().path},
                {"machine", machine_name()},
                {"date", date_text()},
                {"threads", threads},
                {"precision", f32 ? "f32" : "bf16"},
                {"settings", settings_json(options.settings)},
                {"rows", rows_json(rows)}});
  } else {
    print(fmt::format("{}, {}, {} threads ({})\n{}\n\n{}", path_printable(model->info().path),
                      f32 ? "f32" : "bf16", threads, machine_name(),
                      settings_line(options.settings), table_text(rows)));
  }
}

}  // namespace

Command bench_model_command(CLI::App& parent) {
  auto flags = std::make_shared<Flags>();
  CLI::App* app = parent.add_subcommand("model", "Prefill and decoding of a whole model");
  app->footer(kExplanation);
  flags->lengths.add(*app, "--lengths", "N,N,...", "prompt lengths", "1K,4K");
  flags->methods.add(*app, "--methods", "NAME,...", "of lca, dense, window", "lca,dense");
  flags->decode.add(*app, "--decode", "N", "tokens decoded after each prompt", "32");
  app->add_flag("--json", flags->json, "print JSON");
  flags->model.add_for_methods(*app);
  return {app, [flags] { run(*flags); }};
}

}  // namespace lca::cli
