// One layer's rows from a cache, into representatives, and back.

#include "attention/cuda/calls_parts.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace lca::cuda {

QueryRows LayerParts::query_rows(const bf16* nope, const bf16* rope, std::int64_t first,
                                 std::int64_t rows) const {
  QueryRows queries;
  if (layer_.mla()) queries.nope = head_rows(nope, shape_.heads, shape_.d_nope);
  queries.rope = head_rows(rope, shape_.heads, shape_.d_rope);
  queries.first = first;
  queries.rows = rows;
  return queries;
}

void LayerParts::queries_recall(CachePlace from, std::int64_t first, std::int64_t end, bf16* nope,
                                bf16* rope) const {
  if (first >= end) return;
  const auto recall = [&](bf16* to, const bf16* ring, std::int64_t width) {
    const std::int64_t values = shape_.heads * width;
    ring_visit(first, end, layer_.cache.recent,
               [&](std::int64_t, std::int64_t row, std::int64_t count) {
                 transfer_.copy(ring + row * values, count * values, to);
                 to += count * values;
               });
  };
  if (layer_.mla()) recall(nope, layer_.cache.recent_nope_of(from), shape_.d_nope);
  recall(rope, layer_.cache.recent_rope_of(from), shape_.d_rope);
}

void LayerParts::entries_recall(CachePlace from, std::int64_t length, const TokenRows& to) const {
  const std::int64_t sink = std::min(layout_.sink, length);
  const auto recall = [&](bf16* rows, const bf16* held, std::int64_t values) {
    transfer_.copy(held, sink * values, rows);
    rows += sink * values;
    // Positions [sink + gone, length), as the ring counts them: from the sink's end.
    ring_visit(to.gone, length - sink, layer_.cache.ring,
               [&](std::int64_t, std::int64_t row, std::int64_t count) {
                 transfer_.copy(held + (sink + row) * values, count * values, rows);
                 rows += count * values;
               });
  };
  recall(to.semantic, layer_.cache.semantic_of(from), layer_.semantic_values());
  recall(to.positional, layer_.cache.positional_of(from), layer_.positional_values());
}

/// Reduced queries of `count` groups from `first` on, one for each: [count][KV][summary_width].
const float* LayerParts::summaries(std::int64_t prompt, const QueryRows& queries,
                                   std::int64_t first, std::int64_t count) const {
  const HeadReduce reduce = layer_.spec.settings.head_reduce;
  if (layer_.mla() && prompt == 0 && query_summary_pays(*queue_.device, count) &&
      query_summary_fits(*queue_.device, shape_, reduce, &layout_, queries, first, layer_.w_uk)) {
    query_summary(shape_, layout_, queries, first, count, layer_.w_uk, space_.summary, queue_);
    return space_.summary;
  }
  const QueryMeans means{space_.means_nope, space_.means_rope};
  query_means(shape_, reduce, layout_, prompt, queries, first, count, means, queue_);
  if (!layer_.mla()) return means.rope;
  summary_absorb(shape_, reduce, means, count, layer_.w_uk, space_.summary, products_, queue_);
  return space_.summary;
}

void LayerParts::groups_condense(CachePlace to, const TokenRows& rows, const QueryRows& queries,
                                 std::int64_t first, std::int64_t end, std::int64_t prompt) const {
  const bool one = prompt > 0;
  for (; first < end; first += kGroupSlice) {
    const std::int64_t count = std::min(kGroupSlice, end - first);
    // The first group begins at position sink + first·g; its tokens are rows in order.
    const std::int64_t row = layout_.group_range(first).begin - rows.gone;
    Condense job;
    job.shape = shape_;
    job.settings = layer_.spec.settings;
    job.scale = static_cast<float>(layer_.spec.softmax_scale());
    job.semantic = head_rows(rows.semantic + row * layer_.semantic_values(), shape_.kv_heads,
                             shape_.d_semantic());
    job.positional = head_rows(rows.positional + row * layer_.positional_values(), shape_.kv_heads,
                               shape_.d_positional());
    job.summary = summaries(prompt, queries, first, one ? 1 : count);
    job.one_summary = one;
    job.count = count;
    job.rotation = layer_.cache.rotation;
    job.first_group = first;
    job.out_semantic = out_rows(space_.new_semantic, shape_.kv_heads, shape_.d_semantic());
    job.out_positional = out_rows(space_.new_positional, shape_.kv_heads, shape_.d_positional());
    if (layer_.cache.pool.bias != nullptr) job.out_bias = space_.new_bias;
    condense(job, queue_);
    groups_append(shape_, layer_.cache.pool, layer_.cache.pages_of(to), first, count,
                  job.out_semantic.data, job.out_positional.data, job.out_bias, queue_);
  }
}

void LayerParts::groups_recall(const ChunkPiece& piece) const {
  float* const bias = layer_.cache.pool.bias == nullptr
                          ? nullptr
                          : space_.group_bias + piece.group_row * shape_.kv_heads;
  groups_gather(shape_, layer_.cache.pool, layer_.cache.pages_of(piece.to), 0, piece.groups_after,
                space_.group_semantic + piece.group_row * layer_.semantic_values(),
                space_.group_positional + piece.group_row * layer_.positional_values(), bias,
                queue_);
}

/// Keys without position and values of every head from latents.
void LayerParts::keys_rebuild(const bf16* latents, std::int64_t rows, bf16* nope,
                              bf16* value) const {
  if (rows == 0) return;
  Product up;
  up.a = latents;
  up.rows = rows;
  up.inner = up.a_stride = up.b_stride = shape_.d_latent;
  up.b = layer_.w_uk;
  up.c = nope;
  up.columns = up.c_stride = shape_.heads * shape_.d_nope;
  // W_uk is [H·d_n][d_c], its transpose what the product asks for.
  products_.multiply(up, queue_);
  up.b = layer_.w_uv;
  up.c = value;
  up.columns = up.c_stride = shape_.heads * shape_.d_value;
  products_.multiply(up, queue_);
}

