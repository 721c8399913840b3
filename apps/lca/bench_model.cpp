/// `lca bench model`: prefill and decoding speed of a whole model, by length, depth and batch.

#include "bench/cuda/bench.h"
#include "bench/cuda/bench_experts.h"
#include "bench_model_runs.h"
#include "command.h"
#include "core/cpu_level.h"
#include "core/error.h"
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

namespace lca::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kBenchModelExplanation =
    "Prefill: a prompt is read into an empty session, including the logits of its last token.\n"
    "Decode: tokens are decoded one by one after a context of the given depth, in one session or\n"
    "in several together (--batch); tokens/s counts those of all sessions. Tokens are random: "
    "speed\n"
    "does not depend on them, and no tokenizer is needed. The best of --repeat runs is shown, and\n"
    "the mean. On a GPU one more run shows where the time goes, and the rate that cuBLAS sustains\n"
    "for a second stands beside it; --fill random decodes after contexts that were not read.\n"
    "\n"
    "Examples:\n"
    "  lca bench model smollm2\n"
    "  lca bench model smollm2 --prompt 2K,8K --depths none --method dense\n"
    "  lca bench model smollm2 --prompt none --depths 8K --batch 1,4 --json\n"
    "  lca bench model --random deepseek-v2-lite --device cuda --prompt 32K,128K --depths 128K\n"
    "  lca bench model --random deepseek-v2-lite --prompt none --depths 128K --batch 1,200 \\\n"
    "    --fill random --skew 3";

constexpr std::int64_t kLongest = std::int64_t{1} << 24;
constexpr std::int64_t kMostSessions = 2048;
constexpr std::int64_t kMostRepeats = 1000;

