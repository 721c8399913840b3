// Condensation, a batch of groups at a time (mechanism §3–§5).
//
// Shapes of one batch: G groups of g tokens. The summary queries of a group are averaged per head
// (G × H × d_score), turned into score vectors against what the cache stores, and every stored
// token is scored with one dot product per score vector.
//   MLA, mean or sum: one vector of d_c + d_r for all heads (W_ukᵀ applied to the mean query);
//   MLA, max: one such vector per head. GQA: one of d per KV head, or per query head for max.
//
// Bounds at DeepSeek-V2-Lite, n tokens, g = n_q = 16: n·H·192 values of queries read once, n·576 of
// entries; 2·n/16·H·128·512 operations to absorb W_uk, about 1.4 % of the prefill's at 16K.

#include "attention/condense.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/cache_state.h"
#include "attention/cpu/row_rotation.h"
#include "attention/cpu/vector.h"
#include "core/context_state.h"
#include "core/workspace.h"
#include "ops/matmul.h"

namespace lca {

namespace {

using cpu::vector_add_scaled;
using cpu::vector_angles;
using cpu::vector_dot;
using cpu::vector_max;
using cpu::vector_rotate;
using cpu::vector_store;
using cpu::vector_sum_rows;
using cpu::vector_widen;

/// Groups in a batch: enough rows for a good matrix product, few enough to stay in the cache.
std::int64_t batch_groups(const Settings& settings) {
  constexpr std::int64_t kMost = 64;
  constexpr std::int64_t kTokens = 4096;
  return std::clamp<std::int64_t>(kTokens / settings.group, 1, kMost);
}

/// Score vectors per KV head: one where heads are summed, else one per query head.
std::int64_t score_vectors(const LayerSpec& spec) {
  return spec.settings.head_reduce == HeadReduce::max ? spec.shape.heads_per_kv() : 1;
}

/// One worker's scratch memory.
struct Scratch {
  float* mean_nope;   ///< [H][G][d_n], MLA
  float* mean_rope;   ///< [G][H][d_rope]
  float* semantic;    ///< [vectors][G][d_c], MLA: score vectors against latents
  float* positional;  ///< [G][KV][vectors][d_rope]: score vectors against keys
  float* weight;      ///< [d_n][d_c], one head of W_uk in float32
  float* pooled;      ///< [d_semantic + d_positional]: a representative before it is rounded
  float* rotated;     ///< [d_positional], then as many angles; with entry positions

  Scratch(Carver& carver, const LayerSpec& spec) {
    const AttentionShape& shape = spec.shape;
    const std::int64_t groups = batch_groups(spec.settings);
    const std::int64_t vectors = score_vectors(spec);
    mean_nope = carver.take<float>(shape.heads * groups * shape.d_nope);
    mean_rope = carver.take<float>(groups * shape.heads * shape.d_rope);
    semantic = carver.take<float>(vectors * groups * shape.d_latent);
    positional = carver.take<float>(groups * shape.kv_heads * vectors * shape.d_rope);
    weight = carver.take<float>(shape.d_nope * shape.d_latent);
    pooled = carver.take<float>(shape.d_semantic() + shape.d_positional());
    const bool rotates = spec.settings.positions == Positions::entry;
    rotated = carver.take<float>(rotates ? 2 * shape.d_positional() : 0);
  }
};

/// One batch of groups of one run.
class Batch {
 public:
  Batch(const LayerWeights& weights, const Run& run, const Scratch& scratch, std::int64_t first,
        std::int64_t count)
      : weights_(weights),
        run_(run),
        state_(run.cache->state()),
        spec_(state_.spec),
        shape_(spec_.shape),
        scratch_(scratch),
        first_(first),
        count_(count),
        vectors_(score_vectors(spec_)) {}

