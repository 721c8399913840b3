/// `lca demo attention`: LCA compared with dense attention as the context grows, as a table and
/// plots.

#include "arguments.h"
#include "command.h"
#include "core/error.h"
#include "core/file.h"
#include "interrupt.h"
#include "machine.h"
#include "measure.h"
#include "plot.h"
#include "terminal.h"
#include "workload.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>

namespace lca::cli {
namespace {

constexpr std::int64_t kShortest = 1024;
constexpr const char* kPreset = "training-free";

constexpr const char* kDemoAttentionExplanation =
    "One attention layer prefills contexts from 1K on, with LCA (by default with preset\n"
    "training-free) and with dense attention. Inputs are synthetic, with topics, recurring words\n"
    "and drift like those of text. No model computed them: the deviation illustrates the "
    "mechanism\n"
    "and says nothing about the quality of answers.\n"
    "\n"
    "Examples:\n"
    "  lca demo attention\n"
    "  lca demo attention --shape deepseek-v2-lite --max-length 8K\n"
    "  lca demo attention --preset paper --group 8 --out condensed.svg";

struct DemoAttentionFlags {
  CommonFlags common;
  KnobFlags knobs;
  TextFlag shape, longest, out;
};

struct DemoJob {
  const NamedShape& model;
  LayerSpec lca;
  LayerSpec dense;
  std::vector<std::int64_t> lengths;
  int threads;
  std::string out;
};

struct DemoRow {
  double lca_seconds = 0, dense_seconds = 0;
  double lca_bytes = 0, dense_bytes = 0;
  double deviation = 0;  // ‖lca − dense‖ / ‖dense‖ over all outputs
};

double deviation(const std::vector<float>& values, const std::vector<float>& truth) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const double delta = double{values[i]} - double{truth[i]};
    difference += delta * delta;
    size += double{truth[i]} * double{truth[i]};
  }
  return size > 0 ? std::sqrt(difference / size) : 0;
}

DemoRow measure_row(const DemoJob& job, std::int64_t length, Progress& progress) {
  Context context(job.threads);
  const std::string label = length_text(length);
  progress.step(label + " inputs", 0.05);
  const Workload workload = Workload::text_like(context, job.lca, length);
  const AttentionShape& shape = job.lca.shape;
  const auto values = static_cast<std::size_t>(length * shape.heads * shape.d_value);
  std::vector<float> condensed(values), exact(values);

  DemoRow row;
  const auto measure = [&](const LayerSpec& spec, std::span<float> out, const char* name,
                           double& bytes) {
    interrupt_check();
    progress.step(fmt::format("{} {}", label, name), work_estimate(spec, length));
    const Prefill prefill = prefill_measure(context, spec, workload, out);
    bytes = static_cast<double>(prefill.cache.bytes());
    return prefill.seconds;
  };
  row.lca_seconds = measure(job.lca, condensed, "lca", row.lca_bytes);
  row.dense_seconds = measure(job.dense, exact, "dense", row.dense_bytes);
  row.deviation = deviation(condensed, exact);
  return row;
}

std::vector<DemoRow> measure(const DemoJob& job) {
  double work = 0;
  for (const std::int64_t length : job.lengths) {
    work += 0.05 + work_estimate(job.lca, length) + work_estimate(job.dense, length);
  }
  Progress progress(work);
  std::vector<DemoRow> rows;
  for (const std::int64_t length : job.lengths) {
    rows.push_back(measure_row(job, length, progress));
  }
  return rows;
}

std::string table_text(const DemoJob& job, const std::vector<DemoRow>& rows) {
  Table table(
      {"tokens", "lca", "dense", "faster", "lca cache", "dense cache", "smaller", "deviation"});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const DemoRow& row = rows[i];
    table.add({length_text(job.lengths[i]), seconds_text(row.lca_seconds),
               seconds_text(row.dense_seconds),
               number_text(row.dense_seconds / row.lca_seconds) + "×", bytes_text(row.lca_bytes),
               bytes_text(row.dense_bytes), number_text(row.dense_bytes / row.lca_bytes) + "×",
               fmt::format("{:.1f} %", 100 * row.deviation)});
  }
  return table.text();
}

