/// `lca bench attention`: time and memory of the methods compared, over context lengths.

#include "arguments.h"
#include "attention/layout.h"
#include "bench_cpu.h"
#include "bench_cuda.h"
#include "command.h"
#include "core/cpu_level.h"
#include "core/error.h"
#include "core/pages.h"
#include "interrupt.h"
#include "machine.h"
#include "measure.h"
#include "terminal.h"
#include "where_flags.h"
#include "workload.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>

namespace lca::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kBenchExplanation =
    "Prefill reads a whole prompt into an empty cache: condensing, rebuilding keys and values, "
    "and\n"
    "attention. GFLOP/s count visible pairs only; gemm is oneDNN's float32 product of 2048³ with\n"
    "the same threads, measured before and after, whichever is faster.\n"
    "On the GPU attention, condensing, rebuilding and decoding are measured separately.\n"
    "With --backward a training step is measured: condensing and attention, and their gradients.\n"
    "\n"
    "Examples:\n"
    "  lca bench attention --shape deepseek-v2-lite --lengths 1K,4K,16K,64K --threads 2\n"
    "  lca bench attention --shape qwen-7b --lengths 16K --dtype bf16 --json\n"
    "  lca bench attention --shape smollm2 --lengths 8K --methods lca,window --group 32\n"
    "  lca bench attention --shape smollm2 --lengths 2K,8K --backward\n"
    "  lca bench attention --backend cuda --lengths 8K,128K,1M --batch 1,32\n"
    "  lca bench attention --backend cuda --backward --lengths 8K,64K --methods lca";

struct BenchFlags {
  CommonFlags common;
  KnobFlags knobs;
  TextFlag shape, lengths, dtype, methods, batch;
  LayerWhereFlags where;
  bool json = false;
  bool backward = false;
};

/// Measurements of one method at one length.
struct Measured {
  MethodKind kind;
  double prefill = 0;   // seconds
  double decode = 0;    // seconds
  double condense = 0;  // seconds; lca only
  double gflops = 0;
  std::int64_t cache = 0;  // bytes
  std::int64_t peak = 0;
};

struct BenchRow {
  std::int64_t length;
  std::int64_t held;  // inputs and outputs
  std::vector<Measured> methods;

  const Measured* find(MethodKind kind) const {
    const auto found = std::ranges::find(methods, kind, &Measured::kind);
    return found == methods.end() ? nullptr : &*found;
  }
  std::int64_t peak() const { return std::ranges::max_element(methods, {}, &Measured::peak)->peak; }
  /// With the largest cache: there is one at a time.
  std::int64_t held_with_cache() const {
    return held + std::ranges::max_element(methods, {}, &Measured::cache)->cache;
  }
};

struct BenchReport {
  std::vector<BenchRow> rows;
  double gemm_before = 0;
  double gemm_after = 0;
  bool peak_is_per_row = true;

  double gemm() const { return std::max(gemm_before, gemm_after); }
};

void check_memory(const CpuBench& job) {
  const std::int64_t length = std::ranges::max(job.lengths);
  double caches = 0;
  for (const MethodKind kind : job.methods) {
    const LayerSpec spec = job.spec_of(kind);
    const auto entries = static_cast<double>(spec.shape.entry_values() * length);
    caches = std::max(caches, entries * static_cast<double>(dtype_bytes(spec.dtype)) +
                                  static_cast<double>(attention_workspace_bytes(
                                      spec, length, length, job.threads)));
  }
  const double out = 4.0 * static_cast<double>(length) *
                     static_cast<double>(job.spec.shape.heads * job.spec.shape.d_value);
  memory_require(Workload::bytes_planned(job.spec.shape, job.spec.dtype, length) + out + caches,
                 fmt::format("length {}", length_text(length)));
}

Measured measure_method(const CpuBench& job, MethodKind kind, const Workload& workload,
                        std::span<float> out, BenchReport& report) {
  // A new context, so that the scratch memory of one method is not held while another is measured.
  Context context(job.threads);
  const LayerSpec spec = job.spec_of(kind);
  Measured measured{kind};
  report.peak_is_per_row = peak_memory_reset() && report.peak_is_per_row;
  Prefill prefill = prefill_measure(context, spec, workload, out);
  measured.prefill = prefill.seconds;
  measured.gflops = useful_operations(spec, workload.length()) / prefill.seconds / 1e9;
  measured.cache = static_cast<std::int64_t>(prefill.cache.bytes());
  measured.decode = decode_measure(context, workload, prefill.cache, out);
  measured.peak = peak_memory();
  if (kind == MethodKind::lca) measured.condense = take_measure(context, spec, workload);
  return measured;
}

