// Decoding: every query against the cache's rows as they lie. MLA first turns its queries into the
// latent space (absorption) and last takes its outputs back out of it. Rows are shared out in
// splits whose number depends on the query alone, so neither threads nor the batch change a bit.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numbers>

#include "attention/attend.h"
#include "attention/cache_state.h"
#include "attention/cpu/row_rotation.h"
#include "attention/cpu/rows.h"
#include "attention/cpu/vector.h"
#include "core/bf16.h"
#include "core/context_state.h"
#include "core/workspace.h"

namespace lca {

namespace {

using namespace cpu;

constexpr std::int64_t kSplitRows = 256;  ///< fewest rows worth a split
constexpr std::int64_t kMostSplits = 32;
/// Values up to which one thread prepares and finishes the queries of a step.
constexpr std::int64_t kAlone = 16384;

/// Splits for one query of a run of `run` queries that sees `pairs` rows.
std::int64_t split_count(std::int64_t pairs, std::int64_t run) {
  const std::int64_t most = std::max<std::int64_t>(1, kMostSplits / run);
  return std::clamp<std::int64_t>((pairs + kSplitRows - 1) / kSplitRows, 1, most);
}

/// Memory of one query: all its heads.
struct QueryMemory {
  std::size_t run;
  std::int64_t row, position, splits;
  std::int64_t left;    ///< splits that are not done
  float* q_semantic;    ///< [H][d_c], MLA
  float* q_positional;  ///< [H][d_rope]
  // With entry positions, where the query's entry lies behind its token's position:
  std::int64_t shift;  ///< by so much; 0: the above is compared with everything
  float* q_far;        ///< [H][d_rope]: for representatives and sink
  // Both in 16 bits, where rows of 8 bits are multiplied as they are:
  Int8Query *int8, *int8_far;                ///< [H]
  std::int8_t *int8_bytes, *int8_far_bytes;  ///< [H][2·d_rope]
  float* rotated;                            ///< [H][d_rope], before it is rounded
  float* angles;
  float* out;  ///< [splits][H][d_semantic]
  float* top;  ///< [splits][H]
  float* sum;  ///< [splits][H]

  void carve(Carver& carver, const LayerSpec& spec) {
    const AttentionShape& shape = spec.shape;
    q_semantic = carver.take<float>(shape.form == Form::mla ? shape.heads * shape.d_latent : 0);
    q_positional = carver.take<float>(shape.heads * shape.d_rope);
    const bool rotates = spec.settings.positions == Positions::entry;
    q_far = carver.take<float>(rotates ? shape.heads * shape.d_rope : 0);
    rotated = carver.take<float>(rotates ? shape.heads * shape.d_rope : 0);
    angles = carver.take<float>(rotates ? shape.d_rope : 0);
    const std::int64_t int8_heads = spec.storage == CacheStorage::int8 ? shape.heads : 0;
    const std::int64_t far_heads = rotates ? int8_heads : 0;
    int8 = carver.take<Int8Query>(int8_heads);
    int8_bytes = carver.take<std::int8_t>(int8_heads * 2 * shape.d_rope);
    int8_far = carver.take<Int8Query>(far_heads);
    int8_far_bytes = carver.take<std::int8_t>(far_heads * 2 * shape.d_rope);
    out = carver.take<float>(splits * shape.heads * shape.d_semantic());
    top = carver.take<float>(splits * shape.heads);
    sum = carver.take<float>(splits * shape.heads);
  }
};

/// Bytes of one block of rows, in any format, and of their biases.
std::int64_t gather_bytes(const LayerSpec& spec) {
  const AttentionShape& shape = spec.shape;
  return kRowBlock * static_cast<std::int64_t>(sizeof(float)) *
         (shape.kv_heads * (shape.d_semantic() + shape.d_positional() + 1) +
          RowFormat::of(spec).scales());
}

/// The biases of consecutive representatives: one for each KV head, or (stride 0) one for all; none
/// where `first` is null.
struct Bias {
  const float* first = nullptr;
  std::int64_t stride = 0;
};

/// Rows one step behind: when some are read, those that follow are known.
class RowQueue {
 public:
  void add(const RowHeads& heads, const RowSpan& rows) {
    if (held_) {
      rows_attend(heads_, rows_, &rows);
    } else {
      rows_prefetch(heads, rows);
    }
    heads_ = heads;
    rows_ = rows;
    held_ = true;
  }
  /// Reads what is left; also before memory that it lies in is used again.
  void finish() {
    if (held_) rows_attend(heads_, rows_);
    held_ = false;
  }