std::vector<Panel> panels(const std::vector<DemoRow>& rows) {
  Panel time{"Time to read the context", {}, {}, seconds_text, 10};
  Panel cache{"Size of the cache", {}, {}, [](double v) { return bytes_text(v); }, 4};
  for (const DemoRow& row : rows) {
    time.lca.push_back(row.lca_seconds);
    time.dense.push_back(row.dense_seconds);
    cache.lca.push_back(row.lca_bytes);
    cache.dense.push_back(row.dense_bytes);
  }
  return {time, cache};
}

void write_file(const std::string& path, std::string_view text) {
  const InterruptShield shield;
  interrupt_check();
  FileWriter writer(path);
  writer.write(std::as_bytes(std::span(text)));
  writer.commit();
}

void run_job(const DemoJob& job) {
  writable_check(job.out);
  const std::string title = fmt::format("One attention layer of {}, {} {}", job.model.name,
                                        job.threads, job.threads == 1 ? "thread" : "threads");
  const std::string setting = settings_line(job.lca.settings);
  print(fmt::format("{} ({}), synthetic text-like inputs\n{}\n\n", title, machine_name(), setting));

  const std::vector<DemoRow> rows = measure(job);
  const std::vector<Panel> drawn = panels(rows);
  const bool colour = stdout_is_terminal();
  print(table_text(job, rows) + "\n");
  for (const Panel& panel : drawn) print(plot_bars(job.lengths, panel, colour) + "\n");

  write_file(job.out, plot_svg("LCA compared with dense attention",
                               title + ", " + date_text().substr(0, 10), job.lengths, drawn));
  print(
      fmt::format("Deviation is ‖lca − dense‖ / ‖dense‖ of the outputs; the inputs are synthetic.\n"
                  "Plot: {}\n",
                  job.out));
}

void run(const DemoAttentionFlags& flags) {
  const NamedShape& model = named_shape(flags.shape.text);
  // No model was trained for condensed context here, so start from the training-free preset.
  Settings settings = flags.knobs.apply(settings_preset(kPreset));
  settings.method = MethodKind::lca;
  const LayerSpec lca =
      workload_layer(model.shape, settings, DType::f32, flags.knobs.scale(model.scale));
  LayerSpec dense = lca;
  dense.settings.method = MethodKind::dense;

  const std::int64_t longest =
      count_parse("--max-length", flags.longest.text, kShortest, std::int64_t{1} << 24);
  std::vector<std::int64_t> lengths;
  for (std::int64_t n = kShortest; n <= longest; n *= 2) lengths.push_back(n);
  const double outputs = 8.0 * static_cast<double>(lengths.back()) *
                         static_cast<double>(model.shape.heads * model.shape.d_value);
  memory_require(1.5 * Workload::bytes_planned(model.shape, DType::f32, lengths.back()) + outputs,
                 fmt::format("--max-length {}", length_text(lengths.back())));
  run_job({model, lca, dense, lengths, Context(flags.common.threads()).threads(), flags.out.text});
}

}  // namespace

Command demo_attention_command(CLI::App& parent) {
  auto flags = std::make_shared<DemoAttentionFlags>();
  CLI::App* app =
      parent.add_subcommand("attention", "One attention layer as the context grows, with a plot");
  app->footer(kDemoAttentionExplanation);
  flags->shape.add(*app, "--shape", shape_names(), "the model whose attention is shown", "smollm2");
  flags->longest.add(*app, "--max-length", "N", "longest context, from 1K on by doubling", "32K");
  flags->out.add(*app, "--out", "FILE", "the plot to write", "lca-demo.svg");
  flags->common.add(*app);
  flags->knobs.add(*app, KnobFlags::MethodFlag::no);
  return {app, [flags] { run(*flags); }};
}

}  // namespace lca::cli
