#pragma once
/// A backward pass over long documents. Gradients of Hopper's kernels are compared row by row with
/// those of the portable ones, and some rows with plain loops in double precision: of a key all
/// queries that see it. Logits are large, so that a query gives its probability to a few keys and
/// one tile that is left out or taken twice changes whole rows.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "cuda/long_problem.h"

namespace lca::test {

class LongBackward {
 public:
  explicit LongBackward(const LongCase& c) : p_(c) {}

  /// One line for each tensor that is wrong.
  std::string wrong() {
    const Gradients plain = p_.run(cuda::Kernels::portable), fast = p_.run(cuda::Kernels::fast);
    return lines_join(kTensors, [&](std::size_t i) { return compare(i, fast, plain); }) +
           samples_compare(fast);
  }

  int slices() const { return p_.slices(); }

 private:
  using Gradients = LongProblem::Gradients;
  using Tensor = LongProblem::Tensor;
  static constexpr std::size_t kTensors = LongProblem::kTensors, kBias = LongProblem::kBias;

  /// What `line` says of 0 … count − 1, found by all cores.
  template <typename Line>
  static std::string lines_join(std::size_t count, Line line) {
    std::vector<std::string> found(count);
    std::atomic<std::size_t> next = 0;
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
      threads.emplace_back([&] {
        for (std::size_t n = next++; n < count; n = next++) found[n] = line(n);
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::string text;
    for (const std::string& each : found) text += each;
    return text;
  }

  static constexpr int kSamples = 32;  // of queries, tokens and representatives each

  // --- comparing ---------------------------------------------------------------------------------

  /// Gradients of biases are sums of both signs, in which more is lost.
  static double limit(std::size_t i) { return i == kBias ? 5e-2 : 2e-2; }
  /// What a row's error is measured by where the row itself is shorter: a quarter of a tensor's
  /// usual row, all of it for biases.
  double floor_of(std::size_t i, const Gradients& of) const {
    return usual(i, of) * (i == kBias ? 1.0 : 0.25);
  }
  double usual(std::size_t i, const Gradients& of) const {
    const std::size_t count = i == kBias ? of.bias.size() : of.rows[i].size();
    double sum = 0;
    for (std::size_t e = 0; e < count; ++e) sum += of.value(i, e) * of.value(i, e);
    const auto rows =
        static_cast<double>(count) / static_cast<double>(std::max<std::int64_t>(p_.width_of(i), 1));
    return std::sqrt(sum / std::max(rows, 1.0));
  }

  /// Every row: its difference in relation to its length.
  std::string compare(std::size_t i, const Gradients& got, const Gradients& expected) const {
    const auto width = static_cast<std::size_t>(p_.width_of(i));
    const std::size_t count = i == kBias ? got.bias.size() : got.rows[i].size();
    const double floor = floor_of(i, expected);
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
    const auto heads = static_cast<std::size_t>(p_.heads_of(i));
    text << p_.name_of(i) << ": " << bad << " of " << count / width
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
      const std::int64_t heads = kind == Sample::query ? p_.setup.heads : p_.heads_of(4);
      for (int s = 0; s < kSamples; ++s) {
        const auto run = static_cast<std::size_t>(s) % p_.runs.size();
        const std::int64_t n = p_.runs[run].query_count;
        const std::int64_t count = kind == Sample::representative ? p_.layout.groups(n) : n;
        if (count == 0) continue;
        const std::int64_t turn = s / static_cast<std::int64_t>(p_.runs.size());
        const std::int64_t index = turn == 0   ? 0
                                   : turn == 1 ? count - 1
                                   : turn == 2 ? std::min<std::int64_t>(127, count - 1)
                                               : p_.random.integer(0, count - 1);
        list.push_back({kind, run, index, p_.random.integer(0, heads - 1)});
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
    return p_.setup.entry ? p_.layout.entry_position(t) - t : 0;
  }
  void query_read(std::size_t run, std::int64_t t, std::int64_t head, bool far, Query& q) const {
    const std::int64_t row = p_.runs[run].query_row + t;
    q.row.clear();
    q.dout.clear();
    row_append(q.row, p_.q[0], row, head);
    row_append(q.row, p_.q[1], row, head);
    row_append(q.dout, p_.dout, row, head);
    if (far && shift(t) != 0) {
      rotate_row(p_.rotation, shift(t), q.row.data() + p_.nope);
      for (double& x : q.row) x = double_of(bf16_of(x));
    }
    const std::int64_t at = row * p_.setup.heads + head;
    q.lse = double_of(p_.lse[static_cast<std::size_t>(at)]);
    q.delta = 0;
    for (std::int64_t i = 0; i < p_.value; ++i) {
      q.delta += q.dout[static_cast<std::size_t>(i)] *
                 double_of(p_.out[static_cast<std::size_t>(at * p_.value + i)]);
    }
  }

  struct Key {
    std::vector<double> row, value;
    double bias;
  };
  void key_read(std::size_t run, bool rep, std::int64_t index, std::int64_t kv, Key& key) const {
    const std::int64_t row = (rep ? p_.runs[run].group_row : p_.runs[run].exact_row) + index;
    key.row.clear();
    key.value.clear();
    row_append(key.row, p_.keys[rep][0], row, kv);
    row_append(key.row, p_.keys[rep][1], row, p_.mla ? 0 : kv);
    row_append(key.value, p_.keys[rep][2], row, kv);
    key.bias =
        rep && p_.setup.bias
            ? double_of(
                  p_.bias[static_cast<std::size_t>(row * p_.setup.kv_heads + (p_.mla ? 0 : kv))])
            : 0;
  }
  double probability(const Query& q, const Key& key) const {
    return std::exp(dot(q.row, key.row) * p_.scale() + key.bias - q.lse);
  }

  /// Compares columns of a gradient's row; a line where they differ.
  std::string row_compare(std::size_t tensor, const Gradients& got, double floor, std::int64_t row,
                          std::int64_t head, const double* expected) const {
    const std::int64_t width = p_.width_of(tensor);
    double difference = 0, norm = 0;
    for (std::int64_t i = 0; i < width; ++i) {
      const auto at = static_cast<std::size_t>((row * p_.heads_of(tensor) + head) * width + i);
      difference += (got.value(tensor, at) - expected[i]) * (got.value(tensor, at) - expected[i]);
      norm += expected[i] * expected[i];
    }
    const double error = std::sqrt(difference) / std::max(std::sqrt(norm), floor);
    if (error <= limit(tensor)) return {};
    std::ostringstream text;
    text << p_.name_of(tensor) << " row " << row << " head " << head << ": off by " << error
         << " of double precision\n";
    return text.str();
  }

  std::string query_compare(const Sample& s, const Gradients& got,
                            const std::vector<double>& floors) const {
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
        key_read(s.run, rep, i, p_.kv_of(s.head), key);
        const double p = probability(q, key);
        all += p;
        row_add(out, p, key.value);
        row_add(seen_far ? dfar : dnear, p * (dot(q.dout, key.value) - q.delta) * p_.scale(),
                key.row);
      }
    };
    const Visible visible = p_.layout.visible(s.index);
    add(true, 0, visible.groups, true);
    add(false, 0, visible.sink.end, true);
    add(false, visible.window.begin, visible.window.end, false);
    if (shift(s.index) != 0) rotate_row(p_.rotation, -shift(s.index), dfar.data() + p_.nope);
    row_add(dnear, 1, dfar);
    const std::int64_t row = p_.runs[s.run].query_row + s.index;
    std::string text;
    // What the forward pass left must belong to these keys, or nothing here would say much.
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const double x = double_of(
          p_.out[static_cast<std::size_t>((row * p_.setup.heads + s.head) * p_.value) + i]);
      difference += (x - out[i]) * (x - out[i]);
      norm += out[i] * out[i];
    }
    if (!(std::abs(all - 1) < 1e-2 && difference < 1e-4 * norm)) {
      text += "query " + std::to_string(row) + ": the forward pass is wrong\n";
    }
    if (p_.nope > 0) text += row_compare(0, got, floors[0], row, s.head, dnear.data());
    return text + row_compare(1, got, floors[1], row, s.head, dnear.data() + p_.nope);
  }

