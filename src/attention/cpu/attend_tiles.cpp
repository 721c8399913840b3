// Prefill: lays out the keys and values of one KV head (MLA: rebuilds those of one head), then
// shares tiles of queries out to the threads, the heaviest first.

#include <hwy/targets.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "attention/attend.h"
#include "attention/cache_state.h"
#include "attention/cpu/row_rotation.h"
#include "attention/cpu/tile.h"
#include "core/context_state.h"
#include "core/workspace.h"

namespace lca {

namespace {

using namespace cpu;

/// Rows that are laid out in one task.
constexpr std::int64_t kChunk = kRebuildRows;

/// Whether every product of this call can run on bfloat16 pairs.
bool uses_bf16(const LayerSpec& spec, const LayerWeights& weights, std::span<const Run> runs) {
  const bool cpu_has = bf16_kernels() != nullptr && (hwy::SupportedTargets() & HWY_AVX3) != 0;
  if (!cpu_has || spec.dtype != DType::bf16) return false;
  const bool mla = spec.shape.form == Form::mla;
  if (mla && (weights.w_uk.dtype != DType::bf16 || weights.w_uv.dtype != DType::bf16)) return false;
  return std::all_of(runs.begin(), runs.end(), [&](const Run& run) {
    return run.queries.rope.dtype == DType::bf16 && (!mla || run.queries.nope.dtype == DType::bf16);
  });
}

/// Packed memory of one segment (representatives or tokens) of one run.
struct Segment {
  std::uint32_t *nope, *rope, *values;
  std::int64_t count;

  Segment(Carver& carver, const AttentionShape& shape, std::int64_t keys, bool bf16)
      : nope(carver.take<std::uint32_t>(packed_key_words(keys, shape.d_nope, bf16))),
        rope(carver.take<std::uint32_t>(packed_key_words(keys, shape.d_rope, bf16))),
        values(carver.take<std::uint32_t>(packed_value_words(keys, shape.d_value, bf16))),
        count(keys) {}

  PackedKeys packed() const { return {nope, rope, values, count}; }
};

struct RunMemory {
  Segment groups, tokens;
  float* bias;  ///< of one KV head

  RunMemory(Carver& carver, const AttentionShape& shape, std::int64_t group_count,
            std::int64_t row_count, bool bf16)
      : groups(carver, shape, group_count, bf16),
        tokens(carver, shape, row_count, bf16),
        bias(carver.take<float>(round_up(group_count, kPanel))) {}
};

/// Memory that all runs share: packed weights of one head, and each worker's own.
struct SharedMemory {
  struct Worker {
    float* tile;
    float* rebuild;
    std::byte* rows;  ///< [kChunk][d_semantic], for gathered rows
  };
  std::uint32_t *w_uk, *w_uv;
  std::vector<Worker> workers;

  SharedMemory(Carver& carver, const LayerSpec& spec, int threads, bool bf16) {
    const AttentionShape& shape = spec.shape;
    const bool rotates = spec.settings.positions == Positions::entry;
    w_uk = carver.take<std::uint32_t>(packed_key_words(shape.d_nope, shape.d_latent, bf16));
    w_uv = carver.take<std::uint32_t>(packed_key_words(shape.d_value, shape.d_latent, bf16));
    for (int i = 0; i < threads; ++i) {
      Worker worker{};
      worker.tile = carver.take<float>(
          tile_scratch_floats(shape.d_nope, shape.d_rope, shape.d_value, rotates));
      worker.rebuild =
          carver.take<float>(shape.form == Form::mla ? rebuild_scratch_floats(shape.d_latent) : 0);
      worker.rows = carver.take<std::byte>(kChunk * static_cast<std::int64_t>(sizeof(float)) *
                                           std::max(shape.d_semantic(), shape.d_positional()));
      workers.push_back(worker);
    }
  }
};

/// A piece of laying-out work: rows [first, first + count) of a segment.
struct ChunkTask {
  std::size_t run;
  bool groups;
  std::int64_t first, count;
};

struct TileTask {
  std::size_t run;
  std::int64_t row, rows;
  std::int64_t pairs;
};

class Prefill {
 public:
  Prefill(Context& context, const LayerWeights& weights, std::span<const Run> runs,
          std::span<const std::int64_t> first)
      : context_(context),
        weights_(weights),
        runs_(runs),
        first_(first),
        spec_(runs[0].cache->spec()),
        shape_(spec_.shape),
        bf16_(uses_bf16(spec_, weights, runs)) {
    Carver count;
    carve(count);
    Carver carver(context.state().workspace.prepare(count.used()));
    carve(carver);
    plan();
  }