BenchRow measure_row(const CpuBench& job, std::int64_t length, Progress& progress,
                     BenchReport& report) {
  heap_trim();
  Context context(job.threads);
  progress.step(fmt::format("{} inputs", length_text(length)), 0.01);
  const AttentionShape& shape = job.spec.shape;
  const Workload workload = Workload::random(context, shape, job.spec.dtype, length);
  std::vector<float> out(static_cast<std::size_t>(length * shape.heads * shape.d_value));
  BenchRow row{
      length, static_cast<std::int64_t>(workload.bytes() + out.size() * sizeof(float)), {}};
  for (const MethodKind kind : job.methods) {
    interrupt_check();
    progress.step(fmt::format("{} {}", length_text(length), method_text(kind)),
                  work_estimate(job.spec_of(kind), length));
    row.methods.push_back(measure_method(job, kind, workload, out, report));
    progress.note(fmt::format("{} {}: prefill {}, decode {}", length_text(length),
                              method_text(kind), seconds_text(row.methods.back().prefill),
                              seconds_text(row.methods.back().decode)));
  }
  return row;
}

BenchReport measure(const CpuBench& job) {
  double work = 0.6;
  for (const std::int64_t length : job.lengths) {
    for (const MethodKind kind : job.methods) work += work_estimate(job.spec_of(kind), length);
  }
  Progress progress(work);
  BenchReport report;
  progress.step("gemm", 0.3);
  report.gemm_before = gemm_gflops_measure(job.threads);
  for (const std::int64_t length : job.lengths) {
    report.rows.push_back(measure_row(job, length, progress, report));
  }
  progress.step("gemm", 0.3);
  report.gemm_after = gemm_gflops_measure(job.threads);
  return report;
}

Json row_json(const BenchRow& row, const BenchReport& report) {
  const auto value = [&](MethodKind kind, auto member, double unit) -> Json {
    const Measured* measured = row.find(kind);
    return measured == nullptr ? Json() : Json(measured->*member * unit);
  };
  const auto bytes = [&](MethodKind kind, auto member) -> Json {
    const Measured* measured = row.find(kind);
    return measured == nullptr ? Json() : Json(measured->*member);
  };
  constexpr MethodKind lca = MethodKind::lca, dense = MethodKind::dense;
  constexpr MethodKind window = MethodKind::window;
  Json json = {{"length", row.length},
               {"lca_ms", value(lca, &Measured::prefill, 1e3)},
               {"dense_ms", value(dense, &Measured::prefill, 1e3)},
               {"lca_gflops", value(lca, &Measured::gflops, 1)},
               {"dense_gflops", value(dense, &Measured::gflops, 1)},
               {"gemm_gflops", report.gemm()},
               {"decode_lca_us", value(lca, &Measured::decode, 1e6)},
               {"decode_dense_us", value(dense, &Measured::decode, 1e6)},
               {"condense_ms", value(lca, &Measured::condense, 1e3)},
               {"cache_bytes_lca", bytes(lca, &Measured::cache)},
               {"cache_bytes_dense", bytes(dense, &Measured::cache)},
               {"peak_bytes", row.peak()},
               {"held_bytes", row.held_with_cache()}};
  if (row.find(window) != nullptr) {
    json["window_ms"] = value(window, &Measured::prefill, 1e3);
    json["window_gflops"] = value(window, &Measured::gflops, 1);
    json["decode_window_us"] = value(window, &Measured::decode, 1e6);
    json["cache_bytes_window"] = bytes(window, &Measured::cache);
  }
  return json;
}

void print_report_json(const CpuBench& job, const BenchReport& report) {
  Json rows = Json::array();
  for (const BenchRow& row : report.rows) rows.push_back(row_json(row, report));
  Json json = bench_json(job, std::move(rows));
  json["gemm_gflops_before"] = report.gemm_before;
  json["gemm_gflops_after"] = report.gemm_after;
  json["peak_is_per_row"] = report.peak_is_per_row;
  print(json.dump() + "\n");
}

