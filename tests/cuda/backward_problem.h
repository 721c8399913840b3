#pragma once
/// A random backward pass with its answer in double precision, computed from the very bf16 tensors
/// that the kernels read. Whatever no kernel may read or write is NaN, scratch included.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "attention/cuda/backward/backward.h"
#include "cuda/prefill_case.h"

namespace lca::test {

/// Gradients of one tensor: what a kernel wrote, and what is expected of the rows it owns.
struct Gradient {
  std::string name;
  std::int64_t rows = 0, heads = 0, width = 0;
  std::vector<double> expected;  ///< [rows][heads][width]; NaN: not to be written

  void resize(std::string what, std::int64_t r, std::int64_t h, std::int64_t w) {
    name = std::move(what);
    rows = r;
    heads = h;
    width = w;
    expected.assign(static_cast<std::size_t>(r * h * w), std::nan(""));
  }
  double* at(std::int64_t row, std::int64_t head) {
    return expected.data() + (row * heads + head) * width;
  }
  void clear(std::int64_t row, std::int64_t count) {
    std::fill(at(row, 0), at(row, 0) + count * heads * width, 0.0);
  }
};

class BackwardProblem {
 public:
  /// Of the case, runs begin at 0; `fused` and `shift` apply to gradients too. `blocks` as in
  /// PrefillBackward.
  explicit BackwardProblem(const PrefillCase& c, int blocks = 0)
      : case_(c), blocks_(blocks), random_(c.seed * 6007 + 5) {
    const bool mla = c.form == Form::mla;
    nope_ = mla ? c.d_nope : 0;
    key_heads_ = mla ? c.heads : c.kv_heads;
    rope_heads_ = mla ? 1 : c.kv_heads;
    for (const RunCase& run : c.runs) {
      cuda::PrefillRun placed;
      query_rows_ += c.spare;
      exact_rows_ += 2 * c.spare;
      group_rows_ += c.spare;
      placed.query_row = query_rows_;
      placed.query_count = run.count;
      placed.exact_row = exact_rows_;
      placed.group_row = group_rows_;
      query_rows_ += run.count;
      exact_rows_ += run.count;
      group_rows_ += c.layout.groups(run.count);
      runs_.push_back(placed);
    }
    query_rows_ += c.spare;
    exact_rows_ += c.spare;
    group_rows_ += c.spare;
    q_nope_ = tensor(query_rows_, c.heads, nope_);
    q_rope_ = tensor(query_rows_, c.heads, c.d_rope);
    dout_ = tensor(query_rows_, c.heads, c.d_value);
    out_ = tensor(query_rows_, c.heads, c.d_value);
    lse_ = nan_float(query_rows_ * c.heads);
    keys_[0] = {tensor(exact_rows_, key_heads_, nope_), tensor(exact_rows_, rope_heads_, c.d_rope),
                tensor(exact_rows_, key_heads_, c.d_value)};
    keys_[1] = {tensor(group_rows_, key_heads_, nope_), tensor(group_rows_, rope_heads_, c.d_rope),
                tensor(group_rows_, key_heads_, c.d_value)};
    bias_ = nan_float(group_rows_ * c.kv_heads);
    for (const cuda::PrefillRun& run : runs_) {
      fill(q_nope_, run.query_row, run.query_count, c.sharpness);
      fill(q_rope_, run.query_row, run.query_count, c.sharpness);
      fill(dout_, run.query_row, run.query_count, 1);
      for (Flat* flat : {&keys_[0].nope, &keys_[0].rope, &keys_[0].value}) {
        fill(*flat, run.exact_row, run.query_count, 1);
      }
      const std::int64_t m = c.layout.groups(run.query_count);
      for (Flat* flat : {&keys_[1].nope, &keys_[1].rope, &keys_[1].value}) {
        fill(*flat, run.group_row, m, 1);
      }
      for (std::int64_t j = 0; j < m * c.kv_heads; ++j) {
        bias_[static_cast<std::size_t>(run.group_row * c.kv_heads + j)] =
            static_cast<float>(1.5 * random_.normal() + 1);
      }
    }
    answer();
  }

