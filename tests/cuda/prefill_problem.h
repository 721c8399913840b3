#pragma once
/// A random prefill with its answer in double precision, computed from the very bf16 keys, values
/// and representatives that the kernels read. Whatever no kernel may read or write is NaN.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "cuda/prefill_case.h"

namespace lca::test {

class PrefillProblem {
 public:
  explicit PrefillProblem(const PrefillCase& c) : case_(c), random_(c.seed * 7919 + 17) {
    runs_place();
    const bool mla = c.form == Form::mla;
    const int key_heads = mla ? c.heads : c.kv_heads;
    const int nope = mla ? c.d_nope : 0;
    if (c.fused && mla) {
      std::tie(q_nope_, q_rope_) = tensors(query_rows_, c.heads, nope, c.d_rope);
      std::tie(exact_.nope, exact_.value) = tensors(exact_rows_, key_heads, nope, c.d_value);
      std::tie(groups_.nope, groups_.value) = tensors(group_rows_, key_heads, nope, c.d_value);
    } else {
      q_nope_ = tensors(query_rows_, c.heads, nope, 0).first;
      q_rope_ = tensors(query_rows_, c.heads, c.d_rope, 0).first;
      exact_.nope = tensors(exact_rows_, key_heads, nope, 0).first;
      exact_.value = tensors(exact_rows_, key_heads, c.d_value, 0).first;
      groups_.nope = tensors(group_rows_, key_heads, nope, 0).first;
      groups_.value = tensors(group_rows_, key_heads, c.d_value, 0).first;
    }
    exact_.rope = tensors(exact_rows_, mla ? 1 : key_heads, c.d_rope, 0).first;
    groups_.rope = tensors(group_rows_, mla ? 1 : key_heads, c.d_rope, 0).first;
    if (mla) exact_.rope.head_stride = groups_.rope.head_stride = 0;

    bias_ = nan_float(group_rows_ * c.kv_heads);
    for (std::size_t i = 0; i < placed_.size(); ++i) {
      const cuda::PrefillRun& run = placed_[i];
      const std::int64_t end = run.query_first + run.query_count;
      const std::int64_t m = c.layout.groups(end);
      fill(q_nope_, run.query_row, run.query_count, c.heads, c.sharpness);
      fill(q_rope_, run.query_row, run.query_count, c.heads, c.sharpness);
      for (const View* view : {&exact_.nope, &exact_.value}) {
        fill(*view, run.exact_row, end - run.exact_gone, key_heads, 1);
      }
      for (const View* view : {&groups_.nope, &groups_.value}) {
        fill(*view, run.group_row, m, key_heads, 1);
      }
      fill(exact_.rope, run.exact_row, end - run.exact_gone, mla ? 1 : key_heads, 1);
      fill(groups_.rope, run.group_row, m, mla ? 1 : key_heads, 1);
      for (std::int64_t j = 0; j < m * c.kv_heads; ++j) {
        bias_[static_cast<std::size_t>(run.group_row * c.kv_heads + j)] =
            static_cast<float>(1.5 * random_.normal() + 1);
      }
    }
    for (const View* view : {&q_nope_, &q_rope_, &exact_.nope, &exact_.rope, &exact_.value,
                             &groups_.nope, &groups_.rope, &groups_.value}) {
      if (view->width > 0 && view->tensor->device.size() == 0) {
        view->tensor->device = DeviceArray<bf16>(view->tensor->host);
      }
    }
    bias_device_ = DeviceArray<float>(bias_);
    answer();
  }

  /// Runs the kernel and compares; one line for what is wrong, empty where nothing is.
  std::string wrong(cuda::Kernels kernels, bool captured = false) {
    const Outputs outputs = run(kernels, captured, !case_.rotation.frequencies.empty());
    return compare(outputs.out, outputs.lse);
  }

  /// Rows whose entry position is their token position, with and without a rotation, bit for bit;
  /// what is wrong. `count` gets how many rows there are.
  std::string unrotated_wrong(cuda::Kernels kernels, std::int64_t& count) {
    const Outputs entry = run(kernels, false, true);
    const Outputs token = run(kernels, false, false);
    count = 0;
    for (const cuda::PrefillRun& placed : placed_) {
      for (std::int64_t q = 0; q < placed.query_count; ++q) {
        if (case_.layout.position_shift(placed.query_first + q + 1) != 0) continue;
        ++count;
        const std::int64_t row = (placed.query_row + q) * case_.heads;
        const bool same =
            std::memcmp(entry.out.data() + row * case_.d_value,
                        token.out.data() + row * case_.d_value,
                        static_cast<std::size_t>(case_.heads * case_.d_value) * sizeof(bf16)) == 0;
        if (!same) return "query at " + std::to_string(placed.query_first + q) + " differs";
      }
    }
    return {};
  }

