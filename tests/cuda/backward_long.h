#pragma once
/// A backward pass over long documents. Gradients of Hopper's kernels are compared row by row with
/// those of the portable ones, and some rows with plain loops in double precision: of a key all
/// queries that see it. Logits are large, so that a query gives its probability to a few keys and
/// one tile that is left out or taken twice changes whole rows.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "attention/cuda/backward/backward_plan.h"
#include "attention/cuda/prefill/prefill.h"
#include "attention/rotate.h"
#include "cuda/support.h"

namespace lca::test {

struct LongCase {
  const char* name;
  Form form;
  int heads, kv_heads;
  int width;  ///< of GQA's keys and values; MLA: 128+64/128
  std::int64_t group, window, sink;
  std::vector<std::int64_t> lengths;  ///< of documents
  bool entry = false;                 ///< positions are those of entries
  bool bias = false;
  bool cut = false;  ///< whether columns of representatives must have been cut into slices
};

class LongBackward {
 public:
  explicit LongBackward(const LongCase& c) : case_(c), mla_(c.form == Form::mla) {
    layout_.group = c.group;
    layout_.window = c.window;
    layout_.sink = c.sink;
    for (const std::int64_t length : c.lengths) {
      runs_.push_back({rows_[0], 0, length, rows_[0], 0, rows_[1]});
      rows_[0] += length;
      rows_[1] += layout_.groups(length);
    }
    const int key_heads = mla_ ? c.heads : c.kv_heads;
    nope_ = mla_ ? 128 : 0;
    rope_ = mla_ ? 64 : c.width;
    value_ = mla_ ? 128 : c.width;
    q_[0] = tensor("q_nope", rows_[0], c.heads, nope_, kSharpness);
    q_[1] = tensor("q_rope", rows_[0], c.heads, rope_, kSharpness);
    dout_ = tensor("dout", rows_[0], c.heads, value_, 1);
    for (int k = 0; k < 2; ++k) {
      const std::string rep = k == 0 ? "" : "rep ";
      keys_[k][0] = tensor(rep + "k_nope", rows_[k], key_heads, nope_, 1);
      keys_[k][1] = tensor(rep + "k_rope", rows_[k], mla_ ? 1 : c.kv_heads, rope_, 1);
      keys_[k][2] = tensor(rep + "value", rows_[k], key_heads, value_, 1);
    }
    bias_ = random_float(random_, rows_[1] * c.kv_heads);
    if (c.entry) {
      rotation_ = rotation_plain(rope_, 10000);
      steps_ = DeviceArray<std::uint64_t>(rotation_steps(rotation_));
    }
    forward();
  }

  /// One line for each tensor that is wrong.
  std::string wrong() {
    const Gradients plain = run(cuda::Kernels::portable), fast = run(cuda::Kernels::fast);
    std::string text;
    for (std::size_t i = 0; i < kTensors; ++i) text += compare(i, fast, plain);
    return text + samples_compare(fast);
  }

  /// Slices that columns of representatives are cut into.
  int slices() { return cuda::backward_plan(problem(nullptr), runs_).far.count; }

 private:
  static constexpr double kSharpness = 4;  // standard deviation of logits
  static constexpr std::size_t kTensors = 9, kBias = 8;
  static constexpr int kSamples = 40;  // of queries, tokens and representatives each

  /// [rows][heads][width] on both sides.
  struct Tensor {
    std::string name;
    std::int64_t rows = 0, heads = 0, width = 0;
    std::vector<bf16> host;
    DeviceArray<bf16> device;

    const bf16* at(std::int64_t row, std::int64_t head) const {
      return host.data() + (row * heads + head) * width;
    }
    cuda::HeadRows view(bool shared = false) const {
      if (width == 0) return {};
      return {device.data(), heads * width, shared ? 0 : width, static_cast<int>(width)};
    }
  };

  /// What the kernels wrote: q_nope, q_rope, then three parts of keys and of representatives, then
  /// biases.
  struct Gradients {
    std::vector<std::vector<bf16>> rows;
    std::vector<float> bias;

    double value(std::size_t tensor, std::size_t i) const {
      return tensor == kBias ? double_of(bias[i]) : double_of(rows[tensor][i]);
    }
  };