  void run() {
    if (shape_.form == Form::mla) {
      pack_all(&Prefill::pack_rope, 0);
      for (std::int64_t head = 0; head < shape_.heads; ++head) {
        pack_weights(head);
        pack_all(&Prefill::rebuild, head);
        if (head == 0) pack_bias(0);
        attend_heads(head, 1);
      }
      return;
    }
    for (std::int64_t kv = 0; kv < shape_.kv_heads; ++kv) {
      pack_all(&Prefill::pack_key_value, kv);
      pack_bias(kv);
      attend_heads(kv * shape_.heads_per_kv(), shape_.heads_per_kv());
    }
  }

 private:
  void carve(Carver& carver) {
    memory_.clear();
    for (const Run& run : runs_) {
      const Cache::State& state = run.cache->state();
      memory_.emplace_back(carver, shape_, state.groups.rows(), state.rows(), bf16_);
    }
    shared_.emplace(carver, spec_, context_.threads(), bf16_);
  }

  /// Lists what the queries see, chunk by chunk, and the tiles.
  void plan() {
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      const Cache::State& state = runs_[i].cache->state();
      const std::int64_t length = runs_[i].queries.rope.shape[0];
      const Visible head = state.layout.visible(first_[i]);
      const Visible tail = state.layout.visible(first_[i] + length - 1);
      for (std::int64_t row = 0; row < tail.groups; row += kChunk) {
        chunks_.push_back({i, true, row, std::min(kChunk, state.groups.rows() - row)});
      }
      const std::int64_t window = head.window.begin - state.dropped;
      const std::int64_t rows = tail.window.end - state.dropped;
      for (std::int64_t row = 0; row < rows; row += kChunk) {
        if (row >= tail.sink.end && row + kChunk <= window) continue;
        chunks_.push_back({i, false, row, std::min(kChunk, state.rows() - row)});
      }
      for (std::int64_t row = 0; row < length; row += kTileRows) {
        const std::int64_t rows_here = std::min(kTileRows, length - row);
        tiles_.push_back(
            {i, row, rows_here, rows_here * state.layout.visible(first_[i] + row).pairs()});
      }
    }
    std::stable_sort(tiles_.begin(), tiles_.end(),
                     [](const TileTask& a, const TileTask& b) { return a.pairs > b.pairs; });
  }

  void pack_all(void (Prefill::*pack)(const ChunkTask&, int, std::int64_t), std::int64_t head) {
    context_.state().pool.run(
        static_cast<std::int64_t>(chunks_.size()), [&](std::int64_t task, int worker) {
          (this->*pack)(chunks_[static_cast<std::size_t>(task)], worker, head);
        });
  }

  Segment& segment(const ChunkTask& chunk) {
    return chunk.groups ? memory_[chunk.run].groups : memory_[chunk.run].tokens;
  }

