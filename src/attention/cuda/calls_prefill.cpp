// A chunk of some prompts: keys and values are rebuilt beside those still held, the groups that
// leave the window are condensed, and all queries of the chunk attend in one call.

#include <algorithm>

#include "attention/cuda/calls_parts.h"
#include "core/error.h"

namespace lca::cuda {
namespace {

ChunkSpace carve(const LayerSpec& spec, const ChunkRows& rows, DeviceCarver& carver) {
  const AttentionShape& shape = spec.shape;
  const std::int64_t heads = shape.heads;
  const std::int64_t kv = shape.kv_heads;
  const bool mla = shape.form == Form::mla;
  const std::int64_t summary = kv * summary_width(shape, spec.settings.head_reduce);
  ChunkSpace space;
  space.nope = carver.take<bf16>(mla ? rows.query * heads * shape.d_nope : 0);
  space.rope = carver.take<bf16>(rows.query * heads * shape.d_rope);
  space.exact_semantic = carver.take<bf16>(rows.exact * kv * shape.d_semantic());
  space.exact_positional = carver.take<bf16>(rows.exact * kv * shape.d_positional());
  space.out = carver.take<bf16>(rows.query * heads * shape.d_value);
  space.lse = carver.take<float>(rows.query * heads);
  space.group_semantic = carver.take<bf16>(rows.group * kv * shape.d_semantic());
  space.group_positional = carver.take<bf16>(rows.group * kv * shape.d_positional());
  space.group_bias = carver.take<float>(rows.group * kv);
  if (mla) {
    space.exact_nope = carver.take<bf16>(rows.exact * heads * shape.d_nope);
    space.exact_value = carver.take<bf16>(rows.exact * heads * shape.d_value);
    space.group_nope = carver.take<bf16>(rows.group * heads * shape.d_nope);
    space.group_value = carver.take<bf16>(rows.group * heads * shape.d_value);
    space.means_nope = carver.take<bf16>(rows.condensed * 2 * heads * shape.d_nope);
  }
  space.means_rope = carver.take<float>(rows.condensed * (mla ? heads * shape.d_rope : summary));
  space.summary = carver.take<float>(mla ? rows.condensed * summary : 0);
  space.new_semantic = carver.take<bf16>(rows.condensed * kv * shape.d_semantic());
  space.new_positional = carver.take<bf16>(rows.condensed * kv * shape.d_positional());
  space.new_bias = carver.take<float>(rows.condensed * kv);
  space.runs = carver.take<char>(
      static_cast<std::int64_t>(prefill_workspace_bytes(static_cast<std::size_t>(rows.runs))));
  return space;
}

}  // namespace

ChunkPlan chunk_plan(const CacheStore& store, int index, std::span<const ChunkRequest> requests) {
  const Layout layout(store.spec(index).settings);
  ChunkPlan plan;
  ChunkRows& rows = plan.rows;
  rows.runs = static_cast<std::int64_t>(requests.size());
  for (const ChunkRequest& request : requests) {
    ChunkPiece piece;
    piece.from = request.from;
    piece.to = request.to;
    piece.before = request.before;
    piece.after = piece.before + request.tokens;
    if (request.tokens < 1 || piece.after > store.limits().longest) {
      fail_input("a run of {} tokens after {} does not fit a cache of {}", request.tokens,
                 piece.before, store.limits().longest);
    }
    for (const ChunkPiece& other : plan.pieces) {
      if (other.to.slot == piece.to.slot) fail_input("a sequence is twice in one call");
    }
    const ChunkRows own = chunk_rows(store.spec(index), piece.before, piece.after,
                                     piece.before - request.queries_first);
    piece.groups_before = layout.groups(piece.before);
    piece.groups_after = layout.groups(piece.after);
    piece.gone = layout.dropped(piece.before);
    piece.recent = own.query - piece.tokens();
    piece.first_query_row = rows.query;
    piece.first_exact_row = rows.exact;
    piece.group_row = rows.group;
    rows.query += own.query;
    rows.exact += own.exact;
    rows.group += own.group;
    rows.condensed = std::max(rows.condensed, own.condensed);
    plan.pieces.push_back(piece);
  }
  return plan;
}

ChunkRows chunk_rows(const LayerSpec& spec, std::int64_t before, std::int64_t after,
                     std::int64_t queries_held) {
  const Settings& settings = spec.settings;
  const Layout layout(settings);
  ChunkRows rows;
  rows.runs = 1;
  rows.query = after - before;
  rows.exact = after - layout.dropped(before);
  rows.group = layout.groups(after);
  if (settings.method != MethodKind::lca) return rows;
  rows.query += std::clamp<std::int64_t>(queries_held, 0, settings.summary_queries - 1);
  rows.condensed =
      std::min(kGroupSlice, std::max(rows.group - layout.groups(before),
                                     std::min(after - before, settings.summary_queries)));
  return rows;
}

ChunkRows chunk_rows_most(const LayerSpec& spec, std::int64_t longest, std::int64_t tokens,
                          std::int64_t runs) {
  const Settings& settings = spec.settings;
  const Layout layout(settings);
  const bool condenses = settings.method == MethodKind::lca;
  // What a sequence holds before its chunk: everything but what its longest prefix dropped.
  const std::int64_t held = settings.method == MethodKind::dense
                                ? longest
                                : std::min(longest, layout.shortest_prefix(layout.group));
  ChunkRows rows;
  rows.runs = runs;
  rows.query = tokens + (condenses ? runs * std::min(settings.summary_queries - 1, longest) : 0);
  rows.exact = tokens + runs * held;
  rows.group = runs * layout.groups(longest);
  if (condenses) {
    rows.condensed = std::min(
        kGroupSlice, std::max({layout.groups(longest), std::min(tokens, settings.summary_queries),
                               std::int64_t{1}}));
  }
  return rows;
}

std::size_t chunk_space_bytes(const LayerSpec& spec, const ChunkRows& rows) {
  return carved_bytes([&](DeviceCarver& carver) { carve(spec, rows, carver); });
}

ChunkSpace chunk_space(const LayerSpec& spec, const ChunkRows& rows, void* memory) {
  DeviceCarver carver(memory);
  return carve(spec, rows, carver);
}

void chunk_run(const LayerView& layer, const ChunkPlan& plan, const ChunkSpace& space,
               const ProductSpace& products, const Queue& queue) {
  if (plan.pieces.empty()) return;
  const AttentionShape& shape = layer.spec.shape;
  const LayerParts parts(layer, space, products, queue);
  const auto nope_of = [&](const ChunkPiece& piece) {
    return layer.mla() ? space.nope + piece.first_query_row * shape.heads * shape.d_nope : nullptr;
  };
  const auto rope_of = [&](const ChunkPiece& piece) {
    return space.rope + piece.first_query_row * shape.heads * shape.d_rope;
  };
  const auto queries_of = [&](const ChunkPiece& piece) {
    return parts.query_rows(nope_of(piece), rope_of(piece), piece.before - piece.recent,
                            piece.recent + piece.tokens());
  };
  const auto rows_of = [&](const ChunkPiece& piece) {
    return TokenRows{space.exact_semantic + piece.first_exact_row * layer.semantic_values(),
                     space.exact_positional + piece.first_exact_row * layer.positional_values(),
                     piece.gone};
  };
  for (const ChunkPiece& piece : plan.pieces) {
    parts.queries_recall(piece.from, piece.before - piece.recent, piece.before, nope_of(piece),
                         rope_of(piece));
    parts.entries_recall(piece.from, piece.before, rows_of(piece));
    if (layer.condenses()) {
      const bool waits = layer.spec.settings.summary == Summary::prompt;
      parts.groups_condense(piece.to, rows_of(piece), queries_of(piece), piece.groups_before,
                            piece.groups_after, waits ? piece.after : 0);
      parts.groups_recall(piece);
    }
  }
  parts.attend(plan);
  for (const ChunkPiece& piece : plan.pieces) {
    parts.entries_keep(piece.from, piece.to, piece.before, piece.after, rows_of(piece));
    parts.queries_keep(piece.from, piece.to, piece.before, piece.after, queries_of(piece));
  }
}

void summaries_keep(const LayerView& layer, CachePlace to, const QueryRows& queries,
                    std::int64_t first_row, std::int64_t first, std::int64_t count,
                    const ChunkSpace& space, const ProductSpace& products, const Queue& queue) {
  const AttentionShape& shape = layer.spec.shape;
  const HeadReduce reduce = layer.spec.settings.head_reduce;
  const float* reduced = space.summary;
  if (layer.mla() && query_summary_pays(*queue.device, count) &&
      query_summary_fits(*queue.device, shape, reduce, nullptr, queries, 0, layer.w_uk)) {
    query_summary_each(shape, queries, first_row, count, layer.w_uk, space.summary, queue);
  } else {
    const QueryMeans means{space.means_nope, space.means_rope};
    query_each(shape, reduce, queries, first_row, count, means, queue);
    if (layer.mla()) {
      summary_absorb(shape, reduce, means, count, layer.w_uk, space.summary, products, queue);
    } else {
      reduced = means.rope;
    }
  }
  const std::int64_t values = layer.cache.summary_values;
  ring_visit(first, first + count, layer.spec.settings.summary_queries,
             [&](std::int64_t position, std::int64_t row, std::int64_t length) {
               Transfer::device_copy(reduced + (position - first) * values,
                                     static_cast<std::size_t>(length * values) * sizeof(float),
                                     layer.cache.summary_of(to) + row * values, queue);
             });
}

}  // namespace lca::cuda