  Tensor tensor(std::string name, std::int64_t rows, std::int64_t heads, std::int64_t width,
                double size) {
    Tensor made{std::move(name), rows, heads, width, {}, {}};
    // Drawn from a table: there are too many to make each.
    const std::vector<bf16> table = random_bf16(random_, 1 << 16, size);
    made.host.resize(static_cast<std::size_t>(rows * heads * width));
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < made.host.size(); ++i, bits >>= 16) {
      if (i % 4 == 0) bits = random_.bits();
      made.host[i] = table[bits & 0xffff];
    }
    made.device = DeviceArray<bf16>(made.host);
    return made;
  }

  const Tensor& input(std::size_t i) const {
    return i < 2 ? q_[i] : keys_[(i - 2) / 3][(i - 2) % 3];
  }
  double scale() const {
    return double_of(static_cast<float>(1 / std::sqrt(static_cast<double>(nope_ + rope_))));
  }
  std::int64_t kv_of(std::int64_t head) const {
    return mla_ ? head : head / (case_.heads / case_.kv_heads);
  }

  // --- the kernels -------------------------------------------------------------------------------

  /// Without `to` no gradient is wanted.
  cuda::PrefillBackward problem(const std::vector<DeviceArray<bf16>>* to) const {
    cuda::PrefillBackward made;
    cuda::Prefill& forward = made.forward;
    forward.heads = case_.heads;
    forward.kv_heads = case_.kv_heads;
    forward.form = case_.form;
    forward.layout = layout_;
    if (case_.entry) {
      forward.rotation = {steps_.data(), static_cast<int>(steps_.size()), rotation_.layout};
    }
    forward.scale = static_cast<float>(scale());
    forward.q_nope = q_[0].view();
    forward.q_rope = q_[1].view();
    forward.query_rows = rows_[0];
    cuda::KeyRows* const keys[2] = {&forward.exact, &forward.groups};
    for (int k = 0; k < 2; ++k) {
      *keys[k] = {keys_[k][0].view(), keys_[k][1].view(mla_), keys_[k][2].view(), rows_[k]};
    }
    if (case_.bias) forward.bias = device_bias_.data();
    forward.out = device_out_.data();
    forward.lse = device_lse_.data();
    made.dout = dout_.view();
    if (to == nullptr) return made;
    const auto grad = [&](std::size_t i) {
      const Tensor& like = input(i);
      return like.width == 0 ? cuda::GradRows{}
                             : cuda::GradRows{(*to)[i].data(), like.heads * like.width, like.width};
    };
    made.q_nope = grad(0);
    made.q_rope = grad(1);
    made.exact = {grad(2), grad(3), grad(4)};
    made.groups = {grad(5), grad(6), grad(7)};
    return made;
  }

  void forward() {
    device_bias_ = DeviceArray<float>(bias_);
    device_out_ = DeviceArray<bf16>(nan_bf16(rows_[0] * case_.heads * value_));
    device_lse_ = DeviceArray<float>(nan_float(rows_[0] * case_.heads));
    cuda::Buffer workspace(cuda::prefill_workspace_bytes(runs_.size()));
    cuda::prefill(problem(nullptr).forward, runs_, workspace.as<void>(), cuda::Kernels::fast,
                  gpu_queue());
    out_ = device_out_.download();
    lse_ = device_lse_.download();
  }

  Gradients run(cuda::Kernels kernels) {
    std::vector<DeviceArray<bf16>> to;
    for (std::size_t i = 0; i < kBias; ++i) {
      to.emplace_back(nan_bf16(static_cast<std::int64_t>(input(i).host.size())));
    }
    DeviceArray<float> dbias(nan_float(rows_[1] * case_.kv_heads));
    cuda::PrefillBackward made = problem(&to);
    made.dbias = dbias.data();
    cuda::Buffer workspace(cuda::backward_workspace_bytes(made, runs_, kernels));
    cuda::check(cudaMemset(workspace.as<void>(), 0xff, workspace.bytes()), "poisoning");
    cuda::backward(made, runs_, workspace.as<void>(), kernels, gpu_queue());
    Gradients got;
    for (const DeviceArray<bf16>& rows : to) got.rows.push_back(rows.download());
    got.bias = dbias.download();
    return got;
  }

