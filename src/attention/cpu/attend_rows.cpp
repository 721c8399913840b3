// Decoding: every query against the cache's rows as they lie. MLA first turns its queries into the
// latent space (absorption) and last takes its outputs back out of it. Rows are shared out in
// splits whose number depends on the query alone, so neither threads nor the batch change a bit.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "attention/attend.h"
#include "attention/cache_state.h"
#include "attention/cpu/rows.h"
#include "attention/cpu/vector.h"
#include "core/bf16.h"
#include "core/threads.h"
#include "core/workspace.h"

namespace lca {

namespace {

using namespace cpu;

constexpr std::int64_t kSplitRows = 256;  ///< fewest rows worth a split
constexpr std::int64_t kMostSplits = 32;

/// Splits for one query of a run of `run` queries that sees `pairs` rows.
std::int64_t split_count(std::int64_t pairs, std::int64_t run) {
  const std::int64_t most = std::max<std::int64_t>(1, kMostSplits / run);
  return std::clamp<std::int64_t>((pairs + kSplitRows - 1) / kSplitRows, 1, most);
}

/// Memory of one query: all its heads.
struct QueryMemory {
  std::size_t run;
  std::int64_t row, position, splits;
  float* q_semantic;    ///< [H][d_c], MLA
  float* q_positional;  ///< [H][d_rope]
  float* out;           ///< [splits][H][d_semantic]
  float* top;           ///< [splits][H]
  float* sum;           ///< [splits][H]

  void carve(Carver& carver, const AttentionShape& shape) {
    q_semantic = carver.take<float>(shape.form == Form::mla ? shape.heads * shape.d_latent : 0);
    q_positional = carver.take<float>(shape.heads * shape.d_rope);
    out = carver.take<float>(splits * shape.heads * shape.d_semantic());
    top = carver.take<float>(splits * shape.heads);
    sum = carver.take<float>(splits * shape.heads);
  }
};

/// Bytes of one block of rows, of either dtype.
std::int64_t gather_bytes(const AttentionShape& shape) {
  return kRowBlock * shape.kv_heads * (shape.d_semantic() + shape.d_positional()) *
         static_cast<std::int64_t>(sizeof(float));
}

/// The biases of consecutive representatives: one for each KV head, or (stride 0) one for all; none
/// where `first` is null.
struct Bias {
  const float* first = nullptr;
  std::int64_t stride = 0;
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
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const std::int64_t length = runs[i].queries.rope.shape[0];
      for (std::int64_t row = 0; row < length; ++row) {
        QueryMemory query{};
        query.run = i;
        query.row = row;
        query.position = first[i] + row;
        const Visible seen = runs[i].cache->state().layout.visible(query.position);
        query.splits = split_count(seen.pairs(), length);
        for (std::int64_t split = 0; split < query.splits; ++split) {
          tasks_.push_back({queries_.size(), split});
        }
        queries_.push_back(query);
      }
    }
    Carver count;
    carve(count);
    Carver carver(context.workspace().prepare(count.used()));
    carve(carver);
  }

  void run() {
    const std::int64_t heads = shape_.heads;
    const auto count = static_cast<std::int64_t>(queries_.size());
    ThreadPool& pool = context_.pool();
    pool.run(count * heads,
             [&](std::int64_t task, int) { prepare(query(task / heads), task % heads); });
    pool.run(static_cast<std::int64_t>(tasks_.size()), [&](std::int64_t task, int worker) {
      attend_split(tasks_[static_cast<std::size_t>(task)], worker);
    });
    pool.run(count * heads,
             [&](std::int64_t task, int) { finish(query(task / heads), task % heads); });
  }

 private:
  QueryMemory& query(std::int64_t i) { return queries_[static_cast<std::size_t>(i)]; }

  void carve(Carver& carver) {
    for (QueryMemory& query : queries_) query.carve(carver, shape_);
    scratch_.clear();
    gathered_.clear();
    for (int i = 0; i < context_.threads(); ++i) {
      scratch_.push_back(carver.take<float>(rows_scratch_floats(
          shape_.heads_per_kv(), shape_.kv_heads, shape_.d_semantic(), shape_.d_positional())));
      gathered_.push_back(carver.take<std::byte>(gather_bytes(shape_)));
    }
  }

  /// One head's query in the cache's own space, times scale·log₂e.
  void prepare(const QueryMemory& query, std::int64_t head) {
    const Queries& q = runs_[query.run].queries;
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
    heads.out = query.out + at * shape_.d_semantic();
    heads.top = query.top + at;
    heads.sum = query.sum + at;
    heads.scratch = scratch_[static_cast<std::size_t>(worker)];
    rows_begin(heads);

    const Visible seen = state.layout.visible(query.position);
    const std::int64_t share = (seen.pairs() + query.splits - 1) / query.splits;
    Range rest{task.split * share, std::min(seen.pairs(), (task.split + 1) * share)};
    const Range groups = cut(rest, seen.groups);
    if (groups.size() > 0) {
      rows_attend(heads, span(state, state.view(state.groups, groups.begin, groups.size()),
                              bias(state, groups.begin)));
    }
    rest = {rest.begin - seen.groups, rest.end - seen.groups};
    attend_tokens(heads, state, seen, cut(rest, seen.sink.size() + seen.window.size()), worker);
  }

  static Range cut(const Range& range, std::int64_t count) {
    return {std::clamp<std::int64_t>(range.begin, 0, count),
            std::clamp<std::int64_t>(range.end, 0, count)};
  }

