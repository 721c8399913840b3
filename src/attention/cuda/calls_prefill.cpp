// A chunk of some prompts: keys and values are rebuilt beside those still held, the groups that
// leave the window are condensed, and all queries of the chunk attend in one call.

#include <algorithm>
#include <cmath>

#include "attention/cuda/calls.h"
#include "core/error.h"

namespace lca::cuda {
namespace {

/// Groups that are condensed together: bounds the memory of their query means.
constexpr std::int64_t kSlice = 8448;  // 64 for each multiprocessor of an H200

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

/// One layer's part of a chunk.
class Chunk {
 public:
  Chunk(const LayerView& layer, const ChunkPlan& plan, const ChunkSpace& space,
        const ProductSpace& products, const Queue& queue)
      : layer_(layer),
        shape_(layer.spec.shape),
        layout_(layer.layout()),
        plan_(plan),
        space_(space),
        products_(products),
        queue_(queue),
        transfer_(queue) {}

  void run() {
    for (const ChunkPiece& piece : plan_.pieces) {
      queries_recall(piece);
      entries_recall(piece);
      groups_condense(piece);
      groups_recall(piece);
    }
    attend();
    for (const ChunkPiece& piece : plan_.pieces) {
      entries_keep(piece);
      queries_keep(piece);
      lengths_set(layer_.cache.sessions, 1, layer_.cache.slots, piece.slot,
                  static_cast<std::int32_t>(piece.after), queue_);
    }
  }

 private:
  QueryRows query_rows(const ChunkPiece& piece) const {
    const std::int64_t heads = shape_.heads;
    QueryRows queries;
    if (layer_.mla()) {
      queries.nope = head_rows(space_.nope + piece.first_query_row * heads * shape_.d_nope, heads,
                               shape_.d_nope);
    }
    queries.rope = head_rows(space_.rope + piece.first_query_row * heads * shape_.d_rope, heads,
                             shape_.d_rope);
    queries.first = piece.before - piece.recent;
    queries.rows = piece.recent + piece.tokens();
    return queries;
  }

  /// The last queries before the chunk, in front of its own.
  void queries_recall(const ChunkPiece& piece) const {
    const auto recall = [&](bf16* to, const bf16* ring, std::int64_t width) {
      const std::int64_t values = shape_.heads * width;
      to += piece.first_query_row * values;
      ring_visit(piece.before - piece.recent, piece.before, std::max<std::int64_t>(recent(), 1),
                 [&](std::int64_t, std::int64_t row, std::int64_t count) {
                   transfer_.copy(ring + row * values, count * values, to);
                   to += count * values;
                 });
    };
    if (piece.recent == 0) return;
    if (layer_.mla()) {
      recall(space_.nope, layer_.cache.recent_nope_of(shape_, piece.slot), shape_.d_nope);
    }
    recall(space_.rope, layer_.cache.recent_rope_of(shape_, piece.slot), shape_.d_rope);
  }

  /// The exact tokens still held, in front of the chunk's own.
  void entries_recall(const ChunkPiece& piece) const {
    const std::int64_t sink = std::min(layout_.sink, piece.before);
    const auto recall = [&](bf16* to, const bf16* held, std::int64_t values) {
      to += piece.first_exact_row * values;
      transfer_.copy(held, sink * values, to);
      to += sink * values;
      // Positions [sink + gone, before), as the ring counts them: from the sink's end.
      ring_visit(piece.gone, piece.before - sink, layer_.cache.ring,
                 [&](std::int64_t, std::int64_t row, std::int64_t count) {
                   transfer_.copy(held + (sink + row) * values, count * values, to);
                   to += count * values;
                 });
    };
    recall(space_.exact_semantic, layer_.cache.semantic_of(shape_, piece.slot),
           layer_.semantic_values());
    recall(space_.exact_positional, layer_.cache.positional_of(shape_, piece.slot),
           layer_.positional_values());
  }

