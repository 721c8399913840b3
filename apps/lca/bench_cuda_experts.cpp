/// `lca bench experts`: mixtures of experts on the GPU, and the thin products of decoding.

#include "arguments.h"
#include "bench/cuda/bench.h"
#include "bench/cuda/bench_experts.h"
#include "command.h"
#include "core/cuda/device_name.h"
#include "interrupt.h"
#include "machine.h"
#include "terminal.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <string_view>
#include <vector>

namespace lca::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kExplanation =
    "A mixture of experts of DeepSeek-V2-Lite's shape with random weights, as decoding (up to 512\n"
    "rows: replays of a CUDA graph over several layers) and as prefill (more rows: for half a\n"
    "second). Rates of the two products are set beside the rate that one cuBLAS product of 16384 "
    "x\n"
    "2816 x 2048 sustains for a second in the same run, and bytes beside those that a copy moves.\n"
    "\n"
    "Examples:\n"
    "  lca bench experts --rows 1,32,200,16K --skew 3\n"
    "  lca bench experts --rows 16K --kernels portable --json";

struct Flags {
  TextFlag device, kernels, rows, skew, thin;
  bool json = false;
};

struct Report {
  double blas = 0, copy = 0;
  std::vector<cuda::ExpertsTimed> rows;
  std::vector<cuda::ThinTimed> thin;
};

/// Products of decoding DeepSeek-V2-Lite: output, queries with the latent, absorbed keys, values,
/// the first layer's feed-forward.
struct ThinShape {
  const char* name;
  int columns, inner, batch;
};
constexpr ThinShape kThinShapes[] = {
    {"output", 2048, 2048, 1}, {"queries, latent", 3648, 2048, 1}, {"absorbed keys", 512, 128, 16},
    {"values", 128, 512, 16},  {"gate and up", 21888, 2048, 1},    {"down", 2048, 10944, 1}};

std::string rate_text(double operations, double seconds) {
  return seconds > 0 ? fmt::format("{:.0f}", operations / seconds / 1e12) : "–";
}

void print_table(const Report& report, const cuda::ExpertsSetup& setup) {
  Table table({"rows", "experts hit", "largest", "all", "router", "combine", "gate+up", "TFLOP/s",
               "of cuBLAS", "down", "TFLOP/s", "of cuBLAS", "GB/s", "of copy"});
  for (const cuda::ExpertsTimed& t : report.rows) {
    const double down = t.operations - t.gate_up_operations;
    const auto share = [&](double operations, double seconds) {
      return seconds > 0 ? fmt::format("{:.3f}", operations / seconds / report.blas)
                         : std::string("–");
    };
    const auto time = [](double seconds) {
      return seconds > 0 ? seconds_text(seconds) : std::string("–");
    };
    table.add({length_text(t.rows), count_text(t.hit), fmt::format("{:.2f}", t.largest),
               seconds_text(t.seconds), time(t.router), time(t.combine), time(t.gate_up),
               rate_text(t.gate_up_operations, t.gate_up), share(t.gate_up_operations, t.gate_up),
               time(t.down), rate_text(down, t.down), share(down, t.down),
               fmt::format("{:.0f}", t.bytes / t.seconds / 1e9),
               fmt::format("{:.3f}", t.bytes / t.seconds / report.copy)});
  }
  std::string text = fmt::format(
      "{} experts of {} x {}, {} chosen, {} shared, {}, {}\ncuBLAS 16384 x 2816 x 2048 for a "
      "second: {:.0f} TFLOP/s; copy: {:.0f} GB/s\n\n{}",
      setup.experts, setup.width, setup.hidden, setup.per_token, setup.shared,
      cuda::bench_device(setup.device).name, date_text(), report.blas / 1e12, report.copy / 1e9,
      table.text());
  if (!report.thin.empty()) {
    Table thin({"thin product", "rows", "ours", "cuBLASLt", "ratio", "GB/s"});
    for (const cuda::ThinTimed& t : report.thin) {
      const double bytes = 2.0 * t.columns * t.inner * t.batch;
      thin.add({fmt::format("{} x {}{}", t.columns, t.inner,
                            t.batch > 1 ? fmt::format(" x {}", t.batch) : ""),
                count_text(t.rows), seconds_text(t.thin), seconds_text(t.blas),
                fmt::format("{:.2f}", t.blas / t.thin),
                fmt::format("{:.0f}", bytes / t.thin / 1e9)});
    }
    text += "\n" + thin.text();
  }
  print(text);
}