 private:
  RowHeads heads_;
  RowSpan rows_;
  bool held_ = false;
};

struct SplitTask {
  std::size_t query;
  std::int64_t split;
};

class Decode {
 public:
  Decode(Context& context, const LayerWeights& weights, std::span<const Run> runs,
         std::span<const std::int64_t> first)
      : context_(context),
        weights_(weights),
        runs_(runs),
        spec_(runs[0].cache->spec()),
        shape_(spec_.shape) {
    // Counted first, then carved: a decoded token takes no memory but the workspace.
    Carver count;
    carve(count, first);
    Carver carver(context.state().workspace.prepare(count.used()));
    carve(carver, first);
  }

  void run() {
    const std::int64_t heads = shape_.heads;
    const auto count = static_cast<std::int64_t>(queries_.size());
    ThreadPool& pool = context_.state().pool;
    // Waking the others costs more than GQA's part of the work before, and after is little.
    const bool alone = shape_.form == Form::gqa && count * heads * shape_.d_value <= kAlone;
    const auto share = [&](const auto& body) {
      const auto task = [&](std::int64_t i, int) { body(query(i / heads), i % heads); };
      if (!alone) {
        pool.run(count * heads, task);
        return;
      }
      for (std::int64_t i = 0; i < count * heads; ++i) task(i, 0);
    };
    for (const QueryMemory& query : queries_) {
      if (query.shift != 0) vector_angles(rotation_, -query.shift, query.angles);
    }
    share([&](const QueryMemory& query, std::int64_t head) { prepare(query, head); });
    pool.run(static_cast<std::int64_t>(tasks_.size()), [&](std::int64_t task, int worker) {
      const SplitTask& split = tasks_[static_cast<std::size_t>(task)];
      attend_split(split, worker);
      // Whoever does a query's last split finishes it, so that no thread waits for another's.
      QueryMemory& query = queries_[split.query];
      if (!alone || std::atomic_ref(query.left).fetch_sub(1, std::memory_order_acq_rel) > 1) return;
      for (std::int64_t head = 0; head < heads; ++head) finish(query, head);
    });
    if (!alone) share([&](const QueryMemory& query, std::int64_t head) { finish(query, head); });
  }

 private:
  QueryMemory& query(std::int64_t i) { return queries_[static_cast<std::size_t>(i)]; }

  /// Visits the queries of all runs: body(run, row, position, splits).
  template <typename Body>
  void for_queries(std::span<const std::int64_t> first, const Body& body) const {
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      const std::int64_t length = runs_[i].queries.rope.shape[0];
      for (std::int64_t row = 0; row < length; ++row) {
        const Visible seen = runs_[i].cache->state().layout.visible(first[i] + row);
        body(i, row, first[i] + row, split_count(seen.pairs(), length));
      }
    }
  }

