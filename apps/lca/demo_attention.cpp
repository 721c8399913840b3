/// `lca demo attention`: LCA beside dense attention as the context grows, as a table and as
/// pictures.

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

constexpr const char* kExplanation =
    "One attention layer prefills contexts from 1K on, twice: with LCA (preset training-free "
    "unless\n"
    "told otherwise) and with dense attention. Inputs are synthetic, with topics, recurring words\n"
    "and drift as text has them; no model made them, so the deviation shows the mechanism at work\n"
    "and says nothing about answers.\n"
    "\n"
    "Examples:\n"
    "  lca demo attention\n"
    "  lca demo attention --shape deepseek-v2-lite --max-length 8K\n"
    "  lca demo attention --preset paper --group 8 --out condensed.svg";

struct Flags {
  CommonFlags common;
  KnobFlags knobs;
  TextFlag shape, longest, out;
};

struct Job {
  const NamedShape& model;
  LayerSpec lca;
  LayerSpec dense;
  std::vector<std::int64_t> lengths;
  int threads;
  std::string out;
};

struct Row {
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

/// Seconds on some machine, for the progress bar.
double work_estimate(const LayerSpec& spec, std::int64_t length) {
  const double once = useful_operations(spec, length) / 100e9;
  return 0.05 + once * repetitions(once);
}

Row measure_row(const Job& job, std::int64_t length, Progress& progress) {
  Context context(job.threads);
  const std::string label = length_text(length);
  progress.step(label + " inputs", 0.05);
  const Workload workload = Workload::text_like(context, job.lca, length);
  const AttentionShape& shape = job.lca.shape;
  const auto values = static_cast<std::size_t>(length * shape.heads * shape.d_value);
  std::vector<float> condensed(values), exact(values);

  Row row;
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

std::vector<Row> measure(const Job& job) {
  double work = 0;
  for (const std::int64_t length : job.lengths) {
    work += 0.05 + work_estimate(job.lca, length) + work_estimate(job.dense, length);
  }
  Progress progress(work);
  std::vector<Row> rows;
  for (const std::int64_t length : job.lengths) {
    rows.push_back(measure_row(job, length, progress));
  }
  return rows;
}

std::string table_text(const Job& job, const std::vector<Row>& rows) {
  Table table(
      {"tokens", "lca", "dense", "faster", "lca cache", "dense cache", "smaller", "deviation"});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    table.add({length_text(job.lengths[i]), seconds_text(row.lca_seconds),
               seconds_text(row.dense_seconds),
               number_text(row.dense_seconds / row.lca_seconds) + "×", bytes_text(row.lca_bytes),
               bytes_text(row.dense_bytes), number_text(row.dense_bytes / row.lca_bytes) + "×",
               fmt::format("{:.1f} %", 100 * row.deviation)});
  }
  return table.text();
}

std::vector<Panel> panels(const std::vector<Row>& rows) {
  Panel time{"Time to read the context", {}, {}, seconds_text, 10};
  Panel cache{"Cache to remember it", {}, {}, [](double v) { return bytes_text(v); }, 4};
  for (const Row& row : rows) {
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

void run_job(const Job& job) {
  writable_check(job.out);
  const std::string title = fmt::format("One attention layer of {}, {} {}", job.model.name,
                                        job.threads, job.threads == 1 ? "thread" : "threads");
  const std::string setting = settings_line(job.lca.settings);
  print(fmt::format("{} ({}), synthetic text-like inputs\n{}\n\n", title, machine_name(), setting));

  const std::vector<Row> rows = measure(job);
  const std::vector<Panel> drawn = panels(rows);
  const bool colour = stdout_is_terminal();
  print(table_text(job, rows) + "\n");
  for (const Panel& panel : drawn) print(plot_bars(job.lengths, panel, colour) + "\n");

  write_file(job.out, plot_svg("LCA beside dense attention",
                               title + ", " + date_text().substr(0, 10), job.lengths, drawn));
  print(
      fmt::format("Deviation is ‖lca − dense‖ / ‖dense‖ of the outputs; the inputs are synthetic.\n"
                  "Plot: {}\n",
                  job.out));
}

void run(const Flags& flags) {
  const NamedShape& model = named_shape(flags.shape.text);
  // Nothing was trained to read condensed context here, so start from what suits that.
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
  auto flags = std::make_shared<Flags>();
  CLI::App* app =
      parent.add_subcommand("attention", "One attention layer as the context grows, with a plot");
  app->footer(kExplanation);
  flags->shape.add(*app, "--shape", shape_names(), "whose attention", "smollm2");
  flags->longest.add(*app, "--max-length", "N", "longest context, from 1K on by doubling", "32K");
  flags->out.add(*app, "--out", "FILE", "where the plot goes", "lca-demo.svg");
  flags->common.add(*app);
  flags->knobs.add(*app, KnobFlags::MethodFlag::no);
  return {app, [flags] { run(*flags); }};
}

}  // namespace lca::cli
