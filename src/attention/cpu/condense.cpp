// Condensation, a batch of groups at a time (mechanism §3–§5).
//
// Shapes of one batch: G groups of g tokens. The summary queries of a group are averaged per head
// (G × H × d_score) and turned into score vectors (score_vectors.h); every stored token is scored
// with one dot product per vector.
//
// Bounds at DeepSeek-V2-Lite, n tokens, g = n_q = 16: n·H·192 values of queries read once, n·576 of
// entries; 2·n/16·H·128·512 operations to absorb W_uk, about 1.4 % of the prefill's at 16K.

#include "attention/condense.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/cache_state.h"
#include "attention/cpu/row_rotation.h"
#include "attention/cpu/score_vectors.h"
#include "attention/cpu/vector.h"
#include "core/context_state.h"
#include "core/workspace.h"
#include "ops/matmul.h"

namespace lca {

namespace {

using cpu::condense_batch_groups;
using cpu::group_weights;
using cpu::GroupWeights;
using cpu::pool_rows;
using cpu::PoolRow;
using cpu::ScoreVectors;
using cpu::vector_add_scaled;
using cpu::vector_angles;
using cpu::vector_rotate;
using cpu::vector_sum_rows;

/// One worker's scratch memory.
struct Scratch {
  ScoreVectors vectors;
  float* weight;   ///< one head of W_uk in float32
  float* pooled;   ///< [d_semantic + d_positional]: a representative before it is rounded
  float* rotated;  ///< [d_positional], then as many angles; with entry positions
  float* members;  ///< [g][d_semantic + d_positional]: what rows of 8 bits stand for