  // --- comparing ---------------------------------------------------------------------------------

  /// Bias gradients are sums of both signs: they lose more.
  static double limit(std::size_t tensor) { return tensor == kBias ? 5e-2 : 2e-2; }
  std::int64_t width_of(std::size_t i) const { return i == kBias ? 1 : input(i).width; }
  std::int64_t heads_of(std::size_t i) const {
    return i == kBias ? case_.kv_heads : input(i).heads;
  }
  std::string name_of(std::size_t i) const { return i == kBias ? "bias" : input(i).name; }

  /// The length of a tensor's usual row.
  double usual(std::size_t i, const Gradients& of) const {
    const std::size_t count = i == kBias ? of.bias.size() : of.rows[i].size();
    double sum = 0;
    for (std::size_t e = 0; e < count; ++e) sum += of.value(i, e) * of.value(i, e);
    const auto rows =
        static_cast<double>(count) / static_cast<double>(std::max<std::int64_t>(width_of(i), 1));
    return std::sqrt(sum / std::max(rows, 1.0));
  }

  /// Every row: its difference in relation to its length.
  std::string compare(std::size_t i, const Gradients& got, const Gradients& expected) const {
    const auto width = static_cast<std::size_t>(width_of(i));
    const std::size_t count = i == kBias ? got.bias.size() : got.rows[i].size();
    const double floor = usual(i, expected) / 4;
    std::size_t bad = 0, worst_at = 0;
    double worst = 0;
    RelativeError all;
    for (std::size_t at = 0; at < count; at += width) {
      double difference = 0, norm = 0;
      for (std::size_t e = at; e < at + width; ++e) {
        const double x = got.value(i, e), y = expected.value(i, e);
        all.add(x, y);
        difference += (x - y) * (x - y);
        norm += y * y;
      }
      const double error = std::sqrt(difference) / std::max(std::sqrt(norm), floor);
      if (error <= limit(i)) continue;  // NaN is bad
      if (bad++ == 0 || error > worst) {
        worst = error;
        worst_at = at / width;
      }
    }
    if (bad == 0 && (count == 0 || all.value() <= 1e-2)) return {};
    std::ostringstream text;
    const auto heads = static_cast<std::size_t>(heads_of(i));
    text << name_of(i) << ": " << bad << " of " << count / width
         << " rows differ from the portable kernels', most by " << worst << ": row "
         << worst_at / heads << " head " << worst_at % heads << "; in all " << all.value() << "\n";
    return text.str();
  }

  // --- some rows in double precision -------------------------------------------------------------

  /// A sample: what is differentiated, and where it is.
  struct Sample {
    enum Kind { query, token, representative } kind;
    std::size_t run;
    std::int64_t index, head;  // head of queries, or of keys
  };

  std::vector<Sample> samples() {
    std::vector<Sample> list;
    for (const Sample::Kind kind : {Sample::query, Sample::token, Sample::representative}) {
      const std::int64_t heads = kind == Sample::query ? case_.heads : heads_of(4);
      for (int s = 0; s < kSamples; ++s) {
        const auto run = static_cast<std::size_t>(s) % runs_.size();
        const std::int64_t n = runs_[run].query_count;
        const std::int64_t count = kind == Sample::representative ? layout_.groups(n) : n;
        if (count == 0) continue;
        const std::int64_t turn = s / static_cast<std::int64_t>(runs_.size());
        const std::int64_t index = turn == 0   ? 0
                                   : turn == 1 ? count - 1
                                   : turn == 2 ? std::min<std::int64_t>(127, count - 1)
                                               : random_.integer(0, count - 1);
        list.push_back({kind, run, index, random_.integer(0, heads - 1)});
      }
    }
    return list;
  }

