/// `lca bench attention --backend cuda`: the GPU's kernels one by one, over context lengths.

#include "bench_cuda.h"

#include "arguments.h"
#include "attention/layout.h"
#include "bench/cuda/bench.h"
#include "core/error.h"
#include "interrupt.h"
#include "machine.h"
#include "measure.h"
#include "terminal.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <string>

namespace lca::cli {
namespace {

using Json = nlohmann::ordered_json;
using cuda::BenchSetup;
using cuda::CondenseWork;
using cuda::Timed;

/// Longer dense attention takes seconds per call, and is measured only on request.
constexpr std::int64_t kLongestDense = 128 * 1024;

constexpr CondenseWork kWorks[] = {CondenseWork::prompt, CondenseWork::streaming,
                                   CondenseWork::streaming_means};
constexpr const char* kWorkNames[] = {"prompt", "streaming", "streaming_means"};

/// A time, and operations or bytes per second.
struct Figure {
  Timed timed;
  double rate = 0;  // 1e12 per second

  Figure(const Timed& timed_, double work) : timed(timed_), rate(work / timed_.seconds / 1e12) {}
};

struct Prefilled {
  MethodKind kind;
  Figure figure;
};

struct Decoded {
  MethodKind kind;
  std::int64_t batch;
  double cache;  // bytes of one session
  Figure figure;
};

struct CudaRow {
  std::int64_t length;
  std::vector<Prefilled> prefill;
  std::vector<Figure> condense;  // one per kWorks; empty where nothing is condensed
  std::optional<Figure> rebuild_exact, rebuild_groups;
  std::vector<Decoded> decode;
};

class Measuring {
 public:
  explicit Measuring(const CudaBench& job) : job_(job), progress_(steps()) {}

  std::vector<CudaRow> run() {
    std::vector<CudaRow> rows;
    for (const std::int64_t length : job_.lengths) rows.push_back(row(length));
    return rows;
  }

  /// Checks, before anything runs, the memory that the largest row needs.
  static void check_memory(const CudaBench& job) {
    double most = 0;
    std::int64_t length_of_most = 0;
    const auto take = [&](std::int64_t length, double bytes) {
      if (bytes <= most) return;
      most = bytes;
      length_of_most = length;
    };
    for (const std::int64_t length : job.lengths) {
      for (const MethodKind kind : job.methods) {
        if (skipped(job, kind, length)) continue;
        const BenchSetup setup = setup_of(job, kind);
        take(length, cuda::bench_prefill_bytes(setup, length));
        for (const std::int64_t batch : job.batches) {
          take(length, cuda::bench_decode_bytes(setup, length, static_cast<int>(batch)));
        }
        if (!condenses(job, kind, length)) continue;
        for (const CondenseWork work : kWorks) {
          take(length, cuda::bench_condense_bytes(setup, length, work));
        }
      }
    }
    cuda::bench_memory_check(most, fmt::format("length {}", length_text(length_of_most)));
  }

 private:
  static BenchSetup setup_of(const CudaBench& job, MethodKind kind) {
    BenchSetup setup{job.spec, job.options};
    setup.spec.settings.method = kind;
    return setup;
  }
  static bool skipped(const CudaBench& job, MethodKind kind, std::int64_t length) {
    return kind == MethodKind::dense && length > kLongestDense && !job.all_dense;
  }
  static bool condenses(const CudaBench& job, MethodKind kind, std::int64_t length) {
    return Layout(setup_of(job, kind).spec.settings).groups(length) > 0;
  }

  /// Number of measurements, for the progress bar; each takes about a second.
  double steps() const {
    double count = 0;
    for (const std::int64_t length : job_.lengths) {
      for (const MethodKind kind : job_.methods) {
        if (skipped(job_, kind, length)) continue;
        count += 1 + static_cast<double>(job_.batches.size());
        if (condenses(job_, kind, length)) count += 3;
      }
      if (job_.spec.shape.form == Form::mla) count += 2;
    }
    return count;
  }

  void step(std::int64_t length, const std::string& what) {
    interrupt_check();
    progress_.step(fmt::format("{} {}", length_text(length), what), 1);
  }