void print_report_json(const Report& report, const cuda::ExpertsSetup& setup) {
  Json rows = Json::array();
  for (const cuda::ExpertsTimed& t : report.rows) {
    rows.push_back({{"rows", t.rows},
                    {"experts_hit", t.hit},
                    {"largest", t.largest},
                    {"seconds", t.seconds},
                    {"router_seconds", t.router},
                    {"combine_seconds", t.combine},
                    {"gate_up_seconds", t.gate_up},
                    {"down_seconds", t.down},
                    {"operations", t.operations},
                    {"gate_up_operations", t.gate_up_operations},
                    {"bytes", t.bytes}});
  }
  Json thin = Json::array();
  for (const cuda::ThinTimed& t : report.thin) {
    thin.push_back({{"rows", t.rows},
                    {"columns", t.columns},
                    {"inner", t.inner},
                    {"batch", t.batch},
                    {"seconds", t.thin},
                    {"cublas_seconds", t.blas}});
  }
  print_json({{"rows", std::move(rows)},
              {"thin", std::move(thin)},
              {"cublas_flops", report.blas},
              {"copy_bytes_per_second", report.copy},
              {"kernels", setup.portable ? "portable" : "fast"},
              {"skew", setup.skew},
              {"gpu", cuda::bench_device(setup.device).name},
              {"date", date_text()}});
}

void run(const Flags& flags) {
  constexpr std::int64_t kMostRows = 1 << 20, kMostThin = 32;
  static constexpr std::string_view kKernels[] = {"fast", "portable"};
  cuda::ExpertsSetup setup;
  setup.device = cuda::device_parse(flags.device.text);
  setup.portable = choice_parse("--kernels", flags.kernels.text, kKernels) == 1;
  setup.skew = number_parse("--skew", flags.skew.text, 1, 16);
  const auto rows = counts_parse("--rows", flags.rows.text, 1, kMostRows);
  std::vector<std::int64_t> thin;
  if (flags.thin.text != "none") thin = counts_parse("--thin", flags.thin.text, 1, kMostThin);
  Report report;
  report.copy = cuda::bench_copy_rate(setup.device);
  report.blas = cuda::bench_product_rate(setup.device, 16384, 2816, 2048);
  for (const std::int64_t count : rows) {
    report.rows.push_back(cuda::bench_experts(setup, count));
    interrupt_check();
  }
  for (const ThinShape& shape : kThinShapes) {
    for (const std::int64_t count : thin) {
      report.thin.push_back(cuda::bench_thin(setup.device, static_cast<int>(count), shape.columns,
                                             shape.inner, shape.batch));
      interrupt_check();
    }
  }
  flags.json ? print_report_json(report, setup) : print_table(report, setup);
}

}  // namespace

Command bench_experts_command(CLI::App& parent) {
  auto flags = std::make_shared<Flags>();
  CLI::App* app = parent.add_subcommand("experts", "Mixtures of experts on the GPU");
  app->footer(kExplanation);
  flags->device.add(*app, "--device", "cuda|cuda:N", "the GPU", "cuda");
  flags->kernels.add(*app, "--kernels", "fast|portable", "Hopper's own, or every GPU's", "fast");
  flags->rows.add(*app, "--rows", "N,N,...", "rows that pass together", "1,32,200,16K");
  flags->skew.add(*app, "--skew", "X", "rows of the largest expert, in means", "1");
  flags->thin.add(*app, "--thin", "N,N,...|none", "thin products of so many rows (up to 32)",
                  "none");
  app->add_flag("--json", flags->json, "print JSON");
  return {app, [flags] { run(*flags); }};
}

}  // namespace lca::cli