  void condense() {
    // In `prompt` mode every group of a run is scored with the same queries.
    const bool shared = spec_.settings.summary == Summary::prompt;
    summaries_ = shared ? 1 : count_;
    for (std::int64_t i = 0; i < summaries_; ++i) average(i);
    if (shape_.form == Form::mla) absorb();
    reduce_positional();
    for (std::int64_t i = 0; i < count_; ++i) {
      for (std::int64_t kv = 0; kv < shape_.kv_heads; ++kv) pool(i, shared ? 0 : i, kv);
    }
  }

 private:
  /// The mean query of group `first_ + i`, per head.
  void average(std::int64_t i) {
    const std::int64_t prompt =
        spec_.settings.summary == Summary::prompt ? state_.length : std::int64_t{0};
    const Range range = state_.layout.summary_range(first_ + i, prompt);
    // Queries of this run are in the caller's memory, earlier ones in the cache.
    const Queries& run = run_.queries;
    const std::int64_t run_first = state_.length - run.rope.shape[0];
    const std::int64_t kept_first = run_first - state_.queries.rows();
    const std::int64_t split = std::clamp(run_first, range.begin, range.end);
    const float share = 1.0F / static_cast<float>(range.size());
    for (std::int64_t head = 0; head < shape_.heads; ++head) {
      float* nope = scratch_.mean_nope + (head * summaries_ + i) * shape_.d_nope;
      float* rope = scratch_.mean_rope + (i * shape_.heads + head) * shape_.d_rope;
      if (shape_.d_nope > 0) {
        vector_sum_rows(share, run.nope.row(split - run_first, head), run.nope.dtype,
                        run.nope.stride[0], range.end - split, shape_.d_nope, nope);
      }
      vector_sum_rows(share, run.rope.row(split - run_first, head), run.rope.dtype,
                      run.rope.stride[0], range.end - split, shape_.d_rope, rope);
      for (std::int64_t t = range.begin; t < split; ++t) {
        const float* kept = reinterpret_cast<const float*>(state_.queries.row(t - kept_first)) +
                            head * shape_.d_score();
        vector_add_scaled(share, kept, DType::f32, shape_.d_nope, nope);
        vector_add_scaled(share, kept + shape_.d_nope, DType::f32, shape_.d_rope, rope);
      }
    }
  }

  /// MLA: W_ukᵀ of the mean queries, summed over heads or one per head.
  void absorb() {
    for (std::int64_t head = 0; head < shape_.heads; ++head) {
      const ConstTensor& w = weights_.w_uk;
      const auto* matrix = static_cast<const float*>(w.row(head));
      std::int64_t stride = w.stride[1];
      if (w.dtype != DType::f32) {
        for (std::int64_t k = 0; k < shape_.d_nope; ++k) {
          vector_widen(w.row(head, k), w.dtype, shape_.d_latent,
                       scratch_.weight + k * shape_.d_latent);
        }
        matrix = scratch_.weight;
        stride = shape_.d_latent;
      }
      const bool summed = vectors_ == 1;
      matmul_nn({scratch_.mean_nope + head * summaries_ * shape_.d_nope, summaries_, shape_.d_nope,
                 shape_.d_nope},
                {matrix, shape_.d_nope, shape_.d_latent, stride},
                scratch_.semantic + (summed ? 0 : head * summaries_ * shape_.d_latent),
                shape_.d_latent, summed && head > 0);
    }
  }

  /// The score vectors against keys: mean queries summed over the heads of a KV head, or each.
  void reduce_positional() {
    const std::int64_t d_rope = shape_.d_rope;
    const std::int64_t sharing = shape_.heads_per_kv();
    for (std::int64_t i = 0; i < summaries_; ++i) {
      for (std::int64_t head = 0; head < shape_.heads; ++head) {
        const std::int64_t kv = head / sharing;
        const std::int64_t vector = vectors_ == 1 ? 0 : head % sharing;
        float* to = scratch_.positional + ((i * shape_.kv_heads + kv) * vectors_ + vector) * d_rope;
        if (vectors_ > 1 || head % sharing == 0) std::fill_n(to, d_rope, 0.0F);
        vector_add_scaled(1, scratch_.mean_rope + (i * shape_.heads + head) * d_rope, DType::f32,
                          d_rope, to);
      }
    }
  }