  /// Runs the kernels and compares; one line for each tensor that is wrong.
  std::string wrong(cuda::Kernels kernels, bool captured = false) {
    const std::vector<std::vector<double>> got = run(kernels, captured);
    std::string text;
    for (std::size_t i = 0; i < 9; ++i) text += compare(gradients_[i], got[i]);
    return text;
  }

  /// Whether two runs give the same bits.
  bool repeats(cuda::Kernels kernels) {
    const auto a = run(kernels, false), b = run(kernels, false);
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(double)) != 0) return false;
    }
    return true;
  }

 private:
  /// [rows][heads][width] on the host.
  struct Flat {
    std::vector<bf16> host;
    std::int64_t heads = 0, width = 0;
    double operator()(std::int64_t row, std::int64_t head, std::int64_t i) const {
      return double_of(host[static_cast<std::size_t>((row * heads + head) * width + i)]);
    }
  };
  struct Keys {
    Flat nope, rope, value;
  };
  enum Which { kQNope, kQRope, kNope, kRope, kValue, kGroupNope, kGroupRope, kGroupValue, kBias };

  Flat tensor(std::int64_t rows, std::int64_t heads, std::int64_t width) {
    return {nan_bf16(rows * heads * width), heads, width};
  }
  void fill(Flat& flat, std::int64_t row, std::int64_t rows, double size) {
    const std::int64_t each = flat.heads * flat.width;
    for (std::int64_t i = row * each; i < (row + rows) * each; ++i) {
      flat.host[static_cast<std::size_t>(i)] = bf16_of(size * random_.normal());
    }
  }
  double scale() const {
    return static_cast<double>(
        static_cast<float>(1 / std::sqrt(static_cast<double>(nope_ + case_.d_rope))));
  }

  // --- the answer --------------------------------------------------------------------------------

  void answer() {
    const PrefillCase& c = case_;
    gradients_[kQNope].resize("q_nope", query_rows_, c.heads, nope_);
    gradients_[kQRope].resize("q_rope", query_rows_, c.heads, c.d_rope);
    gradients_[kNope].resize("k_nope", exact_rows_, key_heads_, nope_);
    gradients_[kRope].resize("k_rope", exact_rows_, rope_heads_, c.d_rope);
    gradients_[kValue].resize("value", exact_rows_, key_heads_, c.d_value);
    gradients_[kGroupNope].resize("rep k_nope", group_rows_, key_heads_, nope_);
    gradients_[kGroupRope].resize("rep k_rope", group_rows_, rope_heads_, c.d_rope);
    gradients_[kGroupValue].resize("rep value", group_rows_, key_heads_, c.d_value);
    gradients_[kBias].resize("bias", group_rows_, c.kv_heads, 1);
    for (const cuda::PrefillRun& run : runs_) {
      for (const Which i : {kQNope, kQRope}) gradients_[i].clear(run.query_row, run.query_count);
      for (const Which i : {kNope, kRope, kValue}) {
        gradients_[i].clear(run.exact_row, run.query_count);
      }
      for (const Which i : {kGroupNope, kGroupRope, kGroupValue, kBias}) {
        gradients_[i].clear(run.group_row, c.layout.groups(run.query_count));
      }
    }
    // One thread for what one KV head receives; MLA's heads share their RoPE keys.
    std::vector<Part> parts(static_cast<std::size_t>(c.heads));
    std::vector<std::thread> threads;
    for (std::int64_t h = 0; h < c.heads; ++h) {
      threads.emplace_back([&, h] { answer_head(h, parts[static_cast<std::size_t>(h)]); });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::int64_t h = 0; h < c.heads; ++h) {
      const Part& part = parts[static_cast<std::size_t>(h)];
      for (std::size_t k = 0; k < 2; ++k) {
        const std::int64_t rows = k == 0 ? exact_rows_ : group_rows_;
        for (std::int64_t row = 0; row < rows; ++row) {
          add(gradients_[k == 0 ? kNope : kGroupNope], row, key_head(h), part.keys[k], row, 0);
          add(gradients_[k == 0 ? kRope : kGroupRope], row, c.form == Form::mla ? 0 : key_head(h),
              part.keys[k], row, nope_);
          add(gradients_[k == 0 ? kValue : kGroupValue], row, key_head(h), part.values[k], row, 0);
        }
      }
      for (std::int64_t row = 0; row < group_rows_; ++row) {
        *gradients_[kBias].at(row, c.form == Form::mla ? 0 : key_head(h)) +=
            part.bias[static_cast<std::size_t>(row)];
      }
    }
  }

  struct Part {  // of one head, [exact, groups]
    std::vector<std::vector<double>> keys[2], values[2];
    std::vector<double> bias;
  };

  static void add(Gradient& to, std::int64_t row, std::int64_t head,
                  const std::vector<std::vector<double>>& from, std::int64_t from_row,
                  std::int64_t column) {
    const std::vector<double>& values = from[static_cast<std::size_t>(from_row)];
    for (std::int64_t i = 0; i < to.width; ++i) {
      to.at(row, head)[i] += values[static_cast<std::size_t>(column + i)];
    }
  }

  std::int64_t key_head(std::int64_t head) const {
    return case_.form == Form::mla ? head : head / (case_.heads / case_.kv_heads);
  }

  void answer_head(std::int64_t head, Part& part) {
    const PrefillCase& c = case_;
    const std::int64_t kv = key_head(head);
    const std::int64_t rope_kv = c.form == Form::mla ? 0 : kv;
    const auto width = static_cast<std::size_t>(nope_ + c.d_rope);
    const auto value_width = static_cast<std::size_t>(c.d_value);
    std::vector<std::vector<double>> keys[2], values[2];
    for (std::size_t k = 0; k < 2; ++k) {
      const std::int64_t rows = k == 0 ? exact_rows_ : group_rows_;
      for (std::int64_t row = 0; row < rows; ++row) {
        std::vector<double> key, value;
        for (std::int64_t i = 0; i < nope_; ++i) key.push_back(keys_[k].nope(row, kv, i));
        for (std::int64_t i = 0; i < c.d_rope; ++i) key.push_back(keys_[k].rope(row, rope_kv, i));
        for (std::int64_t i = 0; i < c.d_value; ++i) value.push_back(keys_[k].value(row, kv, i));
        keys[k].push_back(std::move(key));
        values[k].push_back(std::move(value));
      }
      part.keys[k].assign(static_cast<std::size_t>(rows), std::vector<double>(width, 0.0));
      part.values[k].assign(static_cast<std::size_t>(rows), std::vector<double>(value_width, 0.0));
    }
    part.bias.assign(static_cast<std::size_t>(group_rows_), 0.0);

    struct Seen {
      std::size_t kind, row;
      bool far;
      double p;
    };
    std::vector<Seen> seen;
    for (const cuda::PrefillRun& run : runs_) {
      for (std::int64_t t = 0; t < run.query_count; ++t) {
        const std::int64_t row = run.query_row + t;
        const Visible visible = c.layout.visible(t);
        seen.clear();
        for (std::int64_t j = 0; j < visible.groups; ++j) {
          seen.push_back({1, static_cast<std::size_t>(run.group_row + j), true, 0});
        }
        for (std::int64_t i = 0; i < visible.sink.end; ++i) {
          seen.push_back({0, static_cast<std::size_t>(run.exact_row + i), true, 0});
        }
        for (std::int64_t i = visible.window.begin; i < visible.window.end; ++i) {
          seen.push_back({0, static_cast<std::size_t>(run.exact_row + i), false, 0});
        }
        std::vector<double> near, dout;
        for (std::int64_t i = 0; i < nope_; ++i) near.push_back(q_nope_(row, head, i));
        for (std::int64_t i = 0; i < c.d_rope; ++i) near.push_back(q_rope_(row, head, i));
        for (std::int64_t i = 0; i < c.d_value; ++i) dout.push_back(dout_(row, head, i));
        const std::int64_t difference =
            c.rotation.frequencies.empty() ? 0 : c.layout.entry_position(t) - t;
        std::vector<double> far = near;
        if (difference != 0) {
          rotate_row(c.rotation, difference, far.data() + nope_);
          for (double& x : far) x = double_of(bf16_of(x));
        }
        double most = -std::numeric_limits<double>::infinity();
        for (Seen& s : seen) {
          const std::vector<double>& q = s.far ? far : near;
          double dot = 0;
          for (std::size_t i = 0; i < width; ++i) dot += q[i] * keys[s.kind][s.row][i];
          s.p = dot * scale();
          if (s.kind == 1 && c.bias == Bias::constant) s.p += static_cast<double>(kConstantBias);
          if (s.kind == 1 && c.bias == Bias::each) {
            s.p += double_of(bias_[s.row * static_cast<std::size_t>(c.kv_heads) +
                                   static_cast<std::size_t>(c.form == Form::mla ? 0 : kv)]);
          }
          most = std::max(most, s.p);
        }
        double sum = 0;
        for (Seen& s : seen) sum += s.p = std::exp(s.p - most);
        std::vector<double> out(value_width, 0.0);
        for (Seen& s : seen) {
          s.p /= sum;
          for (std::size_t i = 0; i < value_width; ++i) out[i] += s.p * values[s.kind][s.row][i];
        }
        const auto at = static_cast<std::size_t>(row * c.heads + head);
        lse_[at] = static_cast<float>(most + std::log(sum));
        double delta = 0;
        for (std::size_t i = 0; i < value_width; ++i) {
          out_.host[at * value_width + i] = bf16_of(out[i]);
          delta += out[i] * dout[i];
        }
        std::vector<double> dnear(width, 0.0), dfar(width, 0.0);
        for (const Seen& s : seen) {
          double dp = 0;
          for (std::size_t i = 0; i < value_width; ++i) {
            dp += dout[i] * values[s.kind][s.row][i];
            part.values[s.kind][s.row][i] += s.p * dout[i];
          }
          const double ds = s.p * (dp - delta);
          if (s.kind == 1) part.bias[s.row] += ds;
          const std::vector<double>& q = s.far ? far : near;
          std::vector<double>& dq = s.far ? dfar : dnear;
          for (std::size_t i = 0; i < width; ++i) {
            dq[i] += ds * scale() * keys[s.kind][s.row][i];
            part.keys[s.kind][s.row][i] += ds * scale() * q[i];
          }
        }
        if (difference != 0) rotate_row(c.rotation, -difference, dfar.data() + nope_);
        for (std::int64_t i = 0; i < nope_ + c.d_rope; ++i) {
          const double d = dnear[static_cast<std::size_t>(i)] + dfar[static_cast<std::size_t>(i)];
          if (i < nope_) gradients_[kQNope].at(row, head)[i] = d;
          if (i >= nope_) gradients_[kQRope].at(row, head)[i - nope_] = d;
        }
      }
    }
  }

  // --- the kernels -------------------------------------------------------------------------------

  struct Written {  // views of one device tensor
    DeviceArray<bf16> device;
    std::int64_t offset = 0, row_stride = 0, head_stride = 0;
  };

  std::vector<std::vector<double>> run(cuda::Kernels kernels, bool captured) {
    const PrefillCase& c = case_;
    const auto up = [](const Flat& flat) { return DeviceArray<bf16>(flat.host); };
    const DeviceArray<bf16> q_nope = up(q_nope_), q_rope = up(q_rope_), dout = up(dout_),
                            out = up(out_);
    const DeviceArray<bf16> keys[2][3] = {
        {up(keys_[0].nope), up(keys_[0].rope), up(keys_[0].value)},
        {up(keys_[1].nope), up(keys_[1].rope), up(keys_[1].value)}};
    const DeviceArray<float> bias(bias_), lse(lse_);
    const DeviceArray<std::uint64_t> steps(rotation_steps(c.rotation));
    const auto rows = [](const DeviceArray<bf16>& device, const Flat& flat, bool shared = false) {
      if (flat.width == 0) return cuda::HeadRows{};
      return cuda::HeadRows{device.data(), flat.heads * flat.width, shared ? 0 : flat.width,
                            static_cast<int>(flat.width)};
    };
    cuda::PrefillBackward problem;
    cuda::Prefill& forward = problem.forward;
    forward.heads = c.heads;
    forward.kv_heads = c.kv_heads;
    forward.form = c.form;
    forward.layout = c.layout;
    if (!c.rotation.frequencies.empty()) {
      forward.rotation = {steps.data(), static_cast<int>(steps.size()), c.rotation.layout};
    }
    forward.scale = static_cast<float>(scale());
    forward.q_nope = rows(q_nope, q_nope_);
    forward.q_rope = rows(q_rope, q_rope_);
    forward.query_rows = query_rows_;
    const bool mla = c.form == Form::mla;
    cuda::KeyRows* const to[2] = {&forward.exact, &forward.groups};
    for (std::size_t k = 0; k < 2; ++k) {
      *to[k] = {rows(keys[k][0], keys_[k].nope), rows(keys[k][1], keys_[k].rope, mla),
                rows(keys[k][2], keys_[k].value), k == 0 ? exact_rows_ : group_rows_};
    }
    forward.bias = c.bias == Bias::each ? bias.data() : nullptr;
    forward.bias_all = c.bias == Bias::constant ? kConstantBias : 0;
    forward.out = out.data();
    forward.lse = lse.data();
    problem.dout = rows(dout, dout_);

    // Gradients; with `fused` q's two parts are columns of one tensor, and so are k_nope and value.
    Written written[8];
    const auto alone = [&](Which i) {
      const Gradient& g = gradients_[i];
      written[i] = {DeviceArray<bf16>(nan_bf16(c.shift + g.rows * g.heads * g.width)), c.shift,
                    g.heads * g.width, g.width};
    };
    DeviceArray<bf16> fused[3];
    const auto together = [&](DeviceArray<bf16>& device, Which a, Which b) {
      const Gradient &x = gradients_[a], &y = gradients_[b];
      const std::int64_t width = x.width + y.width;
      device = DeviceArray<bf16>(nan_bf16(c.shift + x.rows * x.heads * width));
      written[a] = {{}, c.shift, x.heads * width, width};
      written[b] = {{}, c.shift + x.width, x.heads * width, width};
    };
    for (int i = kQNope; i < kBias; ++i) alone(static_cast<Which>(i));
    if (c.fused && mla) {
      together(fused[0], kQNope, kQRope);
      together(fused[1], kNope, kValue);
      together(fused[2], kGroupNope, kGroupValue);
    }
    const auto device_of = [&](Which i) -> const DeviceArray<bf16>& {
      if (written[i].device.size() > 0 || !(c.fused && mla)) return written[i].device;
      return fused[i <= kQRope ? 0 : i <= kValue ? 1 : 2];
    };
    const auto grad = [&](Which i) {
      if (gradients_[i].width == 0) return cuda::GradRows{};
      return cuda::GradRows{device_of(i).data() + written[i].offset, written[i].row_stride,
                            written[i].head_stride};
    };
    problem.q_nope = grad(kQNope);
    problem.q_rope = grad(kQRope);
    problem.exact = {grad(kNope), grad(kRope), grad(kValue)};
    problem.groups = {grad(kGroupNope), grad(kGroupRope), grad(kGroupValue)};
    DeviceArray<float> dbias(nan_float(group_rows_ * c.kv_heads));
    problem.dbias = dbias.data();
    problem.blocks = blocks_;

    cuda::Buffer workspace(cuda::backward_workspace_bytes(problem, runs_, kernels));
    cuda::check(cudaMemset(workspace.as<void>(), 0xff, workspace.bytes()), "poisoning");
    cuda::check(cudaDeviceSynchronize(), "poisoning");
    const cuda::Stream stream(gpu());
    if (captured) {
      cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    }
    cuda::backward(problem, runs_, workspace.as<void>(), kernels, stream.queue());
    if (captured) {
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t replay = nullptr;
      cuda::check(cudaStreamEndCapture(stream, &graph), "capture");
      cuda::check(cudaGraphInstantiate(&replay, graph, 0), "a graph");
      for (int i = 0; i < 2; ++i) cuda::check(cudaGraphLaunch(replay, stream), "a graph");
      stream.wait();
      cudaGraphExecDestroy(replay);
      cudaGraphDestroy(graph);
    }
    stream.wait();

    std::vector<std::vector<double>> got;
    for (int n = kQNope; n < kBias; ++n) {
      const auto i = static_cast<Which>(n);
      const Gradient& g = gradients_[i];
      const std::vector<bf16> all = device_of(i).download();
      std::vector<double> values;
      values.reserve(g.expected.size());
      for (std::int64_t row = 0; row < g.rows; ++row) {
        for (std::int64_t head = 0; head < g.heads; ++head) {
          for (std::int64_t e = 0; e < g.width; ++e) {
            values.push_back(double_of(
                all[static_cast<std::size_t>(written[i].offset + row * written[i].row_stride +
                                             head * written[i].head_stride + e)]));
          }
        }
      }
      got.push_back(std::move(values));
    }
    const std::vector<float> bias_got = dbias.download();
    got.emplace_back(bias_got.begin(), bias_got.end());
    return got;
  }

  /// Largest difference over the largest value, and the same of whole tensors.
  std::string compare(const Gradient& g, const std::vector<double>& got) const {
    std::ostringstream text;
    double most = 0, worst = 0;
    std::size_t worst_at = 0;
    RelativeError all;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const bool mine = !std::isnan(g.expected[i]);
      if (std::isfinite(got[i]) != mine) {
        const auto row = static_cast<std::int64_t>(i) / (g.heads * g.width);
        text << g.name << " row " << row << " head "
             << static_cast<std::int64_t>(i) / g.width % g.heads << " column "
             << static_cast<std::int64_t>(i) % g.width << " is " << got[i]
             << (mine ? ": not finite\n" : ": written, but belongs to no document\n");
        return text.str();
      }
      if (!mine) continue;
      all.add(got[i], g.expected[i]);
      most = std::max(most, std::abs(g.expected[i]));
      if (std::abs(got[i] - g.expected[i]) > worst) {
        worst = std::abs(got[i] - g.expected[i]);
        worst_at = i;
      }
    }
    const double error = worst / std::max(most, 1e-2);
    if (error <= 2e-2 && (all.value() <= 1e-2 || most < 1e-2)) return {};
    const auto at = static_cast<std::int64_t>(worst_at);
    text << g.name << ": largest error " << error << ", in all " << all.value() << "; row "
         << at / (g.heads * g.width) << " head " << at / g.width % g.heads << " column "
         << at % g.width << " got " << got[worst_at] << ", expected " << g.expected[worst_at]
         << "\n";
    return text.str();
  }

  static constexpr float kConstantBias = 1.75f;

  PrefillCase case_;
  int blocks_ = 0;
  Random random_;
  std::int64_t nope_ = 0, key_heads_ = 0, rope_heads_ = 0;
  std::int64_t query_rows_ = 0, exact_rows_ = 0, group_rows_ = 0;
  std::vector<cuda::PrefillRun> runs_;
  Flat q_nope_, q_rope_, dout_, out_;
  Keys keys_[2];
  std::vector<float> bias_, lse_;
  Gradient gradients_[9];
};

}  // namespace lca::test
