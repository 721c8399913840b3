#include <lca/method.h>

#include <algorithm>
#include <array>

#include "attention/attend.h"
#include "attention/cache_state.h"
#include "attention/condense.h"
#include "core/context_state.h"
#include "core/error.h"
#include "methods/methods.h"

namespace lca {

void Method::forward(Context& context, const LayerWeights& weights,
                     std::span<const Run> runs) const {
  const ContextUse use(context);
  // A large batch is split into pieces, so that their positions fit on the stack.
  constexpr std::size_t kPiece = 32;
  std::array<std::int64_t, kPiece> first{};
  for (std::size_t at = 0; at < runs.size(); at += kPiece) {
    const auto piece = runs.subspan(at, std::min(kPiece, runs.size() - at));
    for (std::size_t i = 0; i < piece.size(); ++i) {
      first[i] = piece[i].cache == nullptr ? 0 : piece[i].cache->length();
    }
    take(context, weights, piece);
    attend(context, weights, piece, std::span(first).first(piece.size()));
    for (const Run& run : piece) release(*run.cache);
  }
}

const Method& method_for(MethodKind kind) {
  switch (kind) {
    case MethodKind::dense:
      return method_dense();
    case MethodKind::window:
      return method_window();
    case MethodKind::lca:
      break;
  }
  return method_lca();
}

std::size_t attention_workspace_bytes(const LayerSpec& spec, std::int64_t length, std::int64_t run,
                                      int threads) {
  const Layout layout(spec.settings);
  const std::int64_t before = length - run;
  const std::int64_t rows = before - layout.dropped(before) + run;
  const std::size_t condensing =
      spec.settings.method == MethodKind::lca ? condense_workspace_bytes(spec, threads) : 0;
  const std::size_t attending =
      attend_prefers_rows(spec.shape, run)
          ? attend_rows_workspace_bytes(spec, run, threads)
          : attend_tiles_workspace_bytes(spec, rows, layout.groups(length), threads);
  return std::max(condensing, attending);
}

namespace {

void check_tensor(const ConstTensor& tensor, const char* name, std::int64_t rows,
                  std::int64_t heads, std::int64_t width) {
  if (tensor.empty() || tensor.shape != std::array<std::int64_t, 3>{rows, heads, width} ||
      tensor.stride[2] != 1) {
    fail_input("`{}` must be a [{},{},{}] view with contiguous rows; it is [{},{},{}]", name, rows,
               heads, width, tensor.shape[0], tensor.shape[1], tensor.shape[2]);
  }
}

void check_queries(const AttentionShape& shape, const Queries& queries) {
  const std::int64_t rows = queries.rope.shape[0];
  if (rows < 1) fail_input("a run needs at least one query");
  check_tensor(queries.rope, "queries.rope", rows, shape.heads, shape.d_rope);
  if (shape.form == Form::mla) {
    check_tensor(queries.nope, "queries.nope", rows, shape.heads, shape.d_nope);
  }
}

}  // namespace

void runs_check(const LayerWeights& weights, std::span<const Run> runs, MethodKind method) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].cache == nullptr) fail_input("run {} of the batch has no cache", i);
    const LayerSpec& spec = runs[i].cache->spec();
    if (spec.settings.method != method) fail_input("run {} has a cache of another method", i);
    if (!(spec == runs[0].cache->spec())) {
      fail_input("runs 0 and {} of one batch belong to different layers", i);
    }
    for (std::size_t other = 0; other < i; ++other) {
      if (runs[other].cache == runs[i].cache) {
        fail_input("runs {} and {} of one batch share a cache", other, i);
      }
    }
    check_queries(spec.shape, runs[i].queries);
  }
  if (runs.empty() || runs[0].cache->spec().shape.form != Form::mla) return;
  const AttentionShape& shape = runs[0].cache->spec().shape;
  check_tensor(weights.w_uk, "w_uk", shape.heads, shape.d_nope, shape.d_latent);
  check_tensor(weights.w_uv, "w_uv", shape.heads, shape.d_value, shape.d_latent);
}

void runs_append(Context& context, std::span<const Run> runs) {
  for (const Run& run : runs) {
    const AttentionShape& shape = run.cache->spec().shape;
    const std::int64_t rows = run.entries.semantic.shape[0];
    if (rows < 1) fail_input("a run needs at least one token");
    check_tensor(run.entries.semantic, "entries.semantic", rows, shape.kv_heads,
                 shape.d_semantic());
    check_tensor(run.entries.positional, "entries.positional", rows, shape.kv_heads,
                 shape.d_positional());
    if (run.queries.rope.shape[0] > rows) fail_input("a run has more queries than tokens");
  }
  for (const Run& run : runs) run.cache->state().append(context.state().pool, run.entries);
}

void runs_attend(Context& context, const LayerWeights& weights, std::span<const Run> runs,
                 std::span<const std::int64_t> first) {
  if (first.size() != runs.size()) fail_input("`first` must name one position per run");
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Cache::State& state = runs[i].cache->state();
    const std::int64_t end = first[i] + runs[i].queries.rope.shape[0];
    if (runs[i].out == nullptr) fail_input("run {} has no output buffer", i);
    if (first[i] < 0 || end > state.length || state.layout.dropped(first[i] + 1) < state.dropped) {
      fail_input(
          "queries {} to {} are out of range for a cache of {} tokens: not taken yet, or "
          "released already",
          first[i], end - 1, state.length);
    }
  }
  lca::attend(context, weights, runs, first);
}

}  // namespace lca