  /// The reduced score of one entry.
  float score(std::int64_t summary, std::int64_t kv, const void* semantic, const void* positional,
              DType dtype) const {
    float best = -std::numeric_limits<float>::infinity();
    for (std::int64_t vector = 0; vector < vectors_; ++vector) {
      const float* pos = scratch_.positional +
                         ((summary * shape_.kv_heads + kv) * vectors_ + vector) * shape_.d_rope;
      float sum = vector_dot(pos, positional, dtype, shape_.d_rope);
      if (shape_.form == Form::mla) {
        const float* sem = scratch_.semantic + (vector * summaries_ + summary) * shape_.d_latent;
        sum += vector_dot(sem, semantic, dtype, shape_.d_latent);
      }
      best = std::max(best, sum);
    }
    const double share = spec_.settings.head_reduce == HeadReduce::mean
                             ? 1.0 / static_cast<double>(shape_.heads_per_kv())
                             : 1.0;
    return best * static_cast<float>(spec_.softmax_scale() * share);
  }

  /// One member's row of one KV head.
  struct Member {
    const void* data;
    DType dtype;
    std::int64_t width;
  };

  /// Members as they are stored.
  static auto stored_rows(const ConstTensor& rows, std::int64_t kv) {
    return [&rows, kv](std::int64_t k) {
      return Member{rows.row(k, kv), rows.dtype, rows.shape[2]};
    };
  }

  /// Members rotated to where representative j lies; a row is valid until the next is asked for.
  auto rotated_rows(const ConstTensor& rows, std::int64_t kv, std::int64_t j) const {
    return [this, &rows, kv, j](std::int64_t k) {
      const cpu::RowRotation rotation = row_rotation(state_);
      const std::int64_t width = shape_.d_positional();
      float* angles = scratch_.rotated + width;
      const std::int64_t token = state_.layout.group_range(j).begin + k;
      vector_angles(rotation, state_.layout.group_position(j) - token, angles);
      vector_rotate(rotation, angles, 1, rows.row(k, kv), rows.dtype, width, scratch_.rotated);
      return Member{scratch_.rotated, DType::f32, width};
    };
  }

  /// Scores group `first_ + i` for one KV head and writes its representative.
  void pool(std::int64_t i, std::int64_t summary, std::int64_t kv) {
    const std::int64_t j = first_ + i;
    const std::int64_t tokens = spec_.settings.group;
    const std::int64_t row = state_.layout.group_range(j).begin - state_.dropped;
    const Entries group = state_.view(state_.window, row - state_.sink.rows(), tokens);
    thread_local std::vector<float> alpha;  // kept from call to call
    alpha.resize(static_cast<std::size_t>(tokens));
    std::int64_t best = 0;
    for (std::int64_t k = 0; k < tokens; ++k) {
      alpha[static_cast<std::size_t>(k)] =
          score(summary, kv, group.semantic.row(k, kv), group.positional.row(k, kv), spec_.dtype);
      if (alpha[static_cast<std::size_t>(k)] > alpha[static_cast<std::size_t>(best)]) best = k;
    }
    const float top = alpha[static_cast<std::size_t>(best)];
    float sum = 0;
    for (float& a : alpha) {
      a = std::exp(a - top);
      sum += a;
    }
    for (float& a : alpha) a /= sum;

    float* semantic = scratch_.pooled;
    float* positional = semantic + shape_.d_semantic();
    const bool has_mass = spec_.settings.mass == Mass::score;
    const bool rotates = spec_.settings.positions == Positions::entry;
    pool_rows(spec_.settings.semantic_pool, stored_rows(group.semantic, kv), best, alpha, semantic);
    // The mass is that of the keys at token positions (mechanism §10).
    if (has_mass || !rotates) {
      pool_rows(spec_.settings.positional_pool, stored_rows(group.positional, kv), best, alpha,
                positional);
    }
    if (has_mass) {
      const float own = score(summary, kv, semantic, positional, DType::f32);
      state_.groups.bias(j)[kv] = top + std::log(sum) - own;
    }
    if (rotates) {
      pool_rows(spec_.settings.positional_pool, rotated_rows(group.positional, kv, j), best, alpha,
                positional);
    }
    store(semantic, shape_.d_semantic(), kv, state_.groups.semantic(j));
    store(positional, shape_.d_positional(), kv, state_.groups.positional(j));
  }