  /// Reduced queries of `count` groups from `first` on, one for each: [count][KV][summary_width].
  const float* summaries(std::int64_t prompt, const QueryRows& queries, std::int64_t first,
                         std::int64_t count) const {
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

  void groups_condense(const ChunkPiece& piece) const {
    const bool one = layer_.spec.settings.summary == Summary::prompt;
    const QueryRows queries = query_rows(piece);
    for (std::int64_t first = piece.groups_before; first < piece.groups_after; first += kSlice) {
      const std::int64_t count = std::min(kSlice, piece.groups_after - first);
      // The first group begins at position sink + first·g; its tokens are rows in order.
      const std::int64_t row =
          piece.first_exact_row + layout_.group_range(first).begin - piece.gone;
      Condense job;
      job.shape = shape_;
      job.settings = layer_.spec.settings;
      job.scale = static_cast<float>(layer_.spec.softmax_scale());
      job.semantic = space_.exact_semantic + row * layer_.semantic_values();
      job.positional = space_.exact_positional + row * layer_.positional_values();
      job.summary = summaries(one ? piece.after : 0, queries, first, one ? 1 : count);
      job.one_summary = one;
      job.count = count;
      job.rotation = layer_.cache.rotation;
      job.first_group = first;
      job.out_semantic = space_.new_semantic;
      job.out_positional = space_.new_positional;
      if (layer_.cache.pool.bias != nullptr) job.out_bias = space_.new_bias;
      condense(job, queue_);
      groups_append(shape_, layer_.cache.pool, layer_.cache.pages_of(piece.slot), first, count,
                    job.out_semantic, job.out_positional, job.out_bias, queue_);
    }
  }

  /// All representatives of the sequence in consecutive rows, as readers see them.
  void groups_recall(const ChunkPiece& piece) const {
    float* const bias = layer_.cache.pool.bias == nullptr
                            ? nullptr
                            : space_.group_bias + piece.group_row * shape_.kv_heads;
    groups_gather(
        shape_, layer_.cache.pool, layer_.cache.pages_of(piece.slot), 0, piece.groups_after,
        space_.group_semantic + piece.group_row * layer_.semantic_values(),
        space_.group_positional + piece.group_row * layer_.positional_values(), bias, queue_);
  }

  /// Keys without position and values of every head from latents.
  void keys_rebuild(const bf16* latents, std::int64_t rows, bf16* nope, bf16* value) const {
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

  void attend() const {
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
    problem.query_rows = plan_.rows.query;
    problem.exact.rows = plan_.rows.exact;
    problem.groups.rows = plan_.rows.group;
    if (layer_.mla()) {
      keys_rebuild(space_.exact_semantic, plan_.rows.exact, space_.exact_nope, space_.exact_value);
      keys_rebuild(space_.group_semantic, plan_.rows.group, space_.group_nope, space_.group_value);
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
    for (const ChunkPiece& piece : plan_.pieces) {
      runs.push_back({piece.query_row(), piece.before, piece.tokens(), piece.first_exact_row,
                      piece.gone, piece.group_row});
    }
    prefill(problem, runs, space_.runs, layer_.kernels, queue_);
  }

  /// What sink and window still hold of this chunk.
  void entries_keep(const ChunkPiece& piece) const {
    const auto keep = [&](const bf16* rows, bf16* to, std::int64_t values) {
      rows += piece.first_exact_row * values;
      const std::int64_t sink = std::min(layout_.sink, piece.after);
      if (sink > piece.before) {
        transfer_.copy(rows + piece.before * values, (sink - piece.before) * values,
                       to + piece.before * values);
      }
      // Counted from the sink's end.
      const std::int64_t first = std::max(layout_.dropped(piece.after), piece.before - sink);
      ring_visit(std::max<std::int64_t>(first, 0), piece.after - sink, layer_.cache.ring,
                 [&](std::int64_t position, std::int64_t row, std::int64_t count) {
                   transfer_.copy(rows + (sink + position - piece.gone) * values, count * values,
                                  to + (sink + row) * values);
                 });
    };
    keep(space_.exact_semantic, layer_.cache.semantic_of(shape_, piece.slot),
         layer_.semantic_values());
    keep(space_.exact_positional, layer_.cache.positional_of(shape_, piece.slot),
         layer_.positional_values());
  }

  /// The chunk's last queries, raw and reduced.
  void queries_keep(const ChunkPiece& piece) const {
    if (!layer_.condenses()) return;
    const QueryRows queries = query_rows(piece);
    if (recent() > 0) {
      ring_visit(std::max(piece.before, piece.after - recent()), piece.after, recent(),
                 [&](std::int64_t position, std::int64_t row, std::int64_t count) {
                   const auto keep = [&](const bf16* from, bf16* to, std::int64_t width) {
                     const std::int64_t values = shape_.heads * width;
                     transfer_.copy(from + (position - queries.first) * values, count * values,
                                    to + row * values);
                   };
                   if (layer_.mla()) {
                     keep(queries.nope.data, layer_.cache.recent_nope_of(shape_, piece.slot),
                          shape_.d_nope);
                   }
                   keep(queries.rope.data, layer_.cache.recent_rope_of(shape_, piece.slot),
                        shape_.d_rope);
                 });
    }
    const std::int64_t n_q = layer_.cache.summary_rows;
    for (std::int64_t first = std::max(piece.before, piece.after - n_q); first < piece.after;
         first += kSlice) {
      summaries_keep(layer_, piece.slot, queries, first - queries.first, first,
                     std::min(kSlice, piece.after - first), space_, products_, queue_);
    }
  }

  std::int64_t recent() const { return layer_.cache.recent; }

  const LayerView& layer_;
  const AttentionShape& shape_;
  const Layout layout_;
  const ChunkPlan& plan_;
  const ChunkSpace& space_;
  const ProductSpace& products_;
  const Queue& queue_;
  Transfer transfer_;
};

}  // namespace

ChunkPlan chunk_plan(const CacheStore& store, std::span<const ChunkRequest> requests) {
  const Settings& settings = store.spec().settings;
  const Layout layout(settings);
  const bool condenses = settings.method == MethodKind::lca;
  ChunkPlan plan;
  ChunkRows& rows = plan.rows;
  rows.runs = static_cast<std::int64_t>(requests.size());
  for (const ChunkRequest& request : requests) {
    ChunkPiece piece;
    piece.slot = request.slot;
    piece.before = store.length(request.slot);
    piece.after = piece.before + request.tokens;
    if (request.tokens < 1 || piece.after > store.limits().longest) {
      fail_input("a run of {} tokens after {} does not fit a cache of {}", request.tokens,
                 piece.before, store.limits().longest);
    }
    for (const ChunkPiece& other : plan.pieces) {
      if (other.slot == piece.slot) fail_input("sequence {} is twice in one call", piece.slot);
    }
    if (condenses && settings.summary == Summary::prompt && piece.before > 0) {
      fail_input(
          "in summary mode `prompt` the GPU takes a prompt as one run; sequence {} holds {} "
          "tokens already",
          piece.slot, piece.before);
    }
    piece.groups_before = layout.groups(piece.before);
    piece.groups_after = layout.groups(piece.after);
    piece.gone = layout.dropped(piece.before);
    piece.recent = std::min(store.layer(0).recent, piece.before);
    piece.first_query_row = rows.query;
    piece.first_exact_row = rows.exact;
    piece.group_row = rows.group;
    rows.query += piece.recent + piece.tokens();
    rows.exact += piece.after - piece.gone;
    rows.group += piece.groups_after;
    rows.condensed =
        std::max({rows.condensed, std::min(kSlice, piece.groups_after - piece.groups_before),
                  std::min({kSlice, piece.tokens(), store.layer(0).summary_rows})});
    plan.pieces.push_back(piece);
  }
  return plan;
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
    rows.condensed =
        std::min(kSlice, std::max({layout.groups(longest),
                                   std::min(tokens, settings.summary_queries), std::int64_t{1}}));
  }
  return rows;
}

std::size_t chunk_space_bytes(const LayerSpec& spec, const ChunkRows& rows) {
  DeviceCarver carver;
  carve(spec, rows, carver);
  return carver.used();
}

ChunkSpace chunk_space(const LayerSpec& spec, const ChunkRows& rows, void* memory) {
  DeviceCarver carver(memory);
  return carve(spec, rows, carver);
}

void chunk_run(const LayerView& layer, const ChunkPlan& plan, const ChunkSpace& space,
               const ProductSpace& products, const Queue& queue) {
  if (plan.pieces.empty()) return;
  Chunk(layer, plan, space, products, queue).run();
}

void summaries_keep(const LayerView& layer, int slot, const QueryRows& queries,
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
                                     layer.cache.summary_of(slot) + row * values, queue);
             });
}

}  // namespace lca::cuda
