/// `lca bench attention --backward`: one training step of one layer on the CPU: condensing and
/// attention, forward and backward. MLA's products with W_uk and W_uv between the two are not in
/// it.

#include "bench_cpu.h"

#include "arguments.h"
#include "attention/layout.h"
#include "core/pages.h"
#include "core/stopwatch.h"
#include "interrupt.h"
#include "machine.h"
#include "measure.h"
#include "terminal.h"
#include "workload.h"

#include <fmt/format.h>
#include <lca/operator.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>

namespace lca::cli {
namespace {

using Json = nlohmann::ordered_json;

/// A dense tensor that owns its memory.
class Owned {
 public:
  Owned(DType dtype, std::int64_t d0, std::int64_t d1, std::int64_t d2)
      : bytes_(static_cast<std::size_t>(d0 * d1 * d2) * dtype_bytes(dtype)),
        memory_(aligned_bytes(std::max<std::size_t>(1, bytes_))),
        tensor_(bytes_ == 0 ? nullptr : memory_.get(), dtype, {d0, d1, d2}) {
    std::memset(memory_.get(), 0, std::max<std::size_t>(1, bytes_));
  }
  /// Filled with the bytes of another tensor of the same type, over and over.
  Owned& repeat(const ConstTensor& from) {
    const auto whole =
        static_cast<std::size_t>(from.shape[0] * from.stride[0]) * dtype_bytes(from.dtype);
    for (std::size_t at = 0; at < bytes_; at += whole) {
      std::memcpy(memory_.get() + at, from.data, std::min(whole, bytes_ - at));
    }
    return *this;
  }
  const Tensor& tensor() const { return tensor_; }
  operator Tensor() const { return tensor_; }
  operator ConstTensor() const { return tensor_; }

 private:
  std::size_t bytes_;
  AlignedBytes memory_;
  Tensor tensor_;
};

/// Seconds of the four operators, and of the processor for all of them together.
struct StepTimes {
  std::array<double, 4> part{};  ///< condense, attend, attend backward, condense backward
  double processor = 0;

  double all() const { return part[0] + part[1] + part[2] + part[3]; }
  double forward() const { return part[0] + part[1]; }
};

/// Everything one step reads and writes.
class TrainingStep {
 public:
  TrainingStep(Context& context, const LayerSpec& layer, const Workload& workload)
      : spec_{layer, {0, workload.length()}},
        shape_(spec_.layer.shape),
        mla_(shape_.form == Form::mla),
        n_(workload.length()),
        m_(spec_.groups()),
        rep_semantic_(heads(m_, shape_.kv_heads, shape_.d_semantic())),
        rep_positional_(heads(m_, shape_.kv_heads, shape_.d_positional())),
        out_(heads(n_, shape_.heads, shape_.d_value)),
        out_grad_(heads(n_, shape_.heads, shape_.d_value)),
        dq_nope_(heads(n_, mla_ ? shape_.heads : 0, shape_.d_nope)),
        dq_rope_(heads(n_, shape_.heads, shape_.d_rope)),
        dsemantic_(heads(n_, shape_.kv_heads, shape_.d_semantic())),
        dpositional_(heads(n_, shape_.kv_heads, shape_.d_positional())),
        dw_uk_(heads(mla_ ? shape_.heads : 0, shape_.d_nope, shape_.d_latent)),
        exact_(side(n_, workload)),
        groups_(side(m_, workload)),
        bias_(static_cast<std::size_t>(m_ * shape_.kv_heads) + 1),
        bias_grad_(bias_.size()),
        scores_(static_cast<std::size_t>(m_ * shape_.kv_heads * layer.settings.group) + 1),
        lse_(static_cast<std::size_t>(n_ * shape_.heads)) {
    place_.backend = lca::Backend::cpu;
    place_.context = &context;
    condense_in_ = {workload.queries(0, n_), workload.entries(0, n_), workload.weights().w_uk};
    condense_out_ = {rep_semantic_, rep_positional_, bias_.data(), scores_.data()};
    out_grad_.repeat(condense_in_.queries.rope);
    attend_in_.queries = condense_in_.queries;
    attend_in_.exact = {exact_.k_nope, condense_in_.entries.positional, exact_.value};
    attend_in_.groups = {groups_.k_nope, rep_positional_, groups_.value};
    if (!mla_) {
      attend_in_.exact.value = condense_in_.entries.semantic;
      attend_in_.groups.value = rep_semantic_;
    }
    if (layer.settings.mass != Mass::none) attend_in_.bias = bias_.data();
    attend_grads_.q_nope = dq_nope_;
    attend_grads_.q_rope = dq_rope_;
    attend_grads_.exact = {exact_.dk_nope, dpositional_, exact_.dvalue};
    attend_grads_.groups = {groups_.dk_nope, groups_.dk_rope, groups_.dvalue};
    const bool has_mass = layer.settings.mass == Mass::score;
    if (has_mass) attend_grads_.bias = bias_grad_.data();
    condense_out_grads_.semantic = mla_ ? rep_semantic_.tensor() : groups_.dvalue.tensor();
    condense_out_grads_.positional = groups_.dk_rope.tensor();
    if (has_mass) condense_out_grads_.bias = bias_grad_.data();
    // GQA's values get their gradients from both halves; all others are added likewise.
    condense_grads_ = {dq_nope_,     dq_rope_, mla_ ? dsemantic_.tensor() : exact_.dvalue.tensor(),
                       dpositional_, dw_uk_,   true};
  }