  /// Lays the memory out; where the carver only counts nothing is written.
  void carve(Carver& carver, std::span<const std::int64_t> first) {
    std::int64_t count = 0;
    std::int64_t splits = 0;
    for_queries(first, [&](std::size_t, std::int64_t, std::int64_t, std::int64_t more) {
      ++count;
      splits += more;
    });
    auto* queries = carver.take<QueryMemory>(count);
    auto* tasks = carver.take<SplitTask>(splits);
    std::size_t query_at = 0;
    std::size_t task_at = 0;
    for_queries(first,
                [&](std::size_t run, std::int64_t row, std::int64_t position, std::int64_t parts) {
                  QueryMemory query{};
                  query.run = run;
                  query.row = row;
                  query.position = position;
                  query.splits = query.left = parts;
                  query.shift = rotation_.steps == nullptr
                                    ? 0
                                    : runs_[run].cache->state().layout.position_shift(position + 1);
                  query.carve(carver, spec_);
                  if (queries == nullptr) return;
                  for (std::int64_t split = 0; split < parts; ++split)
                    tasks[task_at++] = {query_at, split};
                  queries[query_at++] = query;
                });
    queries_ = {queries, query_at};
    tasks_ = {tasks, task_at};
    scratch_values_ = rows_scratch_floats(shape_.heads_per_kv(), shape_.kv_heads,
                                          shape_.d_semantic(), shape_.d_positional());
    scratch_ = carver.take<float>(scratch_values_ * context_.threads());
    gathered_ = carver.take<std::byte>(gather_bytes(spec_) * context_.threads());
  }

  /// One head's rope part as representatives and sink are compared with.
  void prepare_far(const QueryMemory& query, std::int64_t head) {
    const ConstTensor& q = runs_[query.run].queries.rope;
    const std::int64_t at = head * shape_.d_rope;
    float* to = (bf16_ ? query.rotated : query.q_far) + at;
    vector_rotate(rotation_, query.angles, bf16_ ? 1 : factor_, q.row(query.row, head), q.dtype,
                  shape_.d_rope, to);
    if (bf16_) {
      vector_store(to, shape_.d_rope, DType::bf16, reinterpret_cast<bf16_bits*>(query.q_far) + at);
    }
    if (int8_)
      query.int8_far[head] = query_quantise(to, shape_.d_rope, query.int8_far_bytes + 2 * at);
  }

  /// One head's query in the cache's own space, times scale·log₂e.
  void prepare(const QueryMemory& query, std::int64_t head) {
    const Queries& q = runs_[query.run].queries;
    if (query.shift != 0) prepare_far(query, head);
    if (bf16_) {
      auto* to = reinterpret_cast<bf16_bits*>(query.q_positional) + head * shape_.d_rope;
      std::memcpy(to, q.rope.row(query.row, head),
                  static_cast<std::size_t>(shape_.d_rope) * sizeof(bf16_bits));
      return;
    }
    const float scale = factor_;
    float* positional = query.q_positional + head * shape_.d_rope;
    std::fill_n(positional, shape_.d_rope, 0.0F);
    vector_add_scaled(scale, q.rope.row(query.row, head), q.rope.dtype, shape_.d_rope, positional);
    if (int8_) {
      query.int8[head] =
          query_quantise(positional, shape_.d_rope, query.int8_bytes + head * 2 * shape_.d_rope);
    }
    if (shape_.form != Form::mla) return;
    const void* nope = q.nope.row(query.row, head);
    float* semantic = query.q_semantic + head * shape_.d_latent;
    std::fill_n(semantic, shape_.d_latent, 0.0F);
    for (std::int64_t k = 0; k < shape_.d_nope; ++k) {
      const float value = q.nope.dtype == DType::f32
                              ? static_cast<const float*>(nope)[k]
                              : bf16_to_f32(static_cast<const bf16_bits*>(nope)[k]);
      vector_add_scaled(value * scale, weights_.w_uk.row(head, k), weights_.w_uk.dtype,
                        shape_.d_latent, semantic);
    }
  }