  CudaRow row(std::int64_t length) {
    CudaRow row{length, {}, {}, {}, {}, {}};
    const AttentionShape& shape = job_.spec.shape;
    std::int64_t groups = 0;
    for (const MethodKind kind : job_.methods) {
      if (skipped(job_, kind, length)) continue;
      const BenchSetup setup = setup_of(job_, kind);
      step(length, method_text(kind) + " prefill");
      row.prefill.push_back({kind, Figure(cuda::bench_prefill(setup, length),
                                          useful_operations(setup.spec, length))});
      progress_.note(fmt::format("{} {}: prefill {}", length_text(length), method_text(kind),
                                 seconds_text(row.prefill.back().figure.timed.seconds)));
      if (condenses(job_, kind, length)) {
        groups = Layout(setup.spec.settings).groups(length);
        for (std::size_t i = 0; i < std::size(kWorks); ++i) {
          step(length, std::string("condense ") + kWorkNames[i]);
          row.condense.emplace_back(cuda::bench_condense(setup, length, kWorks[i]),
                                    cuda::bench_condense_traffic(setup, length, kWorks[i]));
        }
      }
      for (const std::int64_t batch : job_.batches) {
        step(length, fmt::format("{} decode, batch {}", method_text(kind), batch));
        const double cache = cuda::bench_cache_bytes(setup, length);
        row.decode.push_back({kind, batch, cache,
                              Figure(cuda::bench_decode(setup, length, static_cast<int>(batch)),
                                     cache * static_cast<double>(batch))});
      }
    }
    if (shape.form == Form::mla) {
      const auto rebuild = [&](std::int64_t rows) -> std::optional<Figure> {
        step(length, "rebuild");
        if (rows == 0) return std::nullopt;
        const auto operations =
            2.0 * static_cast<double>(rows) *
            static_cast<double>(shape.heads * (shape.d_nope + shape.d_value) * shape.d_latent);
        return Figure(cuda::bench_rebuild(setup_of(job_, MethodKind::lca), rows), operations);
      };
      row.rebuild_exact = rebuild(length);
      row.rebuild_groups = rebuild(groups);
    }
    return row;
  }

