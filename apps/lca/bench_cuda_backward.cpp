/// `lca bench attention --backend cuda --backward`: attention and its gradients.

#include "arguments.h"
#include "attention/layout.h"
#include "bench/cuda/bench.h"
#include "bench_cuda.h"
#include "core/error.h"
#include "interrupt.h"
#include "machine.h"
#include "measure.h"
#include "terminal.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <string>

namespace lca::cli {
namespace {

using Json = nlohmann::ordered_json;

struct CudaBackwardRow {
  std::int64_t length, documents;
  MethodKind kind;
  double operations;  // of the forward pass, visible pairs
  cuda::TimedBackward timed;
  double condense = 0, condense_backward = 0;  // seconds; 0 where nothing is condensed

  double total() const {
    return timed.forward.seconds + timed.backward.seconds + condense + condense_backward;
  }
  double forward_rate() const { return operations / timed.forward.seconds / 1e12; }
  /// S, dP, dV, dK and dQ against S and out, as attention's gradients are counted everywhere.
  double backward_rate() const { return 2.5 * operations / timed.backward.seconds / 1e12; }
};

std::vector<CudaBackwardRow> backward_rows(const CudaBench& job) {
  const auto count =
      static_cast<double>(job.lengths.size() * job.batches.size() * job.methods.size());
  Progress progress(count);
  std::vector<CudaBackwardRow> rows;
  for (const std::int64_t length : job.lengths) {
    for (const std::int64_t documents : job.batches) {
      for (const MethodKind kind : job.methods) {
        interrupt_check();
        progress.step(fmt::format("{} × {} {}", documents, length_text(length), method_text(kind)),
                      1);
        cuda::BenchSetup setup{job.spec, job.options};
        setup.spec.settings.method = kind;
        const auto number = static_cast<int>(documents);
        cuda::bench_memory_check(cuda::bench_backward_bytes(setup, length, number),
                                 fmt::format("length {}", length_text(length)));
        rows.push_back({length, documents, kind,
                        static_cast<double>(documents) * useful_operations(setup.spec, length),
                        cuda::bench_backward(setup, length, number)});
        if (Layout(setup.spec.settings).groups(length) == 0) continue;
        cuda::bench_memory_check(cuda::bench_operator_bytes(setup, length, documents, true),
                                 fmt::format("length {}", length_text(length)));
        rows.back().condense = cuda::bench_operator(setup, length, documents, false).seconds;
        rows.back().condense_backward =
            cuda::bench_operator(setup, length, documents, true).seconds;
      }
    }
  }
  return rows;
}

void backward_print_json(const CudaBench& job, const std::vector<CudaBackwardRow>& rows) {
  Json list = Json::array();
  for (const CudaBackwardRow& row : rows) {
    list.push_back({{"length", row.length},
                    {"documents", row.documents},
                    {"method", method_text(row.kind)},
                    {"forward_ms", row.timed.forward.seconds * 1e3},
                    {"backward_ms", row.timed.backward.seconds * 1e3},
                    {"condense_ms", row.condense * 1e3},
                    {"condense_backward_ms", row.condense_backward * 1e3},
                    {"total_ms", row.total() * 1e3},
                    {"forward_tflops", row.forward_rate()},
                    {"backward_tflops", row.backward_rate()},
                    {"scratch_bytes", row.timed.scratch}});
  }
  Json settings = settings_json(job.spec.settings);
  settings.erase("method");  // named by the rows
  const Json json = {{"rows", std::move(list)},
                     {"backend", "cuda"},
                     {"shape", job.model.name},
                     {"dtype", "bf16"},
                     {"kernels", job.options.portable ? "portable" : "fast"},
                     {"gpu", cuda::bench_device(job.options.device).name},
                     {"date", date_text()},
                     {"settings", std::move(settings)}};
  print(json.dump() + "\n");
}

void backward_print_table(const CudaBench& job, const std::vector<CudaBackwardRow>& rows) {
  Table table({"length", "documents", "method", "forward", "TFLOP/s", "backward", "TFLOP/s",
               "condense", "its backward", "together", "scratch"});
  const auto some = [](double seconds) { return seconds > 0 ? seconds_text(seconds) : "–"; };
  for (const CudaBackwardRow& row : rows) {
    table.add({length_text(row.length), fmt::format("{}", row.documents), method_text(row.kind),
               seconds_text(row.timed.forward.seconds), number_text(row.forward_rate()),
               seconds_text(row.timed.backward.seconds), number_text(row.backward_rate()),
               some(row.condense), some(row.condense_backward), seconds_text(row.total()),
               bytes_text(row.timed.scratch)});
  }
  print(
      fmt::format("{}, bf16, {} kernels, {}, {}\n{}\n\n{}\n"
                  "Medians of attention, of condensing and of their gradients. TFLOP/s are "
                  "attention's and count visible pairs, the backward pass as 2.5 forward ones.\n",
                  job.model.name, job.options.portable ? "portable" : "fast",
                  cuda::bench_device(job.options.device).name, date_text(),
                  settings_line(job.spec.settings), table.text()));
}

}  // namespace

void cuda_bench_backward(const CudaBench& job) {
  if (!cuda::unavailable().empty()) fail_incompatible("{}", cuda::unavailable());
  const std::vector<CudaBackwardRow> rows = backward_rows(job);
  job.json ? backward_print_json(job, rows) : backward_print_table(job, rows);
}

}  // namespace lca::cli