  void store(const float* pooled, std::int64_t width, std::int64_t kv, std::byte* row) const {
    vector_store(pooled, width, spec_.dtype,
                 row + kv * width * static_cast<std::int64_t>(dtype_bytes(spec_.dtype)));
  }

  /// Pools the rows that member(k) hands out.
  template <typename Rows>
  static void pool_rows(Pool kind, const Rows& member, std::int64_t best,
                        std::span<const float> alpha, float* pooled) {
    if (kind == Pool::select || kind == Pool::max) {
      const Member row = member(kind == Pool::select ? best : 0);
      vector_widen(row.data, row.dtype, row.width, pooled);
    } else {
      std::fill_n(pooled, member(0).width, 0.0F);
    }
    if (kind == Pool::select) return;
    const float share = 1.0F / static_cast<float>(alpha.size());
    for (std::size_t k = 0; k < alpha.size(); ++k) {
      const Member row = member(static_cast<std::int64_t>(k));
      if (kind == Pool::max) {
        vector_max(row.data, row.dtype, row.width, pooled);
      } else {
        vector_add_scaled(kind == Pool::mean ? share : alpha[k], row.data, row.dtype, row.width,
                          pooled);
      }
    }
  }

  const LayerWeights& weights_;
  const Run& run_;
  Cache::State& state_;
  const LayerSpec& spec_;
  const AttentionShape& shape_;
  const Scratch& scratch_;
  std::int64_t first_, count_, vectors_, summaries_ = 0;
};

}  // namespace

std::size_t condense_workspace_bytes(const LayerSpec& spec, int threads) {
  Carver carver;
  for (int worker = 0; worker < threads; ++worker) Scratch(carver, spec);
  return carver.used();
}

void condense(Context& context, const LayerWeights& weights, std::span<const Run> runs) {
  struct Task {
    std::size_t run;
    std::int64_t first, count;
  };
  thread_local std::vector<Task> tasks;  // kept from call to call: no memory is taken in decoding
  tasks.clear();
  std::size_t scratch_bytes = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Cache::State& state = runs[i].cache->state();
    const std::int64_t before = state.groups.rows();
    const std::int64_t after = state.layout.groups(state.length);
    if (after <= before) continue;
    state.groups.grow(after - before);
    const std::int64_t batch = batch_groups(state.spec.settings);
    for (std::int64_t j = before; j < after; j += batch) {
      tasks.push_back({i, j, std::min(batch, after - j)});
    }
    scratch_bytes =
        std::max(scratch_bytes, condense_workspace_bytes(state.spec, context.threads()));
  }
  if (tasks.empty()) return;
  std::byte* block = context.state().workspace.prepare(scratch_bytes);
  const std::size_t share = scratch_bytes / static_cast<std::size_t>(context.threads());
  const std::span<const Task> shared(tasks);  // a worker would see a list of its own
  context.state().pool.run(std::ssize(shared), [&](std::int64_t task, int worker) {
    const Task& t = shared[static_cast<std::size_t>(task)];
    const Run& run = runs[t.run];
    Carver carver(block + share * static_cast<std::size_t>(worker));
    const Scratch scratch(carver, run.cache->spec());
    Batch(weights, run, scratch, t.first, t.count).condense();
  });
  for (const Task& t : tasks) {
    const Cache::State& state = runs[t.run].cache->state();
    if (state.archive == nullptr) continue;
    for (std::int64_t j = t.first; j < t.first + t.count; ++j) {
      const Range range = state.layout.group_range(j);
      const std::int64_t row = range.begin - state.dropped - state.sink.rows();
      state.archive->store(j, range.begin, state.view(state.window, row, range.size()));
    }
  }
}

}  // namespace lca