 private:
  struct Outputs {
    std::vector<bf16> out;
    std::vector<float> lse;
  };

  Outputs run(cuda::Kernels kernels, bool captured, bool rotated) {
    const PrefillCase& c = case_;
    const std::int64_t outs = query_rows_ * c.heads;
    DeviceArray<bf16> out(nan_bf16(outs * c.d_value));
    DeviceArray<float> lse(nan_float(outs));
    const DeviceArray<std::uint64_t> steps(rotation_steps(c.rotation));
    cuda::Prefill problem;
    problem.heads = c.heads;
    problem.kv_heads = c.kv_heads;
    problem.form = c.form;
    problem.layout = c.layout;
    if (rotated) {
      problem.rotation = {steps.data(), static_cast<int>(steps.size()), c.rotation.layout};
    }
    problem.scale = scale();
    problem.q_nope = q_nope_.rows();
    problem.q_rope = q_rope_.rows();
    problem.query_rows = query_rows_;
    problem.exact = {exact_.nope.rows(), exact_.rope.rows(), exact_.value.rows(), exact_rows_};
    problem.groups = {groups_.nope.rows(), groups_.rope.rows(), groups_.value.rows(), group_rows_};
    problem.bias = c.bias == Bias::each ? bias_device_.data() : nullptr;
    problem.bias_all = c.bias == Bias::constant ? kConstantBias : 0;
    problem.out = out.data();
    problem.lse = c.lse ? lse.data() : nullptr;

    cuda::Buffer workspace(cuda::prefill_workspace_bytes(placed_.size()));
    const cuda::Stream stream(gpu());
    {
      std::vector<cuda::PrefillRun> runs = placed_;  // gone before the kernel is
      if (captured) {
        cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
      }
      cuda::prefill(problem, runs, workspace.as<void>(), kernels, stream.queue());
      runs.assign(runs.size(), {});
    }
    if (captured) {
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t replay = nullptr;
      cuda::check(cudaStreamEndCapture(stream, &graph), "capture");
      cuda::check(cudaGraphInstantiate(&replay, graph, 0), "a graph");
      for (int i = 0; i < 2; ++i) {  // the second finds what the first left behind
        cuda::check(cudaGraphLaunch(replay, stream), "a graph");
      }
      stream.wait();
      cudaGraphExecDestroy(replay);
      cudaGraphDestroy(graph);
    }
    stream.wait();
    return {out.download(), lse.download()};
  }

  static constexpr float kConstantBias = 1.75f;

  struct KeyViews {
    View nope, rope, value;
  };
  struct Answer {
    std::size_t run;
    std::int64_t position, head;
    std::vector<double> out;
    double lse;
  };

  float scale() const {
    const int width = (case_.form == Form::mla ? case_.d_nope : 0) + case_.d_rope;
    return static_cast<float>(1 / std::sqrt(static_cast<double>(width)));
  }

  /// One after another, with spare rows around.
  void runs_place() {
    for (const RunCase& run : case_.runs) {
      cuda::PrefillRun placed;
      const std::int64_t end = run.first + run.count;
      query_rows_ += case_.spare;
      exact_rows_ += 2 * case_.spare;
      group_rows_ += case_.spare;
      placed.query_row = query_rows_;
      placed.query_first = run.first;
      placed.query_count = run.count;
      placed.exact_row = exact_rows_;
      placed.exact_gone = run.first > 0 ? case_.layout.dropped(run.first + 1) : 0;
      placed.group_row = group_rows_;
      query_rows_ += run.count;
      exact_rows_ += end - placed.exact_gone;
      group_rows_ += case_.layout.groups(end);
      placed_.push_back(placed);
    }
    query_rows_ += case_.spare;
    exact_rows_ += case_.spare;
    group_rows_ += case_.spare;
  }

  /// Two views of one new tensor of NaN.
  std::pair<View, View> tensors(std::int64_t rows, std::int64_t heads, int first, int second) {
    auto tensor = std::make_shared<Tensor>();
    const std::int64_t width = first + second;
    tensor->host = nan_bf16(case_.shift + rows * heads * width);
    View a{tensor, case_.shift, heads * width, width, first};
    View b{tensor, case_.shift + first, heads * width, width, second};
    return {a, b};
  }