  StepTimes run() {
    StepTimes times;
    const std::clock_t begin = std::clock();
    const auto time = [&](std::size_t part, auto&& body) { times.part[part] = seconds_of(body); };
    time(0, [&] { operator_condense(spec_, condense_in_, condense_out_, place_); });
    time(1, [&] { operator_attend(spec_, attend_in_, {out_, lse_.data()}, place_); });
    time(2, [&] {
      operator_attend_backward(spec_, attend_in_, out_, lse_.data(), out_grad_, attend_grads_,
                               place_);
    });
    time(3, [&] {
      operator_condense_backward(spec_, condense_in_, condense_out_, condense_out_grads_,
                                 condense_grads_, place_);
    });
    times.processor = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    return times;
  }

 private:
  struct Side {
    Owned k_nope, value, dk_nope, dk_rope, dvalue;
  };

  template <typename Body>
  static double seconds_of(Body&& body) {
    const Stopwatch watch;
    body();
    return watch.seconds();
  }

  Owned heads(std::int64_t d0, std::int64_t d1, std::int64_t d2) const {
    return Owned(spec_.layer.dtype, d0, d1, d2);
  }

  Side side(std::int64_t rows, const Workload& workload) const {
    const std::int64_t columns = mla_ ? shape_.heads : shape_.kv_heads;
    const std::int64_t own = mla_ ? shape_.heads : 0;
    Side made{heads(rows, own, shape_.d_nope), heads(rows, own, shape_.d_value),
              heads(rows, own, shape_.d_nope), heads(rows, shape_.kv_heads, shape_.d_rope),
              heads(rows, columns, shape_.d_value)};
    made.k_nope.repeat(workload.queries(0, n_).rope);
    made.value.repeat(workload.queries(0, n_).rope);
    return made;
  }