  /// All heads against one split of what the query sees, counted through representatives, sink and
  /// window in this order.
  void attend_split(const SplitTask& task, int worker) {
    const QueryMemory& query = queries_[task.query];
    const Cache::State& state = runs_[query.run].cache->state();
    const std::int64_t at = task.split * shape_.heads;
    RowHeads heads;
    heads.kv_heads = shape_.kv_heads;
    heads.heads = shape_.heads_per_kv();
    heads.d_semantic = shape_.d_semantic();
    heads.d_positional = shape_.d_positional();
    heads.q_semantic = shape_.form == Form::mla ? query.q_semantic : nullptr;
    heads.q_positional = query.q_positional;
    if (bf16_) {
      heads.q_bf16 = reinterpret_cast<const std::uint16_t*>(query.q_positional);
      heads.q_factor = factor_;
    }
    if (int8_) heads.q_int8 = query.int8;
    heads.out = query.out + at * shape_.d_semantic();
    heads.top = query.top + at;
    heads.sum = query.sum + at;
    heads.scratch = scratch_ + worker * scratch_values_;
    rows_begin(heads);
    RowHeads far = heads;
    if (query.shift != 0) {
      far.q_positional = query.q_far;
      if (bf16_) far.q_bf16 = reinterpret_cast<const std::uint16_t*>(query.q_far);
      if (int8_) far.q_int8 = query.int8_far;
    }

    const Visible seen = state.layout.visible(query.position);
    // Whole blocks: representatives then fall into the same blocks in every split.
    const std::int64_t even = (seen.pairs() + query.splits - 1) / query.splits;
    const std::int64_t share = (even + kRowBlock - 1) / kRowBlock * kRowBlock;
    Range rest{task.split * share, std::min(seen.pairs(), (task.split + 1) * share)};
    RowQueue queue;
    attend_groups(queue, far, state, cut(rest, seen.groups), worker);
    rest = {rest.begin - seen.groups, rest.end - seen.groups};
    const Range tokens = cut(rest, seen.sink.size() + seen.window.size());
    // The block in which sink and window meet has no one form of the query, or of rows.
    const bool apart = query.shift != 0 || format_.int8();
    const std::int64_t meet = apart ? seen.sink.size() : tokens.begin;
    attend_tokens(queue, far, state, seen, {tokens.begin, std::min(tokens.end, meet)}, worker);
    attend_tokens(queue, heads, state, seen, {std::max(tokens.begin, meet), tokens.end}, worker);
    queue.finish();
  }

  static Range cut(const Range& range, std::int64_t count) {
    return {std::clamp<std::int64_t>(range.begin, 0, count),
            std::clamp<std::int64_t>(range.end, 0, count)};
  }

  /// Representatives [part.begin, part.end), which begins with a whole block. Blocks fall where
  /// they would if all lay in one piece, however the pages are cut: a fork computes what its
  /// original would.
  void attend_groups(RowQueue& queue, const RowHeads& heads, const Cache::State& state,
                     const Range& part, int worker) {
    std::int64_t at = part.begin;
    while (at < part.end) {
      const std::int64_t left = part.end - at;
      const GroupRows::Run run = state.groups.run(at);
      std::int64_t count = std::min(left, run.count);
      if (count < left) count = count / kRowBlock * kRowBlock;
      if (count > 0) {
        const float* scales = format_.int8() ? run.scales : nullptr;
        queue.add(heads, span({run.semantic, run.positional, scales, count}, bias(run.bias)));
      } else {
        count = std::min(left, kRowBlock);
        queue.finish();
        queue.add(heads, gather_groups(state, at, count, worker));
      }
      at += count;
    }
  }

  /// A block that spans two pages, copied together.
  RowSpan gather_groups(const Cache::State& state, std::int64_t first, std::int64_t count,
                        int worker) const {
    RowSpan span = gather_rows(count, worker, format_,
                               [&](std::int64_t i) { return state.groups_stored(first + i, 1); });
    const Bias one = bias(state.groups.run(first).bias);
    span.bias = one.first;
    span.bias_stride = one.stride;
    if (one.stride > 0) {
      auto* to = reinterpret_cast<float*>(gathered_ + (worker + 1) * gather_bytes(spec_)) -
                 kRowBlock * shape_.kv_heads;
      for (std::int64_t i = 0; i < count; ++i) {
        std::copy_n(state.groups.bias(first + i), shape_.kv_heads, to + i * shape_.kv_heads);
      }
      span.bias = to;
    }
    return span;
  }