  void fill(const View& view, std::int64_t row, std::int64_t rows, std::int64_t heads,
            double size) {
    for (std::int64_t r = row; r < row + rows; ++r) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (int i = 0; i < view.width; ++i) {
          view.tensor->host[static_cast<std::size_t>(view.index(r, h) + i)] =
              bf16_of(size * random_.normal());
        }
      }
    }
  }

  static void append(std::vector<float>& to, const View& view, std::int64_t row,
                     std::int64_t head) {
    for (int i = 0; i < view.width; ++i) {
      const std::int64_t at = view.index(row, head) + i;
      to.push_back(__bfloat162float(view.tensor->host[static_cast<std::size_t>(at)]));
    }
  }

  void answer() {
    for (std::size_t r = 0; r < placed_.size(); ++r) {
      for (std::int64_t h = 0; h < case_.heads; ++h) answer_head(r, h);
    }
  }

  void answer_head(std::size_t r, std::int64_t head) {
    const PrefillCase& c = case_;
    const cuda::PrefillRun& run = placed_[r];
    const std::int64_t kv = c.form == Form::mla ? head : head / (c.heads / c.kv_heads);
    const std::int64_t end = run.query_first + run.query_count;
    const std::int64_t held = end - run.exact_gone;
    const std::int64_t m = c.layout.groups(end);
    std::vector<float> keys, values;  // tokens that are held, then representatives
    const auto gather = [&](const KeyViews& from, std::int64_t row, std::int64_t rows) {
      for (std::int64_t i = row; i < row + rows; ++i) {
        append(keys, from.nope, i, kv);
        append(keys, from.rope, i, kv);
        append(values, from.value, i, kv);
      }
    };
    gather(exact_, run.exact_row, held);
    gather(groups_, run.group_row, m);

    std::vector<double> weights;
    std::vector<std::int64_t> seen;
    for (std::int64_t q = 0; q < run.query_count; ++q) {
      if (!checked(q, run.query_count)) continue;
      const std::int64_t t = run.query_first + q;
      const Visible visible = c.layout.visible(t);
      seen.clear();
      for (std::int64_t j = 0; j < visible.groups; ++j) seen.push_back(held + j);
      for (std::int64_t p = visible.sink.begin; p < visible.sink.end; ++p) seen.push_back(p);
      for (std::int64_t p = visible.window.begin; p < visible.window.end; ++p) {
        seen.push_back(p < c.layout.sink ? p : p - run.exact_gone);
      }
      std::vector<float> query;
      append(query, q_nope_, run.query_row + q, head);
      append(query, q_rope_, run.query_row + q, head);
      const std::vector<float> far = far_form(query, t);
      const std::size_t far_count = static_cast<std::size_t>(visible.groups + visible.sink.size());

      weights.clear();
      double most = -std::numeric_limits<double>::infinity();
      for (const std::int64_t i : seen) {
        const float* key = &keys[static_cast<std::size_t>(i) * query.size()];
        const std::vector<float>& form = weights.size() < far_count ? far : query;
        double dot = 0;
        for (std::size_t e = 0; e < query.size(); ++e) dot += double{form[e]} * double{key[e]};
        dot *= static_cast<double>(scale());
        if (i >= held && c.bias == Bias::constant) dot += static_cast<double>(kConstantBias);
        if (i >= held && c.bias == Bias::each) {
          const std::int64_t column = c.form == Form::mla ? 0 : kv;
          dot += double_of(
              bias_[static_cast<std::size_t>((run.group_row + i - held) * c.kv_heads + column)]);
        }
        weights.push_back(dot);
        most = std::max(most, dot);
      }
      Answer answer{r, t, head, std::vector<double>(static_cast<std::size_t>(c.d_value), 0.0), 0};
      double sum = 0;
      for (std::size_t k = 0; k < seen.size(); ++k) {
        const double weight = std::exp(weights[k] - most);
        sum += weight;
        const float* value = &values[static_cast<std::size_t>(seen[k] * c.d_value)];
        for (std::size_t e = 0; e < answer.out.size(); ++e) {
          answer.out[e] += weight * double{value[e]};
        }
      }
      for (double& x : answer.out) x /= sum;
      answer.lse = most + std::log(sum);
      answers_.push_back(std::move(answer));
    }
  }

  /// The query as representatives and sink see it, in bf16 as kernels keep it.
  std::vector<float> far_form(const std::vector<float>& query, std::int64_t t) const {
    const std::int64_t difference = case_.layout.entry_position(t) - t;
    if (difference == 0 || case_.rotation.frequencies.empty()) return query;
    std::vector<double> row(query.begin(), query.end());
    rotate_row(case_.rotation, difference, row.data() + q_nope_.width);
    std::vector<float> far;
    for (const double value : row) far.push_back(static_cast<float>(double_of(bf16_of(value))));
    return far;
  }

  /// With a sample: the first and the last queries, and some between that seeds move about.
  bool checked(std::int64_t q, std::int64_t count) const {
    if (case_.sample == 0 || count <= case_.sample) return true;
    const std::int64_t edge = case_.sample / 4;
    if (q < edge || q >= count - edge) return true;
    const std::int64_t step = 2 * count / case_.sample;
    return step <= 1 || (q + static_cast<std::int64_t>(case_.seed)) % step == 0;
  }

  std::string compare(const std::vector<bf16>& out, const std::vector<float>& lse) const {
    const PrefillCase& c = case_;
    std::ostringstream text;
    // Every row of a run is finite, every other is as it was.
    std::vector<char> owned(static_cast<std::size_t>(query_rows_), 0);
    for (const cuda::PrefillRun& run : placed_) {
      for (std::int64_t q = 0; q < run.query_count; ++q) {
        owned[static_cast<std::size_t>(run.query_row + q)] = 1;
      }
    }
    for (std::int64_t i = 0; i < query_rows_ * c.heads; ++i) {
      const bool mine = owned[static_cast<std::size_t>(i / c.heads)] != 0;
      for (std::int64_t e = 0; e < c.d_value; ++e) {
        const double got = double_of(out[static_cast<std::size_t>(i * c.d_value + e)]);
        if (std::isfinite(got) == mine && std::isnan(got) != mine) continue;
        text << "row " << i / c.heads << " head " << i % c.heads << " column " << e << " is " << got
             << (mine ? ": not finite" : ": written, but belongs to no run");
        return text.str();
      }
      const double got = double_of(lse[static_cast<std::size_t>(i)]);
      const bool expected = mine && c.lse;
      if (std::isfinite(got) == expected && std::isnan(got) != expected) continue;
      text << "lse of row " << i / c.heads << " head " << i % c.heads << " is " << got;
      return text.str();
    }

    RelativeError all;
    int rows_wrong = 0;
    for (const Answer& answer : answers_) {
      const cuda::PrefillRun& run = placed_[answer.run];
      const std::int64_t row =
          (run.query_row + answer.position - run.query_first) * c.heads + answer.head;
      RelativeError error;
      double worst = -1;
      std::size_t column = 0;
      for (std::size_t e = 0; e < answer.out.size(); ++e) {
        const double got = double_of(out[static_cast<std::size_t>(row * c.d_value) + e]);
        error.add(got, answer.out[e]);
        all.add(got, answer.out[e]);
        if (std::abs(got - answer.out[e]) > worst) {
          worst = std::abs(got - answer.out[e]);
          column = e;
        }
      }
      const double lse_got = c.lse ? double_of(lse[static_cast<std::size_t>(row)]) : answer.lse;
      const bool lse_wrong = !(std::abs(lse_got - answer.lse) <= 2e-3);
      if (error.value() <= 2e-2 && !lse_wrong) continue;
      if (++rows_wrong > 3) continue;
      text << "run " << answer.run << " query at " << answer.position << " (its row "
           << answer.position - run.query_first << ") head " << answer.head << " column " << column
           << ": got " << double_of(out[static_cast<std::size_t>(row * c.d_value) + column])
           << ", expected " << answer.out[column] << "; the row's relative error " << error.value()
           << "; lse got " << lse_got << ", expected " << answer.lse
           << (lse_wrong ? " (wrong)" : " (right)") << "\n";
    }
    if (rows_wrong > 0) {
      text << rows_wrong << " of " << answers_.size() << " rows are wrong";
    } else if (!(all.value() <= 5e-3)) {
      text << "relative error " << all.value();
    }
    return text.str();
  }

  PrefillCase case_;
  Random random_;
  std::int64_t query_rows_ = 0, exact_rows_ = 0, group_rows_ = 0;
  std::vector<cuda::PrefillRun> placed_;
  View q_nope_, q_rope_;
  KeyViews exact_, groups_;
  std::vector<float> bias_;
  DeviceArray<float> bias_device_;
  std::vector<Answer> answers_;
};

}  // namespace lca::test