  std::string key_compare(const Sample& s, const Gradients& got,
                          const std::vector<double>& floors) const {
    const bool rep = s.kind == Sample::representative;
    const std::int64_t n = p_.runs[s.run].query_count;
    const bool far = rep || s.index < p_.layout.sink;
    const Range queries =
        rep ? p_.layout.group_queries(s.index, n) : p_.layout.token_queries(s.index, n);
    const std::size_t first = rep ? 5 : 2;
    std::vector<double> drow(static_cast<std::size_t>(p_.nope + p_.rope), 0.0), own = drow;
    std::vector<double> dvalue(static_cast<std::size_t>(p_.value), 0.0);
    double dbias = 0;
    Key key;
    Query q;
    for (std::int64_t head = 0; head < p_.setup.heads; ++head) {
      const bool mine = p_.kv_of(head) == s.head;
      if (!mine && !p_.mla) continue;  // MLA's RoPE keys and biases are of all heads
      key_read(s.run, rep, s.index, p_.kv_of(head), key);
      for (std::int64_t t = queries.begin; t < queries.end; ++t) {
        query_read(s.run, t, head, far, q);
        const double p = probability(q, key);
        const double ds = p * (dot(q.dout, key.value) - q.delta);
        row_add(drow, ds * p_.scale(), q.row);
        if (mine) row_add(own, ds * p_.scale(), q.row);
        if (mine) row_add(dvalue, p, q.dout);
        dbias += ds;
      }
    }
    const std::int64_t row = (rep ? p_.runs[s.run].group_row : p_.runs[s.run].exact_row) + s.index;
    const std::int64_t shared = p_.mla ? 0 : s.head;
    std::string text;
    if (p_.nope > 0) text += row_compare(first, got, floors[first], row, s.head, own.data());
    text += row_compare(first + 1, got, floors[first + 1], row, shared, drow.data() + p_.nope);
    text += row_compare(first + 2, got, floors[first + 2], row, s.head, dvalue.data());
    if (rep) text += row_compare(kBias, got, floors[kBias], row, shared, &dbias);
    return text;
  }

  std::string samples_compare(const Gradients& got) {
    std::vector<double> floors;
    for (std::size_t i = 0; i < kTensors; ++i) floors.push_back(floor_of(i, got));
    const std::vector<Sample> list = samples();
    return lines_join(list.size(), [&](std::size_t s) {
      return list[s].kind == Sample::query ? query_compare(list[s], got, floors)
                                           : key_compare(list[s], got, floors);
    });
  }

  LongProblem p_;
};

}  // namespace lca::test