  /// Rows of the chunk in one piece: where they lie, or gathered where they are of 8 bits, sink and
  /// window meet, or a page of representatives ends. What rows of 8 bits stand for is rounded to
  /// the cache's dtype.
  ConstTensor gather(const ChunkTask& chunk, int worker, bool semantic, std::int64_t kv) {
    const Cache::State& state = runs_[chunk.run].cache->state();
    const std::int64_t end = chunk.first + chunk.count;
    // Rows from `first` on that are as they are there: of one page, or of sink or window.
    const auto piece = [&](std::int64_t first) {
      if (chunk.groups) {
        return state.groups_stored(first, std::min(end - first, state.groups.contiguous(first)));
      }
      const std::int64_t sink = state.sink.rows();
      return first < sink ? Cache::State::stored(state.sink, first, std::min(end, sink) - first)
                          : Cache::State::stored(state.window, first - sink, end - first);
    };
    const CacheRows whole = piece(chunk.first);
    const bool plain = whole.scales == nullptr || (!semantic && !state.format.int8_positional());
    if (whole.count == chunk.count && plain) {
      const Entries entries = state.view(whole);
      ConstTensor rows = semantic ? entries.semantic : entries.positional;
      rows.data = rows.row(0, kv);
      rows.shape[1] = 1;
      return rows;
    }
    std::byte* to = shared_->workers[static_cast<std::size_t>(worker)].rows;
    const std::int64_t width = semantic ? shape_.d_semantic() : shape_.d_positional();
    const std::size_t bytes = static_cast<std::size_t>(width) * dtype_bytes(spec_.dtype);
    std::byte* at = to;
    for (std::int64_t first = chunk.first; first < end;) {
      const CacheRows rows = piece(first);
      const RowFormat format =
          rows.scales == nullptr ? RowFormat::plain(spec_) : RowFormat::of(spec_);
      for (std::int64_t i = 0; i < rows.count; ++i, at += bytes) {
        if (semantic) {
          format.semantic_read(rows, i, kv, spec_.dtype, at);
        } else {
          format.positional_read(rows, i, kv, spec_.dtype, at);
        }
      }
      first += rows.count;
    }
    return ConstTensor(to, spec_.dtype, {chunk.count, 1, width});
  }

  std::uint32_t* key_panels(std::uint32_t* keys, const ChunkTask& chunk, std::int64_t depth) const {
    return keys + packed_key_words(chunk.first, depth, bf16_);
  }

  void pack_rope(const ChunkTask& chunk, int worker, std::int64_t kv) {
    const ConstTensor rows = gather(chunk, worker, false, kv);
    pack_keys(rows.data, rows.dtype, rows.stride[0], chunk.count, shape_.d_rope, bf16_,
              key_panels(segment(chunk).rope, chunk, shape_.d_rope));
  }

  void pack_key_value(const ChunkTask& chunk, int worker, std::int64_t kv) {
    pack_rope(chunk, worker, kv);
    const ConstTensor rows = gather(chunk, worker, true, kv);
    Segment& to = segment(chunk);
    pack_values(rows.data, rows.dtype, rows.stride[0], chunk.count, shape_.d_value, bf16_,
                chunk.first, round_up(to.count, kPanel), to.values);
  }

  /// MLA: keys W_uk·c and values W_uv·c of one head for one chunk.
  void rebuild(const ChunkTask& chunk, int worker, std::int64_t) {
    Segment& to = segment(chunk);
    Rebuild task;
    task.latents = gather(chunk, worker, true, 0);
    task.bf16 = bf16_;
    task.d_nope = shape_.d_nope;
    task.d_value = shape_.d_value;
    task.w_uk = shared_->w_uk;
    task.w_uv = shared_->w_uv;
    task.keys = key_panels(to.nope, chunk, shape_.d_nope);
    task.values = to.values;
    task.first = chunk.first;
    task.capacity = round_up(to.count, kPanel);
    task.scratch = shared_->workers[static_cast<std::size_t>(worker)].rebuild;
    rebuild_keys_values(task);
  }

  /// MLA: one head's weights, their rows packed like keys.
  void pack_weights(std::int64_t head) {
    const std::int64_t key_panels = ceil_div(shape_.d_nope, kPanel);
    context_.state().pool.run(
        key_panels + ceil_div(shape_.d_value, kPanel), [&](std::int64_t i, int) {
          const bool keys = i < key_panels;
          const ConstTensor& w = keys ? weights_.w_uk : weights_.w_uv;
          const std::int64_t row = (keys ? i : i - key_panels) * kPanel;
          pack_keys(w.row(head, row), w.dtype, w.stride[1], std::min(kPanel, w.shape[1] - row),
                    shape_.d_latent, bf16_,
                    (keys ? shared_->w_uk : shared_->w_uv) +
                        packed_key_words(row, shape_.d_latent, bf16_));
        });
  }

  bool has_bias() const {
    return spec_.settings.method == MethodKind::lca && spec_.settings.mass != Mass::none;
  }

  void pack_bias(std::int64_t kv) {
    if (!has_bias()) return;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      const std::int64_t groups = runs_[i].cache->groups();
      for (std::int64_t j = 0; j < round_up(groups, kPanel); ++j) {
        memory_[i].bias[j] = j < groups ? runs_[i].cache->bias(j, kv) : 0.0F;
      }
    }
  }