std::string times_text(double ratio) { return number_text(ratio) + "×"; }

/// The ratio dense / lca of one quantity, if both were measured.
template <typename Member>
std::string dense_over_lca(const BenchRow& row, Member member) {
  const Measured* lca = row.find(MethodKind::lca);
  const Measured* dense = row.find(MethodKind::dense);
  if (lca == nullptr || dense == nullptr) return "–";
  return times_text(static_cast<double>(dense->*member) / static_cast<double>(lca->*member));
}

std::string prefill_table(const CpuBench& job, const BenchReport& report) {
  std::vector<std::string> header = {"length"};
  for (const MethodKind kind : job.methods) header.push_back(method_text(kind));
  header.emplace_back("speed-up");
  for (const MethodKind kind : job.methods) {
    header.push_back(method_text(kind) + " GFLOP/s");
    header.emplace_back("of gemm");
  }
  header.emplace_back("condense");
  header.emplace_back("of lca");
  Table table(header);
  for (const BenchRow& row : report.rows) {
    std::vector<std::string> cells = {length_text(row.length)};
    for (const Measured& m : row.methods) cells.push_back(seconds_text(m.prefill));
    cells.push_back(dense_over_lca(row, &Measured::prefill));
    for (const Measured& m : row.methods) {
      cells.push_back(number_text(m.gflops));
      cells.push_back(fmt::format("{:.2f}", m.gflops / report.gemm()));
    }
    const Measured* lca = row.find(MethodKind::lca);
    cells.push_back(lca == nullptr ? "–" : seconds_text(lca->condense));
    cells.push_back(lca == nullptr ? "–"
                                   : fmt::format("{:.1f} %", 100 * lca->condense / lca->prefill));
    table.add(cells);
  }
  return table.text();
}

std::string decode_table(const CpuBench& job, const BenchReport& report) {
  std::vector<std::string> header = {"length"};
  for (const MethodKind kind : job.methods) header.push_back(method_text(kind) + " step");
  header.emplace_back("speed-up");
  for (const MethodKind kind : job.methods) header.push_back(method_text(kind) + " cache");
  for (const char* name : {"smaller", "peak", "inputs+outputs+cache", "peak / that"}) {
    header.emplace_back(name);
  }
  Table table(header);
  for (const BenchRow& row : report.rows) {
    std::vector<std::string> cells = {length_text(row.length)};
    for (const Measured& m : row.methods) cells.push_back(seconds_text(m.decode));
    cells.push_back(dense_over_lca(row, &Measured::decode));
    for (const Measured& m : row.methods) {
      cells.push_back(bytes_text(static_cast<double>(m.cache)));
    }
    const auto peak = static_cast<double>(row.peak());
    const auto held = static_cast<double>(row.held_with_cache());
    cells.push_back(dense_over_lca(row, &Measured::cache));
    cells.push_back(bytes_text(peak));
    cells.push_back(bytes_text(held));
    cells.push_back(fmt::format("{:.2f}", peak / held));
    table.add(cells);
  }
  return table.text();
}

void print_table(const CpuBench& job, const BenchReport& report) {
  std::string text = fmt::format("{}\nPrefill\n\n{}\nDecode and memory\n\n{}\n", bench_head(job),
                                 prefill_table(job, report), decode_table(job, report));
  text += fmt::format("gemm: {} GFLOP/s before, {} after; the better one counts.\n",
                      number_text(report.gemm_before), number_text(report.gemm_after));
  if (!report.peak_is_per_row) {
    text += "peak: of the whole process so far; this system cannot reset it for each row.\n";
  }
  print(text);
}

std::vector<MethodKind> methods_parse(std::string_view text) {
  static constexpr std::string_view kNames[] = {"lca", "dense", "window"};
  std::vector<MethodKind> kinds;
  for (;;) {
    const std::size_t comma = text.find(',');
    const std::size_t index = choice_parse("--methods", text.substr(0, comma), kNames);
    const auto kind = static_cast<MethodKind>(index);
    if (std::ranges::find(kinds, kind) == kinds.end()) kinds.push_back(kind);
    if (comma == std::string_view::npos) return kinds;
    text.remove_prefix(comma + 1);
  }
}