  OperatorSpec spec_;
  const AttentionShape& shape_;
  bool mla_;
  std::int64_t n_, m_;
  Owned rep_semantic_, rep_positional_, out_, out_grad_;
  Owned dq_nope_, dq_rope_, dsemantic_, dpositional_, dw_uk_;
  Side exact_, groups_;
  std::vector<float> bias_, bias_grad_, scores_, lse_;
  OperatorPlace place_;
  CondenseInputs condense_in_;
  CondenseOutputs condense_out_;
  AttendInputs attend_in_;
  AttendInputGrads attend_grads_;
  CondenseOutputGrads condense_out_grads_;
  CondenseInputGrads condense_grads_;
};

struct BackwardRow {
  std::int64_t length;
  MethodKind method;
  StepTimes times;
  double operations;     ///< of the products of visible pairs, forward and backward
  std::int64_t scratch;  ///< bytes
};

/// Two products forward, five backward: three contract or make d_n + d_r wide rows, and two d_v.
double step_operations(const LayerSpec& spec, std::int64_t length) {
  const auto pairs = static_cast<double>(Layout(spec.settings).pairs(length));
  const AttentionShape& shape = spec.shape;
  const auto widths = static_cast<double>(4 * shape.d_score() + 3 * shape.d_value);
  return 2 * widths * static_cast<double>(shape.heads) * pairs;
}

BackwardRow step_measure(const CpuBench& job, MethodKind kind, const Workload& workload) {
  Context context(job.threads);
  const LayerSpec layer = job.spec_of(kind);
  TrainingStep step(context, layer, workload);
  BackwardRow row{workload.length(), kind, step.run(), step_operations(layer, workload.length()),
                  static_cast<std::int64_t>(context.memory().scratch)};
  for (int i = 1, times = repetitions(row.times.all()); i < times; ++i) {
    interrupt_check();
    const StepTimes again = step.run();
    for (std::size_t part = 0; part < again.part.size(); ++part) {
      row.times.part[part] = std::min(row.times.part[part], again.part[part]);
    }
    row.times.processor = std::min(row.times.processor, again.processor);
  }
  return row;
}

void steps_print(const CpuBench& job, const std::vector<BackwardRow>& rows) {
  Table table({"length", "method", "condense", "attend", "attend backward", "condense backward",
               "forward", "together", "GFLOP/s", "processor", "scratch"});
  for (const BackwardRow& row : rows) {
    std::vector<std::string> cells{length_text(row.length), method_text(row.method)};
    for (const double seconds : row.times.part) cells.push_back(seconds_text(seconds));
    cells.push_back(seconds_text(row.times.forward()));
    cells.push_back(seconds_text(row.times.all()));
    cells.push_back(number_text(row.operations / row.times.all() / 1e9));
    cells.push_back(seconds_text(row.times.processor));
    cells.push_back(bytes_text(static_cast<double>(row.scratch)));
    table.add(cells);
  }
  print(
      fmt::format("{}\nOne training step of one layer\n\n{}\n"
                  "processor: time of all threads, which other programs disturb less.\n",
                  bench_head(job), table.text()));
}

void steps_print_json(const CpuBench& job, const std::vector<BackwardRow>& rows) {
  Json list = Json::array();
  for (const BackwardRow& row : rows) {
    list.push_back({{"length", row.length},
                    {"method", method_text(row.method)},
                    {"condense_ms", 1e3 * row.times.part[0]},
                    {"attend_ms", 1e3 * row.times.part[1]},
                    {"attend_backward_ms", 1e3 * row.times.part[2]},
                    {"condense_backward_ms", 1e3 * row.times.part[3]},
                    {"ms", 1e3 * row.times.all()},
                    {"gflops", row.operations / row.times.all() / 1e9},
                    {"processor_ms", 1e3 * row.times.processor},
                    {"scratch_bytes", row.scratch}});
  }
  print(bench_json(job, std::move(list)).dump() + "\n");
}

}  // namespace

void backward_bench(const CpuBench& job) {
  // Inputs, outputs and their gradients, and the operators' scratch memory.
  const std::int64_t longest = std::ranges::max(job.lengths);
  const AttentionShape& shape = job.spec.shape;
  constexpr double kScratch = 0.5;  // of the tensors, about
  const auto per_head = static_cast<double>(shape.heads * (4 * shape.d_nope + 4 * shape.d_value));
  memory_require((1 + kScratch) * (2 * Workload::bytes_planned(shape, job.spec.dtype, longest) +
                                   per_head * static_cast<double>(longest) *
                                       static_cast<double>(dtype_bytes(job.spec.dtype))),
                 fmt::format("length {}", length_text(longest)));
  std::vector<BackwardRow> rows;
  for (const std::int64_t length : job.lengths) {
    heap_trim();
    Context context(job.threads);
    const Workload workload = Workload::random(context, shape, job.spec.dtype, length);
    for (const MethodKind kind : job.methods) {
      interrupt_check();
      rows.push_back(step_measure(job, kind, workload));
    }
  }
  job.json ? steps_print_json(job, rows) : steps_print(job, rows);
}

}  // namespace lca::cli