  static double dot(const std::vector<double>& x, const std::vector<double>& y) {
    double sums[4] = {};
    for (std::size_t i = 0; i < x.size(); ++i) sums[i % 4] += x[i] * y[i];
    return sums[0] + sums[1] + sums[2] + sums[3];
  }
  static void row_add(std::vector<double>& to, double factor, const std::vector<double>& row) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += factor * row[i];
  }
  static void row_append(std::vector<double>& to, const Tensor& from, std::int64_t row,
                         std::int64_t head) {
    for (std::int64_t i = 0; i < from.width; ++i) to.push_back(double_of(from.at(row, head)[i]));
  }

  /// A query of one head as the window, or as sink and representatives see it, with what the
  /// forward pass left.
  struct Query {
    std::vector<double> row, dout;
    double lse, delta;
  };
  std::int64_t shift(std::int64_t t) const {
    return case_.entry ? layout_.entry_position(t) - t : 0;
  }
  void query_read(std::size_t run, std::int64_t t, std::int64_t head, bool far, Query& q) const {
    const std::int64_t row = runs_[run].query_row + t;
    q.row.clear();
    q.dout.clear();
    row_append(q.row, q_[0], row, head);
    row_append(q.row, q_[1], row, head);
    row_append(q.dout, dout_, row, head);
    if (far && shift(t) != 0) {
      rotate_row(rotation_, shift(t), q.row.data() + nope_);
      for (double& x : q.row) x = double_of(bf16_of(x));
    }
    const std::int64_t at = row * case_.heads + head;
    q.lse = double_of(lse_[static_cast<std::size_t>(at)]);
    q.delta = 0;
    for (std::int64_t i = 0; i < value_; ++i) {
      q.delta += q.dout[static_cast<std::size_t>(i)] *
                 double_of(out_[static_cast<std::size_t>(at * value_ + i)]);
    }
  }

  struct Key {
    std::vector<double> row, value;
    double bias;
  };
  void key_read(std::size_t run, bool rep, std::int64_t index, std::int64_t kv, Key& key) const {
    const std::int64_t row = (rep ? runs_[run].group_row : runs_[run].exact_row) + index;
    key.row.clear();
    key.value.clear();
    row_append(key.row, keys_[rep][0], row, kv);
    row_append(key.row, keys_[rep][1], row, mla_ ? 0 : kv);
    row_append(key.value, keys_[rep][2], row, kv);
    key.bias =
        rep && case_.bias
            ? double_of(bias_[static_cast<std::size_t>(row * case_.kv_heads + (mla_ ? 0 : kv))])
            : 0;
  }
  double probability(const Query& q, const Key& key) const {
    return std::exp(dot(q.row, key.row) * scale() + key.bias - q.lse);
  }

  /// Compares columns of a gradient's row; a line where they differ.
  std::string row_compare(std::size_t tensor, const Gradients& got, double usual_length,
                          std::int64_t row, std::int64_t head, const double* expected) const {
    const std::int64_t width = width_of(tensor);
    double difference = 0, norm = 0;
    for (std::int64_t i = 0; i < width; ++i) {
      const auto at = static_cast<std::size_t>((row * heads_of(tensor) + head) * width + i);
      difference += (got.value(tensor, at) - expected[i]) * (got.value(tensor, at) - expected[i]);
      norm += expected[i] * expected[i];
    }
    const double error = std::sqrt(difference) / std::max(std::sqrt(norm), usual_length / 4);
    if (error <= limit(tensor)) return {};
    std::ostringstream text;
    text << name_of(tensor) << " row " << row << " head " << head << ": off by " << error
         << " of double precision\n";
    return text.str();
  }

  std::string query_compare(const Sample& s, const Gradients& got,
                            const std::vector<double>& lengths) const {
    Query near, far;
    query_read(s.run, s.index, s.head, false, near);
    query_read(s.run, s.index, s.head, true, far);
    std::vector<double> dnear(near.row.size(), 0.0), dfar = dnear;
    std::vector<double> out(near.dout.size(), 0.0);
    double all = 0;
    Key key;
    const auto add = [&](bool rep, std::int64_t begin, std::int64_t end, bool seen_far) {
      const Query& q = seen_far ? far : near;
      for (std::int64_t i = begin; i < end; ++i) {
        key_read(s.run, rep, i, kv_of(s.head), key);
        const double p = probability(q, key);
        all += p;
        row_add(out, p, key.value);
        row_add(seen_far ? dfar : dnear, p * (dot(q.dout, key.value) - q.delta) * scale(), key.row);
      }
    };
    const Visible visible = layout_.visible(s.index);
    add(true, 0, visible.groups, true);
    add(false, 0, visible.sink.end, true);
    add(false, visible.window.begin, visible.window.end, false);
    if (shift(s.index) != 0) rotate_row(rotation_, -shift(s.index), dfar.data() + nope_);
    row_add(dnear, 1, dfar);
    const std::int64_t row = runs_[s.run].query_row + s.index;
    std::string text;
    // What the forward pass left must belong to these keys, or nothing here would say much.
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const double x =
          double_of(out_[static_cast<std::size_t>((row * case_.heads + s.head) * value_) + i]);
      difference += (x - out[i]) * (x - out[i]);
      norm += out[i] * out[i];
    }
    if (!(std::abs(all - 1) < 1e-2 && difference < 1e-4 * norm)) {
      text += "query " + std::to_string(row) + ": the forward pass is wrong\n";
    }
    if (nope_ > 0) text += row_compare(0, got, lengths[0], row, s.head, dnear.data());
    return text + row_compare(1, got, lengths[1], row, s.head, dnear.data() + nope_);
  }

  std::string key_compare(const Sample& s, const Gradients& got,
                          const std::vector<double>& lengths) const {
    const bool rep = s.kind == Sample::representative;
    const std::int64_t n = runs_[s.run].query_count;
    const bool far = rep || s.index < layout_.sink;
    const Range queries =
        rep ? layout_.group_queries(s.index, n) : layout_.token_queries(s.index, n);
    const std::size_t first = rep ? 5 : 2;
    std::vector<double> drow(static_cast<std::size_t>(nope_ + rope_), 0.0), own = drow;
    std::vector<double> dvalue(static_cast<std::size_t>(value_), 0.0);
    double dbias = 0;
    Key key;
    Query q;
    for (std::int64_t head = 0; head < case_.heads; ++head) {
      const bool mine = kv_of(head) == s.head;
      if (!mine && !mla_) continue;  // MLA's RoPE keys and biases are of all heads
      key_read(s.run, rep, s.index, kv_of(head), key);
      for (std::int64_t t = queries.begin; t < queries.end; ++t) {
        query_read(s.run, t, head, far, q);
        const double p = probability(q, key);
        const double ds = p * (dot(q.dout, key.value) - q.delta);
        row_add(drow, ds * scale(), q.row);
        if (mine) row_add(own, ds * scale(), q.row);
        if (mine) row_add(dvalue, p, q.dout);
        dbias += ds;
      }
    }
    const std::int64_t row = (rep ? runs_[s.run].group_row : runs_[s.run].exact_row) + s.index;
    const std::int64_t shared = mla_ ? 0 : s.head;
    std::string text;
    if (nope_ > 0) text += row_compare(first, got, lengths[first], row, s.head, own.data());
    text += row_compare(first + 1, got, lengths[first + 1], row, shared, drow.data() + nope_);
    text += row_compare(first + 2, got, lengths[first + 2], row, s.head, dvalue.data());
    if (rep) text += row_compare(kBias, got, lengths[kBias], row, shared, &dbias);
    return text;
  }

  std::string samples_compare(const Gradients& got) {
    std::vector<double> lengths;
    for (std::size_t i = 0; i < kTensors; ++i) lengths.push_back(usual(i, got));
    const std::vector<Sample> list = samples();
    std::vector<std::string> found(list.size());
    std::atomic<std::size_t> next = 0;
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
      threads.emplace_back([&] {
        for (std::size_t s = next++; s < list.size(); s = next++) {
          found[s] = list[s].kind == Sample::query ? query_compare(list[s], got, lengths)
                                                   : key_compare(list[s], got, lengths);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::string text;
    for (const std::string& line : found) text += line;
    return text;
  }

  LongCase case_;
  bool mla_;
  Layout layout_;
  Rotation rotation_;
  Random random_{29};
  std::vector<cuda::PrefillRun> runs_;
  std::int64_t rows_[2] = {0, 0};  // of tokens and of representatives
  std::int64_t nope_ = 0, rope_ = 0, value_ = 0;
  Tensor q_[2], dout_, keys_[2][3];
  std::vector<float> bias_, lse_;
  std::vector<bf16> out_;
  DeviceArray<std::uint64_t> steps_;
  DeviceArray<float> device_bias_, device_lse_;
  DeviceArray<bf16> device_out_;
};

}  // namespace lca::test