/// On the GPU: its own default lengths, batches and type.
void run_cuda(const BenchFlags& flags, const cuda::LayerOptions& options) {
  const NamedShape& model = named_shape(flags.shape.text);
  if (flags.dtype.given() && dtype_parse("--dtype", flags.dtype.text) != DType::bf16) {
    fail_input("--backend cuda computes in bf16; use --dtype bf16, or leave it out");
  }
  constexpr std::int64_t kMostBatch = 4096;
  CudaBench job{
      model,
      workload_layer(model.shape, flags.knobs.apply(Settings{}), DType::bf16,
                     flags.knobs.scale(model.scale)),
      options,
      methods_parse(flags.methods.text),
      flags.methods.given(),
      counts_parse("--lengths", flags.lengths.given() ? flags.lengths.text : "8K,32K,128K", 1,
                   kLongestLayout32),
      counts_parse("--batch", flags.backward && !flags.batch.given() ? "1" : flags.batch.text, 1,
                   kMostBatch),
      flags.json};
  flags.common.threads();  // not used here, but checked
  flags.backward ? cuda_bench_backward(job) : cuda_bench(job);
}

void run(const BenchFlags& flags) {
  const auto [backend, options] = flags.where.read();
  const bool on_cuda = backend == Backend::cuda;
  cuda_only_check(flags.batch, "--batch", on_cuda);
  if (on_cuda) return run_cuda(flags, options);
  const NamedShape& model = named_shape(flags.shape.text);
  CpuBench job{
      model,
      workload_layer(model.shape, flags.knobs.apply(Settings{}),
                     dtype_parse("--dtype", flags.dtype.text), flags.knobs.scale(model.scale)),
      methods_parse(flags.methods.text),
      counts_parse("--lengths", flags.lengths.text, 1, kLongestLength),
      flags.common.threads(),
      flags.json};
  if (job.threads == 0) job.threads = Context(0).threads();
  if (flags.backward) return backward_bench(job);
  check_memory(job);
  const BenchReport report = measure(job);
  job.json ? print_report_json(job, report) : print_table(job, report);
}

}  // namespace

LayerSpec CpuBench::spec_of(MethodKind kind) const {
  LayerSpec copy = spec;
  copy.settings.method = kind;
  return copy;
}

std::string bench_head(const CpuBench& job) {
  return fmt::format("{}, {}, {} threads, {}, {}\n{}\n", job.model.name, dtype_name(job.spec.dtype),
                     job.threads, machine_text(), date_text(), settings_line(job.spec.settings));
}

nlohmann::ordered_json bench_json(const CpuBench& job, nlohmann::ordered_json rows) {
  Json settings = settings_json(job.spec.settings);
  settings.erase("method");  // named by rows or columns
  settings["scale"] = job.spec.softmax_scale();
  return {{"rows", std::move(rows)},
          {"threads", job.threads},
          {"backend", "cpu"},
          {"shape", job.model.name},
          {"dtype", dtype_name(job.spec.dtype)},
          {"machine", machine_name()},
          {"level", cpu_level_name(cpu_level())},
          {"date", date_text()},
          {"settings", std::move(settings)}};
}

Command bench_attention_command(CLI::App& parent) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* app = parent.add_subcommand("attention", "Time and memory of LCA and dense attention");
  app->footer(kBenchExplanation);
  flags->where.add(*app, LayerWhereFlags::Reference::no);
  flags->shape.add(*app, "--shape", shape_names(), "the model whose attention is measured",
                   "deepseek-v2-lite");
  flags->lengths.add(*app, "--lengths", "N,N,...", "context lengths (cuda: 8K,32K,128K)",
                     "1K,2K,4K,8K,16K");
  flags->dtype.add(*app, "--dtype", "f32|bf16", "inputs and cache", "f32");
  flags->methods.add(*app, "--methods,--method", "LIST", "any of lca, dense, window", "lca,dense");
  flags->batch.add(*app, "--batch", "N,N,...", "cuda: sessions that decode together", "1,32");
  app->add_flag("--backward", flags->backward,
                "a training step, gradients included; cuda: --batch counts packed documents");
  app->add_flag("--json", flags->json, "print JSON");
  flags->common.add(*app);
  flags->knobs.add(*app, KnobFlags::MethodFlag::no);
  return {app, [flags] { run(*flags); }};
}

}  // namespace lca::cli