  /// Tokens [part.begin, part.end) of those the query sees, sink and window counted as one row of
  /// tokens: blocks fall where they would without a sink, so that nothing condensed is bit for bit
  /// dense attention.
  void attend_tokens(const RowHeads& heads, const Cache::State& state, const Visible& seen,
                     const Range& part, int worker) {
    const std::int64_t sink = seen.sink.size();
    const std::int64_t window = seen.window.begin - state.dropped - state.sink.rows();
    std::int64_t at = part.begin;
    while (at < part.end) {
      std::int64_t count = part.end - at;
      if (at >= sink) {
        rows_attend(heads, span(state, state.view(state.window, window + at - sink, count)));
      } else if (sink - at >= std::min(count, kRowBlock)) {
        if (count > sink - at) count = (sink - at) / kRowBlock * kRowBlock;
        rows_attend(heads, span(state, state.view(state.sink, at, count)));
      } else {
        count = std::min(count, kRowBlock);
        rows_attend(heads, gather(state, at, sink, window, count, worker));
      }
      at += count;
    }
  }

  /// The block in which sink and window meet, copied together.
  RowSpan gather(const Cache::State& state, std::int64_t first, std::int64_t sink,
                 std::int64_t window, std::int64_t count, int worker) const {
    std::byte* to = gathered_[static_cast<std::size_t>(worker)];
    const auto copy = [&](bool semantic) {
      const std::byte* begin = to;
      const std::size_t bytes =
          static_cast<std::size_t>(shape_.kv_heads *
                                   (semantic ? shape_.d_semantic() : shape_.d_positional())) *
          dtype_bytes(spec_.dtype);
      for (std::int64_t i = first; i < first + count; ++i, to += bytes) {
        const Entries row = i < sink ? state.view(state.sink, i, 1)
                                     : state.view(state.window, window + i - sink, 1);
        std::memcpy(to, (semantic ? row.semantic : row.positional).row(0, 0), bytes);
      }
      return begin;
    };
    RowSpan span;
    span.semantic = copy(true);
    span.positional = copy(false);
    span.semantic_stride = shape_.kv_heads * shape_.d_semantic();
    span.positional_stride = shape_.kv_heads * shape_.d_positional();
    span.dtype = spec_.dtype;
    span.count = count;
    return span;
  }

  Bias bias(const Cache::State& state, std::int64_t group) const {
    switch (spec_.settings.mass) {
      case Mass::score:
        return {reinterpret_cast<const float*>(state.bias.row(group)), shape_.kv_heads};
      case Mass::count:
        return {&log_group_, 0};
      case Mass::none:
        break;
    }
    return {};
  }

  RowSpan span(const Cache::State& state, const Entries& entries, const Bias& bias = {}) const {
    RowSpan span;
    span.semantic = entries.semantic.row(0, 0);
    span.positional = entries.positional.row(0, 0);
    span.semantic_stride = entries.semantic.stride[0];
    span.positional_stride = entries.positional.stride[0];
    span.dtype = state.spec.dtype;
    span.count = entries.semantic.shape[0];
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
  /// Queries and rows are multiplied as they are stored.
  const bool bf16_ = shape_.form == Form::gqa && runs_[0].queries.rope.dtype == DType::bf16 &&
                     rows_run_bf16(spec_.dtype, shape_.d_semantic(), shape_.d_positional());
  const float log_group_ = std::log(static_cast<float>(spec_.settings.group));
  std::vector<QueryMemory> queries_;
  std::vector<SplitTask> tasks_;
  std::vector<float*> scratch_;
  std::vector<std::byte*> gathered_;
};

}  // namespace

void attend_rows(Context& context, const LayerWeights& weights, std::span<const Run> runs,
                 std::span<const std::int64_t> first) {
  if (!runs.empty()) Decode(context, weights, runs, first).run();
}

std::size_t attend_rows_workspace_bytes(const LayerSpec& spec, std::int64_t run, int threads) {
  Carver carver;
  for (std::int64_t row = 0; row < run; ++row) {
    QueryMemory query{};
    query.splits = std::max<std::int64_t>(1, kMostSplits / run);
    query.carve(carver, spec.shape);
  }
  for (int i = 0; i < threads; ++i) {
    carver.take<float>(rows_scratch_floats(spec.shape.heads_per_kv(), spec.shape.kv_heads,
                                           spec.shape.d_semantic(), spec.shape.d_positional()));
    carver.take<std::byte>(gather_bytes(spec.shape));
  }
  return carver.used();
}

bool attend_prefers_rows(const AttentionShape& shape, std::int64_t run) {
  if (shape.form == Form::gqa) {
    // Laying keys out costs about as much as a few queries.
    constexpr std::int64_t kFew = 4;
    return run <= kFew;
  }
  // Absorbed, a pair costs 2·d_c + d_r products a head; per head d_n + d_r + d_v, and rebuilding
  // d_c·(d_n + d_v) once for the whole run.
  return run * (2 * shape.d_latent + shape.d_rope) <=
         run * (shape.d_nope + shape.d_rope + shape.d_value) +
             shape.d_latent * (shape.d_nope + shape.d_value);
}

void attend(Context& context, const LayerWeights& weights, std::span<const Run> runs,
            std::span<const std::int64_t> first) {
  std::vector<Run> few;
  std::vector<Run> many;
  std::vector<std::int64_t> few_first;
  std::vector<std::int64_t> many_first;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const bool rows =
        attend_prefers_rows(runs[i].cache->spec().shape, runs[i].queries.rope.shape[0]);
    (rows ? few : many).push_back(runs[i]);
    (rows ? few_first : many_first).push_back(first[i]);
  }
  attend_tiles(context, weights, many, many_first);
  attend_rows(context, weights, few, few_first);
}

}  // namespace lca
