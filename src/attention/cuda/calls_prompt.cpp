// A prompt whose groups wait for its end, layer by layer: entries of all chunks are gathered, then
// condensed with the summary of the last queries, then attended to chunk by chunk.

#include <algorithm>

#include "attention/cuda/calls_parts.h"
#include "attention/settings_kind.h"
#include "core/error.h"

namespace lca::cuda {
namespace {

PromptRows carve_prompt(const LayerSpec& spec, const PromptPlan& plan, DeviceCarver& carver) {
  const AttentionShape& shape = spec.shape;
  const std::int64_t kv = shape.kv_heads;
  PromptRows rows;
  rows.semantic = carver.take<bf16>(plan.rows() * kv * shape.d_semantic());
  rows.positional = carver.take<bf16>(plan.rows() * kv * shape.d_positional());
  if (shape.form == Form::mla) {
    rows.tail_nope = carver.take<bf16>(plan.tail * shape.heads * shape.d_nope);
  }
  rows.tail_rope = carver.take<bf16>(plan.tail * shape.heads * shape.d_rope);
  return rows;
}

TokenRows token_rows(const PromptPlan& plan, const PromptRows& rows) {
  return {rows.semantic, rows.positional, plan.gone};
}

}  // namespace

PromptPlan prompt_plan(const LayerSpec& spec, const ChunkRequest& request) {
  const Settings& settings = spec.settings;
  if (!summary_waits(settings)) fail_input("this layer does not wait for a prompt's end");
  const Layout layout(settings);
  PromptPlan plan;
  plan.from = request.from;
  plan.to = request.to;
  plan.before = request.before;
  plan.after = request.before + request.tokens;
  plan.sink = std::min(layout.sink, plan.after);
  plan.gone = layout.dropped(plan.before);
  plan.tail = std::min(settings.summary_queries, plan.after - request.queries_first);
  return plan;
}

std::size_t prompt_rows_bytes(const LayerSpec& spec, const PromptPlan& plan) {
  return carved_bytes([&](DeviceCarver& carver) { carve_prompt(spec, plan, carver); });
}

PromptRows prompt_rows(const LayerSpec& spec, const PromptPlan& plan, void* memory) {
  DeviceCarver carver(memory);
  return carve_prompt(spec, plan, carver);
}

void prompt_begin(const LayerView& layer, const PromptPlan& plan, const PromptRows& rows,
                  const Queue& queue) {
  const ChunkSpace no_space;
  const ProductSpace no_products;
  const LayerParts parts(layer, no_space, no_products, queue);
  parts.entries_recall(plan.from, plan.before, token_rows(plan, rows));
  parts.queries_recall(plan.from, std::min(plan.tail_first(), plan.before), plan.before,
                       rows.tail_nope, rows.tail_rope);
}

void prompt_condense(const LayerView& layer, const PromptPlan& plan, const PromptRows& rows,
                     const ChunkSpace& space, const ProductSpace& products, const Queue& queue) {
  const LayerParts parts(layer, space, products, queue);
  const Layout layout = layer.layout();
  parts.groups_condense(
      plan.to, token_rows(plan, rows),
      parts.query_rows(rows.tail_nope, rows.tail_rope, plan.tail_first(), plan.tail),
      layout.groups(plan.before), layout.groups(plan.after), plan.after);
}

ChunkRows prompt_chunk_rows(const LayerSpec& spec, const PromptPlan& plan, std::int64_t first,
                            std::int64_t count) {
  // Queries before the chunk are not needed any more.
  ChunkRows rows = chunk_rows(spec, plan.before + first, plan.before + first + count, 0);
  // Scratch for prompt_condense and prompt_end, whatever the chunk's own size.
  const Layout layout(spec.settings);
  const std::int64_t groups = layout.groups(plan.after) - layout.groups(plan.before);
  rows.condensed = std::max(rows.condensed, std::min(kGroupSlice, std::max(groups, plan.tail)));
  return rows;
}

ChunkPlan prompt_chunk(const CacheStore& store, int index, const PromptPlan& plan,
                       std::int64_t first, std::int64_t count) {
  // As a chunk after the tokens before it.
  const ChunkRequest request{plan.to, plan.to, plan.before + first, count, plan.before + first};
  ChunkPlan chunk = chunk_plan(store, index, {&request, 1});
  chunk.rows = prompt_chunk_rows(store.spec(index), plan, first, count);
  return chunk;
}

void prompt_attend(const LayerView& layer, const PromptPlan& plan, const PromptRows& rows,
                   const ChunkPlan& chunk, const ChunkSpace& space, const ProductSpace& products,
                   const Queue& queue) {
  const LayerParts parts(layer, space, products, queue);
  const Transfer transfer(queue);
  const ChunkPiece& piece = chunk.pieces.front();
  // The sink, and every position after it that the chunk's queries may see.
  const std::int64_t sink = std::min(plan.sink, piece.after);
  const auto copy = [&](const bf16* from, bf16* to, std::int64_t values) {
    transfer.copy(from, sink * values, to);
    transfer.copy(from + plan.row(sink + piece.gone) * values,
                  (piece.after - sink - piece.gone) * values, to + sink * values);
  };
  copy(rows.semantic, space.exact_semantic, layer.semantic_values());
  copy(rows.positional, space.exact_positional, layer.positional_values());
  parts.groups_recall(piece);
  parts.attend(chunk);
}

void prompt_end(const LayerView& layer, const PromptPlan& plan, const PromptRows& rows,
                const ChunkSpace& space, const ProductSpace& products, const Queue& queue) {
  const LayerParts parts(layer, space, products, queue);
  parts.entries_keep(plan.from, plan.to, plan.before, plan.after, token_rows(plan, rows));
  parts.queries_keep(
      plan.from, plan.to, plan.before, plan.after,
      parts.query_rows(rows.tail_nope, rows.tail_rope, plan.tail_first(), plan.tail));
}

}  // namespace lca::cuda