  /// Query heads head … head + count − 1, which share the packed keys.
  void attend_heads(std::int64_t head, std::int64_t count) {
    const std::int64_t tasks = static_cast<std::int64_t>(tiles_.size()) * count;
    context_.state().pool.run(tasks, [&](std::int64_t task, int worker) {
      Tile tile = make_tile(task, head, count);
      const std::int64_t later = task + context_.threads();
      if (later < tasks) fetch_ahead(make_tile(later, head, count), tile);
      tile.scratch = shared_->workers[static_cast<std::size_t>(worker)].tile;
      tile_attend(tile);
    });
  }

  static void fetch_ahead(const Tile& later, Tile& tile) {
    const auto rows_of = [&](const ConstTensor& q) {
      const auto bytes = static_cast<std::int64_t>(dtype_bytes(q.dtype));
      return RowsAhead{static_cast<const char*>(q.data), q.stride[0] * bytes, q.shape[2] * bytes,
                       q.empty() ? 0 : later.rows};
    };
    constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
    tile.ahead[0] = rows_of(later.q_nope);
    tile.ahead[1] = rows_of(later.q_rope);
    tile.ahead[2] = {reinterpret_cast<const char*>(later.out), later.out_stride * kFloat,
                     later.d_value * kFloat, later.rows};
  }

  /// Task number `number` of those that share packed keys among `count` heads from `head` on.
  Tile make_tile(std::int64_t number, std::int64_t first_head, std::int64_t count) const {
    const TileTask& task = tiles_[static_cast<std::size_t>(number / count)];
    const std::int64_t head = first_head + number % count;
    const Run& run = runs_[task.run];
    const Cache::State& state = run.cache->state();
    const RunMemory& memory = memory_[task.run];
    const auto queries = [&](const ConstTensor& q) {
      ConstTensor part = q;
      if (!q.empty()) part.data = q.row(task.row, head);
      return part;
    };
    Tile tile;
    tile.layout = state.layout;
    tile.scale = static_cast<float>(spec_.softmax_scale());
    tile.bf16 = bf16_;
    tile.d_nope = shape_.d_nope;
    tile.d_rope = shape_.d_rope;
    tile.d_value = shape_.d_value;
    tile.rows = task.rows;
    tile.first = first_[task.run] + task.row;
    tile.q_nope = queries(run.queries.nope);
    tile.q_rope = queries(run.queries.rope);
    tile.rotation = row_rotation(state);
    tile.groups = memory.groups.packed();
    tile.bias = has_bias() ? memory.bias : nullptr;
    tile.tokens = memory.tokens.packed();
    tile.dropped = state.dropped;
    tile.out_stride = shape_.heads * shape_.d_value;
    tile.out = run.out + task.row * tile.out_stride + head * shape_.d_value;
    tile.lse_stride = shape_.heads;
    tile.lse = run.lse == nullptr ? nullptr : run.lse + task.row * shape_.heads + head;
    return tile;
  }

  Context& context_;
  const LayerWeights& weights_;
  std::span<const Run> runs_;
  std::span<const std::int64_t> first_;
  const LayerSpec& spec_;
  const AttentionShape& shape_;
  bool bf16_;
  std::vector<RunMemory> memory_;
  std::optional<SharedMemory> shared_;
  std::vector<ChunkTask> chunks_;
  std::vector<TileTask> tiles_;
};

}  // namespace

void attend_tiles(Context& context, const LayerWeights& weights, std::span<const Run> runs,
                  std::span<const std::int64_t> first) {
  if (!runs.empty()) Prefill(context, weights, runs, first).run();
}

std::size_t attend_tiles_workspace_bytes(const LayerSpec& spec, std::int64_t rows,
                                         std::int64_t groups, int threads) {
  // The same carving as a call would do; float32 products where this CPU has no others.
  const bool bf16 = spec.dtype == DType::bf16 && bf16_kernels() != nullptr;
  Carver carver;
  const RunMemory memory(carver, spec.shape, groups, rows, bf16);
  const SharedMemory shared(carver, spec, threads, bf16);
  return carver.used();
}

}  // namespace lca