  Scratch(Carver& carver, const LayerSpec& spec)
      : vectors(carver, spec, condense_batch_groups(spec.settings)) {
    const AttentionShape& shape = spec.shape;
    weight = carver.take<float>(ScoreVectors::weight_floats(spec));
    pooled = carver.take<float>(shape.d_semantic() + shape.d_positional());
    const bool rotates = spec.settings.positions == Positions::entry;
    rotated = carver.take<float>(rotates ? 2 * shape.d_positional() : 0);
    const bool int8 = spec.storage == CacheStorage::int8;
    members = carver.take<float>(
        int8 ? spec.settings.group * (shape.d_semantic() + shape.d_positional()) : 0);
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
        count_(count) {}

  void condense() {
    // In `prompt` mode every group of a run is scored with the same queries.
    const bool shared = spec_.settings.summary == Summary::prompt;
    const std::int64_t summaries = shared ? 1 : count_;
    for (std::int64_t i = 0; i < summaries; ++i) average(i);
    scratch_.vectors.make(weights_.w_uk, 0, summaries, scratch_.weight);
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
      float* nope = scratch_.vectors.mean_nope(head, i);
      float* rope = scratch_.vectors.mean_rope(head, i);
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

  /// One KV head's members of group j: where they lie, or what rows of 8 bits stand for.
  Entries members(std::int64_t j, std::int64_t kv) const {
    const std::int64_t tokens = spec_.settings.group;
    const std::int64_t row = state_.layout.group_range(j).begin - state_.dropped;
    const CacheRows rows = Cache::State::stored(state_.window, row - state_.sink.rows(), tokens);
    if (!state_.format.int8()) {
      Entries group = state_.view(rows);
      for (ConstTensor* part : {&group.semantic, &group.positional}) {
        part->data = part->row(0, kv);
        part->shape[1] = 1;
      }
      return group;
    }
    float* semantic = scratch_.members;
    float* positional = semantic + tokens * shape_.d_semantic();
    for (std::int64_t k = 0; k < tokens; ++k) {
      state_.format.semantic_read(rows, k, kv, DType::f32, semantic + k * shape_.d_semantic());
      state_.format.positional_read(rows, k, kv, DType::f32,
                                    positional + k * shape_.d_positional());
    }
    return {ConstTensor(semantic, DType::f32, {tokens, 1, shape_.d_semantic()}),
            ConstTensor(positional, DType::f32, {tokens, 1, shape_.d_positional()})};
  }

  /// Members as they are.
  static auto member_rows(const ConstTensor& rows) {
    return [&rows](std::int64_t k) { return PoolRow{rows.row(k), rows.dtype, rows.shape[2]}; };
  }

  /// Members rotated to where representative j lies; a row is valid until the next is asked for.
  auto rotated_rows(const ConstTensor& rows, std::int64_t j) const {
    return [this, &rows, j](std::int64_t k) {
      const cpu::RowRotation rotation = row_rotation(state_);
      const std::int64_t width = shape_.d_positional();
      float* angles = scratch_.rotated + width;
      const std::int64_t token = state_.layout.group_range(j).begin + k;
      vector_angles(rotation, state_.layout.group_position(j) - token, angles);
      vector_rotate(rotation, angles, 1, rows.row(k), rows.dtype, width, scratch_.rotated);
      return PoolRow{scratch_.rotated, DType::f32, width};
    };
  }

  /// Scores group `first_ + i` for one KV head and writes its representative.
  void pool(std::int64_t i, std::int64_t summary, std::int64_t kv) {
    const std::int64_t j = first_ + i;
    const std::int64_t tokens = spec_.settings.group;
    const Entries group = members(j, kv);
    thread_local std::vector<float> alpha;  // kept from call to call
    alpha.resize(static_cast<std::size_t>(tokens));
    for (std::int64_t k = 0; k < tokens; ++k) {
      alpha[static_cast<std::size_t>(k)] =
          scratch_.vectors
              .score(summary, kv, group.semantic.row(k), group.semantic.dtype,
                     group.positional.row(k), group.positional.dtype)
              .value;
    }
    const GroupWeights weights = group_weights(alpha);
    const std::int64_t best = weights.best;

    float* semantic = scratch_.pooled;
    float* positional = semantic + shape_.d_semantic();
    const bool has_mass = spec_.settings.mass == Mass::score;
    const bool rotates = spec_.settings.positions == Positions::entry;
    pool_rows(spec_.settings.semantic_pool, member_rows(group.semantic), best, alpha, semantic);
    // The mass is that of the keys at token positions (mechanism §10).
    if (has_mass || !rotates) {
      pool_rows(spec_.settings.positional_pool, member_rows(group.positional), best, alpha,
                positional);
    }
    if (has_mass) {
      const float own =
          scratch_.vectors.score(summary, kv, semantic, DType::f32, positional, DType::f32).value;
      state_.groups.bias(j)[kv] = weights.top + std::log(weights.sum) - own;
    }
    if (rotates) {
      pool_rows(spec_.settings.positional_pool, rotated_rows(group.positional, j), best, alpha,
                positional);
    }
    float* scales = state_.format.int8() ? state_.groups.scales(j) : nullptr;
    state_.format.semantic_write(kv, semantic, state_.groups.semantic(j), scales);
    state_.format.positional_write(kv, positional, state_.groups.positional(j), scales);
  }

  const LayerWeights& weights_;
  const Run& run_;
  Cache::State& state_;
  const LayerSpec& spec_;
  const AttentionShape& shape_;
  const Scratch& scratch_;
  std::int64_t first_, count_;
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
    const std::int64_t batch = condense_batch_groups(state.spec.settings);
    for (std::int64_t j = before; j < after; j += batch) {
      tasks.push_back({i, j, std::min(batch, after - j)});
    }
    scratch_bytes =
        std::max(scratch_bytes, condense_workspace_bytes(state.spec, context.threads()));
  }
  if (tasks.empty()) return;
  if (runs[0].cache->spec().shape.form == Form::mla) matmul_prepare();
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
  std::vector<float> archived;
  for (const Task& t : tasks) {
    const Cache::State& state = runs[t.run].cache->state();
    if (state.archive == nullptr) continue;
    for (std::int64_t j = t.first; j < t.first + t.count; ++j) {
      const Range range = state.layout.group_range(j);
      const std::int64_t row = range.begin - state.dropped - state.sink.rows();
      const CacheRows rows = Cache::State::stored(state.window, row, range.size());
      state.archive->store(j, range.begin, state.values(rows, archived));
    }
  }
}

}  // namespace lca