  /// Tokens [part.begin, part.end) of those the query sees, sink and window counted as one row of
  /// tokens: blocks fall where they would without a sink, so that nothing condensed is bit for bit
  /// dense attention.
  void attend_tokens(RowQueue& queue, const RowHeads& heads, const Cache::State& state,
                     const Visible& seen, const Range& part, int worker) {
    const std::int64_t sink = seen.sink.size();
    const std::int64_t window = seen.window.begin - state.dropped - state.sink.rows();
    std::int64_t at = part.begin;
    while (at < part.end) {
      std::int64_t count = part.end - at;
      if (at >= sink) {
        queue.add(heads, span(Cache::State::stored(state.window, window + at - sink, count)));
      } else if (sink - at >= std::min(count, kRowBlock)) {
        if (count > sink - at) count = (sink - at) / kRowBlock * kRowBlock;
        queue.add(heads, span(Cache::State::stored(state.sink, at, count)));
      } else {
        count = std::min(count, kRowBlock);
        queue.finish();
        queue.add(heads, gather(state, at, sink, window, count, worker));
      }
      at += count;
    }
  }

  /// The block in which sink and window meet, copied together; both are plain.
  RowSpan gather(const Cache::State& state, std::int64_t first, std::int64_t sink,
                 std::int64_t window, std::int64_t count, int worker) const {
    return gather_rows(count, worker, RowFormat::plain(spec_), [&](std::int64_t i) {
      const std::int64_t at = first + i;
      return at < sink ? Cache::State::stored(state.sink, at, 1)
                       : Cache::State::stored(state.window, window + at - sink, 1);
    });
  }

  /// Copies `count` rows, each of which `row` hands out, into the worker's block.
  template <typename Row>
  RowSpan gather_rows(std::int64_t count, int worker, const RowFormat& format,
                      const Row& row) const {
    std::byte* to = gathered_ + worker * gather_bytes(spec_);
    const auto copy = [&](auto part, std::int64_t width) {
      const std::byte* begin = to;
      const auto bytes = static_cast<std::size_t>(width);
      for (std::int64_t i = 0; i < count; ++i, to += bytes) {
        std::memcpy(to, row(i).*part, bytes);
      }
      return begin;
    };
    CacheRows rows;
    rows.count = count;
    // Scales first: they are whole floats, and aligned as such.
    if (format.int8()) {
      rows.scales = reinterpret_cast<const float*>(copy(&CacheRows::scales, format.scale_bytes()));
    }
    rows.positional = copy(&CacheRows::positional, format.positional_bytes());
    rows.semantic = copy(&CacheRows::semantic, format.semantic_bytes());
    return span(rows);
  }

  /// `scored` are those of mass `score`.
  Bias bias(const float* scored) const {
    switch (spec_.settings.mass) {
      case Mass::score:
        return {scored, shape_.kv_heads};
      case Mass::count:
        return {&log_group_, 0};
      case Mass::none:
        break;
    }
    return {};
  }

  RowSpan span(const CacheRows& rows, const Bias& bias = {}) const {
    RowSpan span;
    span.semantic = rows.semantic;
    span.positional = rows.positional;
    span.semantic_stride = shape_.kv_heads * shape_.d_semantic();
    span.positional_stride = shape_.kv_heads * shape_.d_positional();
    span.dtype = spec_.dtype;
    span.format = rows.scales == nullptr ? nullptr : &format_;
    span.scales = rows.scales;
    span.count = rows.count;
    span.bias = bias.first;
    span.bias_stride = bias.stride;
    return span;
  }