  const CudaBench& job_;
  Progress progress_;
};

// --- output ---------------------------------------------------------------------------

Json figure_json(const Figure& figure, const char* rate) {
  return {{"ms", figure.timed.seconds * 1e3},
          {rate, figure.rate},
          {"repetitions", figure.timed.repetitions},
          {"sets", figure.timed.sets}};
}

Json row_json(const CudaRow& row) {
  Json json = {{"length", row.length}};
  for (const Prefilled& one : row.prefill) {
    json["prefill"][method_text(one.kind)] = figure_json(one.figure, "tflops");
  }
  for (std::size_t i = 0; i < row.condense.size(); ++i) {
    json["condense"][kWorkNames[i]] = figure_json(row.condense[i], "tb_per_s");
  }
  if (row.rebuild_exact) json["rebuild"]["exact"] = figure_json(*row.rebuild_exact, "tflops");
  if (row.rebuild_groups) json["rebuild"]["groups"] = figure_json(*row.rebuild_groups, "tflops");
  json["decode"] = Json::array();
  for (const Decoded& one : row.decode) {
    Json decode = {{"method", method_text(one.kind)},
                   {"batch", one.batch},
                   {"cache_bytes", one.cache},
                   {"us", one.figure.timed.seconds * 1e6}};
    decode.update(figure_json(one.figure, "tb_per_s"));
    json["decode"].push_back(std::move(decode));
  }
  return json;
}

const char* storage_name(cuda::GroupStorage storage) {
  static constexpr const char* kNames[] = {"bf16", "fp8", "int8"};
  return kNames[static_cast<std::size_t>(storage)];
}

const char* kernels_name(const CudaBench& job) {
  return job.options.portable ? "portable" : "fast";
}

void print_report_json(const CudaBench& job, const std::vector<CudaRow>& rows) {
  Json list = Json::array();
  for (const CudaRow& row : rows) list.push_back(row_json(row));
  Json settings = settings_json(job.spec.settings);
  settings.erase("method");  // named by the rows
  settings["scale"] = job.spec.softmax_scale();
  const cuda::BenchDevice device = cuda::bench_device(job.options.device);
  const Json json = {{"rows", std::move(list)},
                     {"backend", "cuda"},
                     {"shape", job.model.name},
                     {"dtype", "bf16"},
                     {"kernels", kernels_name(job)},
                     {"groups", storage_name(job.options.groups)},
                     {"gpu", device.name},
                     {"gpu_multiprocessors", device.multiprocessors},
                     {"gpu_memory_bytes", device.memory},
                     {"gpu_cache_bytes", device.cache},
                     {"date", date_text()},
                     {"settings", std::move(settings)}};
  print(json.dump() + "\n");
}

/// Two cells: time and rate.
void add_figure(std::vector<std::string>& cells, const Figure* figure) {
  cells.push_back(figure == nullptr ? "–" : seconds_text(figure->timed.seconds));
  cells.push_back(figure == nullptr ? "–" : number_text(figure->rate));
}

std::string speed_up(const Figure* dense, const Figure* lca) {
  if (dense == nullptr || lca == nullptr) return "–";
  return number_text(dense->timed.seconds / lca->timed.seconds) + "×";
}

std::string prefill_table(const CudaBench& job, const std::vector<CudaRow>& rows) {
  std::vector<std::string> header = {"length"};
  for (const MethodKind kind : job.methods) {
    header.push_back(method_text(kind));
    header.emplace_back("TFLOP/s");
  }
  header.emplace_back("speed-up");
  Table table(header);
  for (const CudaRow& row : rows) {
    const auto find = [&](MethodKind kind) -> const Figure* {
      const auto found = std::ranges::find(row.prefill, kind, &Prefilled::kind);
      return found == row.prefill.end() ? nullptr : &found->figure;
    };
    std::vector<std::string> cells = {length_text(row.length)};
    for (const MethodKind kind : job.methods) add_figure(cells, find(kind));
    cells.push_back(speed_up(find(MethodKind::dense), find(MethodKind::lca)));
    table.add(cells);
  }
  return table.text();
}

std::string condense_table(const CudaBench& job, const std::vector<CudaRow>& rows) {
  std::vector<std::string> header = {"length", "prompt",     "TB/s", "streaming, from q",
                                     "TB/s",   "from means", "TB/s"};
  const bool mla = job.spec.shape.form == Form::mla;
  if (mla) {
    for (const char* name : {"keys and values", "TFLOP/s", "of groups", "TFLOP/s"}) {
      header.emplace_back(name);
    }
  }
  Table table(header);
  for (const CudaRow& row : rows) {
    std::vector<std::string> cells = {length_text(row.length)};
    for (std::size_t i = 0; i < std::size(kWorks); ++i) {
      add_figure(cells, i < row.condense.size() ? &row.condense[i] : nullptr);
    }
    if (mla) {
      add_figure(cells, row.rebuild_exact ? &*row.rebuild_exact : nullptr);
      add_figure(cells, row.rebuild_groups ? &*row.rebuild_groups : nullptr);
    }
    table.add(cells);
  }
  return table.text();
}

std::string decode_table(const CudaBench& job, const std::vector<CudaRow>& rows) {
  std::vector<std::string> header = {"length", "batch"};
  for (const MethodKind kind : job.methods) {
    header.push_back(method_text(kind));
    header.emplace_back("TB/s");
    header.emplace_back("cache");
  }
  header.emplace_back("speed-up");
  Table table(header);
  for (const CudaRow& row : rows) {
    for (const std::int64_t batch : job.batches) {
      const auto find = [&](MethodKind kind) -> const Decoded* {
        for (const Decoded& one : row.decode) {
          if (one.kind == kind && one.batch == batch) return &one;
        }
        return nullptr;
      };
      const auto figure = [&](MethodKind kind) {
        const Decoded* found = find(kind);
        return found == nullptr ? nullptr : &found->figure;
      };
      std::vector<std::string> cells = {length_text(row.length), fmt::format("{}", batch)};
      for (const MethodKind kind : job.methods) {
        add_figure(cells, figure(kind));
        cells.push_back(find(kind) == nullptr ? "–" : bytes_text(find(kind)->cache));
      }
      cells.push_back(speed_up(figure(MethodKind::dense), figure(MethodKind::lca)));
      table.add(cells);
    }
  }
  return table.text();
}

void print_table(const CudaBench& job, const std::vector<CudaRow>& rows) {
  const cuda::BenchDevice device = cuda::bench_device(job.options.device);
  print(fmt::format(
      "{}, bf16, {} kernels, groups {}, {}, {}\n{}\n\nPrefill, attention alone\n\n{}\n"
      "Condensing a whole prompt, and rebuilding keys and values\n\n{}\nDecode step\n\n{}\n"
      "Medians. TFLOP/s count visible pairs, TB/s the bytes that must be read and written. "
      "Condensing, "
      "rebuilding and\ndecoding are replays of a graph over as many inputs as fill the L2 cache "
      "({}) twice.\n",
      job.model.name, kernels_name(job), storage_name(job.options.groups), device.name, date_text(),
      settings_line(job.spec.settings), prefill_table(job, rows), condense_table(job, rows),
      decode_table(job, rows), bytes_text(device.cache)));
}

}  // namespace

void cuda_bench(const CudaBench& job) {
  if (!cuda::unavailable().empty()) fail_incompatible("{}", cuda::unavailable());
  Measuring::check_memory(job);
  const std::vector<CudaRow> rows = Measuring(job).run();
  job.json ? print_report_json(job, rows) : print_table(job, rows);
}

}  // namespace lca::cli