struct BenchModelFlags {
  ModelFlags model;
  TextFlag prompt, generate, depths, batch, repeat, fill;
  bool json = false;
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

ModelWanted wanted_parse(const BenchModelFlags& flags) {
  ModelWanted wanted;
  wanted.prompts = lengths_parse("--prompt", flags.prompt.text, 1, kLongest);
  wanted.depths = lengths_parse("--depths", flags.depths.text, 0, kLongest);
  wanted.batches = lengths_parse("--batch", flags.batch.text, 1, kMostSessions);
  if (wanted.batches.empty()) fail_input("--batch takes numbers of sessions, not none");
  wanted.generate = count_parse("--generate", flags.generate.text, 1, kLongest);
  wanted.repeat = count_parse("--repeat", flags.repeat.text, 1, kMostRepeats);
  static constexpr std::string_view kFills[] = {"prompt", "random"};
  wanted.fill_random = choice_parse("--fill", flags.fill.text, kFills) == 1;
  if (wanted.prompts.empty() && wanted.depths.empty()) {
    fail_input("--prompt none and --depths none leave nothing to measure; give one of them");
  }
  return wanted;
}

/// The method of all layers, or "mixed".
std::string method_name(const std::vector<Settings>& layers) {
  const auto differs = [&](const Settings& settings) {
    return settings.method != layers.front().method;
  };
  if (std::ranges::any_of(layers, differs)) return "mixed";
  return std::string(method_for(layers.front().method).name());
}

std::string memory_text(const ModelRow& row) {
  return row.device_peak == 0 ? bytes_text(static_cast<double>(row.peak))
                              : bytes_text(static_cast<double>(row.device_peak)) + " GPU";
}

/// Where the time went, one line for each measurement.
std::string profile_text(const ModelReport& report) {
  std::string text;
  const auto add = [&](const std::string& what, const ModelRow& row) {
    if (row.profile.parts.empty()) return;
    double sum = 0;
    for (const StepProfile::Part& part : row.profile.parts) sum += part.seconds;
    const auto steps = static_cast<double>(row.profiled_steps);
    text += fmt::format("\n{}: {} ms on the GPU:", what, number_text(sum / steps * 1e3));
    for (const StepProfile::Part& part : row.profile.parts) {
      text += fmt::format(" {} {},", part.name, number_text(part.seconds / steps * 1e3));
    }
    text.pop_back();
    if (row.profile.experts_hit > 0) {
      text += fmt::format("; {} experts hit a layer, the largest {} times the mean",
                          number_text(row.profile.experts_hit),
                          number_text(row.profile.expert_largest));
    }
  };
  for (const ModelRow& row : report.prefill) add("prompt " + length_text(row.length), row);
  for (const ModelRow& row : report.decode) {
    add(fmt::format("step at {}, batch {}", length_text(row.length), row.batch), row);
  }
  return text.empty() ? text : text + "\n";
}

std::string table_text(const ModelReport& report) {
  std::string text;
  if (!report.prefill.empty()) {
    Table table({"prompt", "tokens/s", "mean", "seconds", "cache", "peak memory"});
    for (const ModelRow& row : report.prefill) {
      table.add({length_text(row.length), number_text(row.times.rate(row.tokens)),
                 number_text(row.times.rate_mean(row.tokens)), number_text(row.times.best),
                 bytes_text(static_cast<double>(row.cache)), memory_text(row)});
    }
    text += "\n" + table.text();
  }
  if (!report.decode.empty()) {
    Table table({"depth", "batch", "tokens/s", "mean", "ms a step", "cache", "peak memory"});
    for (const ModelRow& row : report.decode) {
      const auto steps = static_cast<double>(row.tokens / row.batch);
      table.add({length_text(row.length), fmt::format("{}", row.batch),
                 number_text(row.times.rate(row.tokens)),
                 number_text(row.times.rate_mean(row.tokens)),
                 number_text(row.times.best / steps * 1e3),
                 bytes_text(static_cast<double>(row.cache)), memory_text(row)});
    }
    text += "\n" + table.text();
  }
  return text + profile_text(report);
}

Json row_json(Json json, const ModelRow& row) {
  json["tokens_per_s"] = row.times.rate(row.tokens);
  json["tokens_per_s_mean"] = row.times.rate_mean(row.tokens);
  json["seconds"] = row.times.best;
  json["cache_bytes"] = row.cache;
  json["peak_bytes"] = row.peak;
  if (row.device_peak == 0) return json;
  json["device_peak_bytes"] = row.device_peak;
  if (row.profile.parts.empty()) return json;
  Json parts;
  for (const StepProfile::Part& part : row.profile.parts) {
    parts[part.name] = part.seconds / static_cast<double>(row.profiled_steps);
  }
  json["parts_s"] = std::move(parts);
  if (row.profile.experts_hit > 0) {
    json["experts_hit"] = row.profile.experts_hit;
    json["expert_largest"] = row.profile.expert_largest;
  }
  return json;
}

/// What one product of the size of a chunk's experts sustains for a second.
double cublas_rate(const std::string& device) {
  return cuda::bench_product_rate(cuda::device_parse(device), 16384, 2816, 2048);
}

void run(const BenchModelFlags& flags) {
  flags.model.check();
  const ModelWanted wanted = wanted_parse(flags);

  const Stopwatch loading;
  const std::shared_ptr<const Model> model = flags.model.load();
  const double load_seconds = loading.seconds();
  std::int64_t peak = peak_memory();
  const ModelInfo& info = model->info();
  const SessionOptions options = flags.model.session_options(*model);
  const int threads = Context(flags.model.threads()).threads();
  const InterruptWatch interrupts;
  // Before anything else takes the GPU's memory, and while it is cool.
  const bool on_gpu = info.device != "cpu";
  const double cublas = on_gpu ? cublas_rate(info.device) : 0;
  ModelBench bench(model, options, wanted, threads);
  bench.require_memory();
  ContextWarning warning(info, options.settings, "speed is measured all the same");
  warning.check(bench.longest());
  const ModelReport report = bench.measure();

  const std::string method = method_name(options.settings);
  const std::string_view precision = precision_name(info.precision);
  const std::string_view cache =
      info.cache == CacheStorage::int8 ? "int8" : dtype_name(model->cache_dtype());
  if (!flags.json) {
    const std::string where =
        on_gpu ? fmt::format("{} ({}; cuBLAS sustains {} TFLOP/s)", info.device,
                             cuda::bench_device(cuda::device_parse(info.device)).name,
                             number_text(cublas / 1e12))
               : fmt::format("{} threads, {}", threads, machine_text());
    const std::string adapter =
        info.adapter.empty() ? "" : ", adapter " + path_printable(info.adapter);
    print(fmt::format("{}{}, {}, {}, cache {}, {}\n{}\n{}", path_printable(info.path), adapter,
                      method, precision, cache, where, settings_line(options.settings),
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
  Json json = {{"prefill", std::move(prefill)},
               {"decode", std::move(decode)},
               {"method", method},
               {"model", info.path},
               {"adapter", info.adapter.empty() ? Json() : Json(info.adapter)},
               {"machine", machine_name()},
               {"level", cpu_level_name(cpu_level())},
               {"date", date_text()},
               {"threads", threads},
               {"precision", precision},
               {"cache", cache},
               {"settings", settings_json(options.settings)},
               {"generate", wanted.generate},
               {"repeat", wanted.repeat},
               {"load_s", load_seconds},
               {"weights", packing_name(info.weights)},
               {"weight_bytes", info.weight_bytes},
               {"peak_bytes", peak},
               {"warnings", warning.given()}};
  json["device"] = info.device;
  if (on_gpu) {
    json["gpu"] = cuda::bench_device(cuda::device_parse(info.device)).name;
    json["cublas_flops"] = cublas;
    json["fill"] = flags.fill.text;
  }
  print_json(json);
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
  flags->fill.add(*app, "--fill", "prompt|random",
                  "contexts to decode after: read, or on a GPU random numbers, each its own",
                  "prompt");
  app->add_flag("--json", flags->json, "print JSON");
  flags->model.add_for_measuring(*app);
  return {app, [flags] { run(*flags); }};
}

}  // namespace lca::cli