  /// Joins the splits of one head and writes its output.
  void finish(const QueryMemory& query, std::int64_t head) {
    const Run& run = runs_[query.run];
    const std::int64_t width = shape_.d_semantic();
    float top = query.top[head];
    for (std::int64_t split = 1; split < query.splits; ++split) {
      top = std::max(top, query.top[split * shape_.heads + head]);
    }
    // The first split's memory gathers the others.
    float* joined = query.out + head * width;
    float sum = 0;
    for (std::int64_t split = 0; split < query.splits; ++split) {
      const std::int64_t at = split * shape_.heads + head;
      const float factor = std::exp2(query.top[at] - top);
      sum += query.sum[at] * factor;
      if (split == 0) {
        for (std::int64_t i = 0; i < width; ++i) joined[i] *= factor;
      } else {
        vector_add_scaled(factor, query.out + at * width, DType::f32, width, joined);
      }
    }
    const float inverse = 1.0F / sum;
    float* out = run.out + (query.row * shape_.heads + head) * shape_.d_value;
    if (shape_.form == Form::mla) {
      for (std::int64_t i = 0; i < shape_.d_value; ++i) {
        out[i] = inverse * vector_dot(joined, weights_.w_uv.row(head, i), weights_.w_uv.dtype,
                                      shape_.d_latent);
      }
    } else {
      for (std::int64_t i = 0; i < width; ++i) out[i] = joined[i] * inverse;
    }
    if (run.lse != nullptr) {
      run.lse[query.row * shape_.heads + head] =
          (top + std::log2(sum)) * std::numbers::ln2_v<float>;
    }
  }

  Context& context_;
  const LayerWeights& weights_;
  std::span<const Run> runs_;
  const LayerSpec& spec_;
  const AttentionShape& shape_;
  const float factor_ = static_cast<float>(spec_.softmax_scale() * std::numbers::log2e_v<double>);
  const RowFormat format_ = RowFormat::of(spec_);  ///< of all rows but the sink's
  /// Queries and rows are multiplied as they are stored.
  const bool bf16_ = shape_.form == Form::gqa && !format_.int8() &&
                     runs_[0].queries.rope.dtype == DType::bf16 &&
                     rows_run_bf16(spec_.dtype, shape_.d_semantic(), shape_.d_positional());
  /// Rows of 8 bits are multiplied as they are stored.
  const bool int8_ = shape_.form == Form::gqa && format_.int8() &&
                     rows_run_int8(shape_.d_semantic(), shape_.d_positional());
  const RowRotation rotation_ = row_rotation(runs_[0].cache->state());
  const float log_group_ = std::log(static_cast<float>(spec_.settings.group));
  std::span<QueryMemory> queries_;
  std::span<SplitTask> tasks_;
  float* scratch_ = nullptr;  ///< of each thread, as is the next
  std::int64_t scratch_values_ = 0;
  std::byte* gathered_ = nullptr;
};

}  // namespace

void attend_rows(Context& context, const LayerWeights& weights, std::span<const Run> runs,
                 std::span<const std::int64_t> first) {
  if (!runs.empty()) Decode(context, weights, runs, first).run();
}

std::size_t attend_rows_workspace_bytes(const LayerSpec& spec, std::int64_t run, int threads) {
  Carver carver;
  const std::int64_t splits = std::max<std::int64_t>(1, kMostSplits / run);
  carver.take<QueryMemory>(run);
  carver.take<SplitTask>(run * splits);
  for (std::int64_t row = 0; row < run; ++row) {
    QueryMemory query{};
    query.splits = splits;
    query.carve(carver, spec);
  }
  carver.take<float>(rows_scratch_floats(spec.shape.heads_per_kv(), spec.shape.kv_heads,
                                         spec.shape.d_semantic(), spec.shape.d_positional()) *
                     threads);
  carver.take<std::byte>(gather_bytes(spec) * threads);
  return carver.used();
}

}  // namespace lca