void LayerParts::attend(const ChunkPlan& plan) const {
  const std::int64_t heads = shape_.heads;
  const std::int64_t kv = shape_.kv_heads;
  const Settings& settings = layer_.spec.settings;
  Prefill problem;
  problem.heads = static_cast<int>(heads);
  problem.kv_heads = static_cast<int>(kv);
  problem.form = shape_.form;
  problem.layout = layout_;
  problem.rotation = layer_.cache.rotation;
  problem.scale = static_cast<float>(layer_.spec.softmax_scale());
  problem.q_rope = head_rows(space_.rope, heads, shape_.d_rope);
  problem.query_rows = plan.rows.query;
  problem.exact.rows = plan.rows.exact;
  problem.groups.rows = plan.rows.group;
  if (layer_.mla()) {
    keys_rebuild(space_.exact_semantic, plan.rows.exact, space_.exact_nope, space_.exact_value);
    keys_rebuild(space_.group_semantic, plan.rows.group, space_.group_nope, space_.group_value);
    const auto shared = [&](const bf16* data) {
      return HeadRows{data, shape_.d_rope, 0, static_cast<int>(shape_.d_rope)};
    };
    problem.q_nope = head_rows(space_.nope, heads, shape_.d_nope);
    problem.exact.nope = head_rows(space_.exact_nope, heads, shape_.d_nope);
    problem.exact.rope = shared(space_.exact_positional);
    problem.exact.value = head_rows(space_.exact_value, heads, shape_.d_value);
    problem.groups.nope = head_rows(space_.group_nope, heads, shape_.d_nope);
    problem.groups.rope = shared(space_.group_positional);
    problem.groups.value = head_rows(space_.group_value, heads, shape_.d_value);
  } else {
    problem.exact.rope = head_rows(space_.exact_positional, kv, shape_.d_rope);
    problem.exact.value = head_rows(space_.exact_semantic, kv, shape_.d_value);
    problem.groups.rope = head_rows(space_.group_positional, kv, shape_.d_rope);
    problem.groups.value = head_rows(space_.group_semantic, kv, shape_.d_value);
  }
  if (layer_.cache.pool.bias != nullptr) problem.bias = space_.group_bias;
  if (settings.mass == Mass::count) {
    problem.bias_all = static_cast<float>(std::log(static_cast<double>(layout_.group)));
  }
  problem.out = space_.out;
  problem.lse = space_.lse;

  std::vector<PrefillRun> runs;
  for (const ChunkPiece& piece : plan.pieces) {
    runs.push_back({piece.query_row(), piece.before, piece.tokens(), piece.first_exact_row,
                    piece.gone, piece.group_row});
  }
  prefill(problem, runs, space_.runs, layer_.kernels, queue_);
}

void LayerParts::entries_keep(CachePlace from, CachePlace to, std::int64_t before,
                              std::int64_t after, const TokenRows& rows) const {
  // In another window everything has to be written, in the same one what is new.
  const std::int64_t held = same_rows(from, to) ? before : 0;
  const auto keep = [&](const bf16* values_from, bf16* values_to, std::int64_t values) {
    const std::int64_t sink = std::min(layout_.sink, after);
    if (sink > held) {
      transfer_.copy(values_from + held * values, (sink - held) * values,
                     values_to + held * values);
    }
    // Counted from the sink's end.
    const std::int64_t first = std::max({layout_.dropped(after), held - sink, std::int64_t{0}});
    ring_visit(first, after - sink, layer_.cache.ring,
               [&](std::int64_t position, std::int64_t row, std::int64_t count) {
                 transfer_.copy(values_from + (sink + position - rows.gone) * values,
                                count * values, values_to + (sink + row) * values);
               });
  };
  keep(rows.semantic, layer_.cache.semantic_of(to), layer_.semantic_values());
  keep(rows.positional, layer_.cache.positional_of(to), layer_.positional_values());
}

void LayerParts::queries_keep(CachePlace from, CachePlace to, std::int64_t before,
                              std::int64_t after, const QueryRows& queries) const {
  if (!layer_.condenses()) return;
  const LayerCache& cache = layer_.cache;
  const bool moves = from.window != to.window;
  ring_visit(std::max(moves ? queries.first : before, after - cache.recent), after, cache.recent,
             [&](std::int64_t position, std::int64_t row, std::int64_t count) {
               const auto keep = [&](const bf16* rows, bf16* ring, std::int64_t width) {
                 const std::int64_t values = shape_.heads * width;
                 transfer_.copy(rows + (position - queries.first) * values, count * values,
                                ring + row * values);
               };
               if (layer_.mla()) keep(queries.nope.data, cache.recent_nope_of(to), shape_.d_nope);
               keep(queries.rope.data, cache.recent_rope_of(to), shape_.d_rope);
             });
  const std::int64_t oldest = std::max<std::int64_t>(0, after - cache.summary_rows);
  if (moves) {
    ring_visit(oldest, before, cache.summary_rows,
               [&](std::int64_t, std::int64_t row, std::int64_t count) {
                 transfer_.copy(cache.summary_of(from) + row * cache.summary_values,
                                count * cache.summary_values,
                                cache.summary_of(to) + row * cache.summary_values);
               });
  }
  for (std::int64_t first = std::max(before, oldest); first < after; first += kGroupSlice) {
    summaries_keep(layer_, to, queries, first - queries.first, first,
                   std::min(kGroupSlice, after - first), space_, products_, queue_);
  }
}

}  // namespace lca::cuda
