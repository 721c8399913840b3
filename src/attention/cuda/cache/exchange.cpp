#include "attention/cuda/cache/exchange.h"

#include <algorithm>
#include <vector>

#include "attention/cache_state.h"
#include "core/bf16.h"
#include "core/error.h"

namespace lca::cuda {
namespace {

/// Values of the GPU in the host's type.
void values_write(std::span<const bf16_bits> values, DType dtype, std::byte* to) {
  if (dtype == DType::bf16) {
    std::memcpy(to, values.data(), values.size_bytes());
  } else {
    std::transform(values.begin(), values.end(), reinterpret_cast<float*>(to), bf16_to_f32);
  }
}

/// Host values as bf16.
void values_read(const std::byte* from, DType dtype, std::span<bf16_bits> to) {
  if (dtype == DType::bf16) {
    std::memcpy(to.data(), from, to.size_bytes());
  } else {
    const auto* const wide = reinterpret_cast<const float*>(from);
    std::transform(wide, wide + to.size(), to.begin(), bf16_from_f32);
  }
}

/// The same for rows at the end of a host buffer.
void rows_append(std::span<const bf16_bits> values, DType dtype, std::int64_t rows,
                 RowBuffer& buffer) {
  if (rows > 0) values_write(values, dtype, buffer.grow(rows));
}

/// `rows` rows of a host buffer as bf16.
std::vector<bf16_bits> rows_read(const RowBuffer& buffer, DType dtype, std::int64_t rows) {
  const std::int64_t values = rows * buffer.row_bytes() / std::int64_t(dtype_bytes(dtype));
  std::vector<bf16_bits> result(static_cast<std::size_t>(values));
  if (values > 0) values_read(buffer.row(0), dtype, result);
  return result;
}

/// Visits representatives page by page: visit(first, count).
template <typename Visit>
void pages_visit(const GroupRows& groups, const Visit& visit) {
  for (std::int64_t j = 0; j < groups.rows();) {
    const std::int64_t count = groups.contiguous(j);
    visit(j, count);
    j += count;
  }
}

/// Copies between the host and the GPU, in bf16 as it is.
class Mover {
 public:
  explicit Mover(const Queue& queue) : transfer_(queue.stream) {}

  std::vector<bf16_bits> down(const bf16* from, std::int64_t count) const {
    std::vector<bf16_bits> values(static_cast<std::size_t>(count));
    transfer_.download(reinterpret_cast<const bf16_bits*>(from), count, values.data());
    return values;
  }
  void down_append(const bf16* from, std::int64_t count, std::vector<bf16_bits>& to) const {
    const std::vector<bf16_bits> values = down(from, count);
    to.insert(to.end(), values.begin(), values.end());
  }
  void up(std::span<const bf16_bits> values, bf16* to) const {
    transfer_.upload(values, reinterpret_cast<bf16_bits*>(to));
  }
  const Transfer& transfer() const { return transfer_; }

 private:
  Transfer transfer_;
};

void groups_read(const LayerSpec& spec, const LayerCache& cache, const HeldCache& held,
                 std::int64_t count, const Mover& mover, const Queue& queue, Cache::State& state) {
  if (count == 0) return;
  const AttentionShape& shape = spec.shape;
  const std::int64_t kv = shape.kv_heads;
  const std::vector<std::int32_t> entries = held.pages->entries();
  DeviceCarver plan;
  const auto carve = [&](DeviceCarver& carver) {
    return std::tuple(carver.take<bf16>(count * kv * shape.d_semantic()),
                      carver.take<bf16>(count * kv * shape.d_positional()),
                      carver.take<float>(count * kv),
                      carver.take<std::int32_t>(static_cast<std::int64_t>(entries.size())));
  };
  carve(plan);
  const Buffer memory(plan.used());
  DeviceCarver carver(memory.as<void>());
  const auto [semantic, positional, all_bias, pages] = carve(carver);
  mover.transfer().upload(std::span(entries), pages);
  float* const bias = cache.pool.bias == nullptr ? nullptr : all_bias;
  groups_gather(shape, cache.pool, pages, 0, count, semantic, positional, bias, queue);
  const DType dtype = spec.dtype;
  state.groups.grow(count);
  pages_visit(state.groups, [&](std::int64_t first, std::int64_t some) {
    const std::int64_t semantics = kv * shape.d_semantic();
    const std::int64_t positions = kv * shape.d_positional();
    values_write(mover.down(semantic + first * semantics, some * semantics), dtype,
                 state.groups.semantic(first));
    values_write(mover.down(positional + first * positions, some * positions), dtype,
                 state.groups.positional(first));
    if (bias == nullptr) return;
    mover.transfer().download(bias + first * kv, some * kv, state.groups.bias(first));
  });
}

void exact_read(const LayerSpec& spec, const LayerCache& cache, CachePlace at, const Mover& mover,
                Cache::State& state) {
  const AttentionShape& shape = spec.shape;
  const std::int64_t sink = std::min(state.layout.sink, state.length);
  const auto read = [&](const bf16* held, std::int64_t values, RowBuffer& sinks,
                        RowBuffer& windows) {
    rows_append(mover.down(held, sink * values), spec.dtype, sink, sinks);
    std::vector<bf16_bits> window;
    ring_visit(state.dropped, state.length - sink, cache.ring,
               [&](std::int64_t, std::int64_t row, std::int64_t count) {
                 mover.down_append(held + (sink + row) * values, count * values, window);
               });
    rows_append(window, spec.dtype, state.length - sink - state.dropped, windows);
  };
  read(cache.semantic_of(at), shape.kv_heads * shape.d_semantic(), state.sink.semantic,
       state.window.semantic);
  read(cache.positional_of(at), shape.kv_heads * shape.d_positional(), state.sink.positional,
       state.window.positional);
}

/// Raw queries of positions [first, length), which the host keeps head by head as one row.
void queries_read(const LayerSpec& spec, const LayerCache& cache, const HeldCache& held,
                  const Mover& mover, Cache::State& state) {
  const AttentionShape& shape = spec.shape;
  if (cache.recent == 0) return;
  const std::int64_t rows =
      std::min(state.queries_kept(), state.length - std::min(held.queries_first, state.length));
  if (rows == 0) return;
  const bool mla = shape.form == Form::mla;
  const auto read = [&](const bf16* ring, std::int64_t width) {
    std::vector<bf16_bits> values;
    ring_visit(state.length - rows, state.length, cache.recent,
               [&](std::int64_t, std::int64_t row, std::int64_t count) {
                 mover.down_append(ring + row * shape.heads * width, count * shape.heads * width,
                                   values);
               });
    return values;
  };
  const std::vector<bf16_bits> nope =
      mla ? read(cache.recent_nope_of(held.place), shape.d_nope) : std::vector<bf16_bits>();
  const std::vector<bf16_bits> rope = read(cache.recent_rope_of(held.place), shape.d_rope);
  auto* to = reinterpret_cast<float*>(state.queries.grow(rows));
  const std::int64_t d_nope = mla ? shape.d_nope : 0;
  for (std::int64_t i = 0; i < rows * shape.heads; ++i) {
    to =
        std::transform(nope.begin() + i * d_nope, nope.begin() + (i + 1) * d_nope, to, bf16_to_f32);
    to = std::transform(rope.begin() + i * shape.d_rope, rope.begin() + (i + 1) * shape.d_rope, to,
                        bf16_to_f32);
  }
}

void groups_write(const Cache::State& state, const LayerCache& cache, const HeldCache& held,
                  const Mover& mover, const Queue& queue, DeviceCarver& carver) {
  const AttentionShape& shape = state.spec.shape;
  const std::int64_t count = state.groups.rows();
  const std::int64_t kv = shape.kv_heads;
  auto* const semantic = carver.take<bf16>(count * kv * shape.d_semantic());
  auto* const positional = carver.take<bf16>(count * kv * shape.d_positional());
  float* bias = carver.take<float>(count * kv);
  auto* const pages = carver.take<std::int32_t>(held.pages->size());
  if (semantic == nullptr || count == 0) return;
  if (cache.pool.bias == nullptr) bias = nullptr;
  pages_visit(state.groups, [&](std::int64_t first, std::int64_t some) {
    const auto send = [&](const std::byte* from, std::int64_t width, bf16* to) {
      std::vector<bf16_bits> values(static_cast<std::size_t>(some * width));
      values_read(from, state.spec.dtype, values);
      mover.up(values, to + first * width);
    };
    send(state.groups.semantic(first), kv * shape.d_semantic(), semantic);
    send(state.groups.positional(first), kv * shape.d_positional(), positional);
    if (bias == nullptr) return;
    const std::span values(state.groups.bias(first), static_cast<std::size_t>(some * kv));
    mover.transfer().upload(values, bias + first * kv);
  });
  mover.transfer().upload(std::span<const std::int32_t>(held.pages->entries()), pages);
  groups_append(shape, cache.pool, pages, 0, count, semantic, positional, bias, queue);
}

void exact_write(const Cache::State& state, const LayerCache& cache, CachePlace at,
                 const Mover& mover) {
  const AttentionShape& shape = state.spec.shape;
  const std::int64_t sink = std::min(state.layout.sink, state.length);
  const auto write = [&](bf16* held, std::int64_t values, const RowBuffer& sinks,
                         const RowBuffer& windows) {
    mover.up(rows_read(sinks, state.spec.dtype, sink), held);
    const std::vector<bf16_bits> window = rows_read(windows, state.spec.dtype, windows.rows());
    ring_visit(state.dropped, state.length - sink, cache.ring,
               [&](std::int64_t position, std::int64_t row, std::int64_t count) {
                 mover.up(std::span(window).subspan(
                              static_cast<std::size_t>((position - state.dropped) * values),
                              static_cast<std::size_t>(count * values)),
                          held + (sink + row) * values);
               });
  };
  write(cache.semantic_of(at), shape.kv_heads * shape.d_semantic(), state.sink.semantic,
        state.window.semantic);
  write(cache.positional_of(at), shape.kv_heads * shape.d_positional(), state.sink.positional,
        state.window.positional);
}

/// The last raw queries into their ring, and reduced into the ring of summaries.
void queries_write(const Cache::State& state, const LayerView& layer, CachePlace at,
                   const Mover& mover, const ProductSpace& products, const Queue& queue,
                   DeviceCarver& carver) {
  const AttentionShape& shape = state.spec.shape;
  const std::int64_t rows = std::min(state.queries.rows(), layer.cache.recent);
  if (rows == 0) return;
  const std::int64_t d_nope = layer.mla() ? shape.d_nope : 0;
  ChunkSpace space;
  auto* const nope = carver.take<bf16>(rows * shape.heads * d_nope);
  auto* const rope = carver.take<bf16>(rows * shape.heads * shape.d_rope);
  space.means_nope = carver.take<bf16>(rows * 2 * shape.heads * d_nope);
  space.means_rope =
      carver.take<float>(rows * std::max(shape.heads * shape.d_rope, layer.cache.summary_values));
  space.summary = carver.take<float>(rows * layer.cache.summary_values);
  if (rope == nullptr) return;

  std::vector<bf16_bits> host_nope, host_rope;
  const auto* from = reinterpret_cast<const float*>(state.queries.row(state.queries.rows() - rows));
  for (std::int64_t i = 0; i < rows * shape.heads; ++i) {
    std::transform(from, from + d_nope, std::back_inserter(host_nope), bf16_from_f32);
    from += d_nope;
    std::transform(from, from + shape.d_rope, std::back_inserter(host_rope), bf16_from_f32);
    from += shape.d_rope;
  }
  mover.up(host_nope, nope);
  mover.up(host_rope, rope);
  const std::int64_t first = state.length - rows;
  ring_visit(first, state.length, layer.cache.recent,
             [&](std::int64_t position, std::int64_t row, std::int64_t count) {
               const auto keep = [&](const bf16* of, bf16* to, std::int64_t width) {
                 const std::int64_t values = shape.heads * width;
                 mover.transfer().copy(of + (position - first) * values, count * values,
                                       to + row * values);
               };
               if (layer.mla()) keep(nope, layer.cache.recent_nope_of(at), d_nope);
               keep(rope, layer.cache.recent_rope_of(at), shape.d_rope);
             });
  QueryRows queries;
  if (layer.mla()) queries.nope = head_rows(nope, shape.heads, shape.d_nope);
  queries.rope = head_rows(rope, shape.heads, shape.d_rope);
  queries.first = first;
  queries.rows = rows;
  summaries_keep(layer, at, queries, 0, first, rows, space, products, queue);
}

}  // namespace

Cache cache_to_host(const CacheStore& store, int layer, const HeldCache& held, const Queue& queue) {
  const LayerSpec& spec = store.spec(layer);
  Cache result(spec);
  Cache::State& state = result.state();
  const LayerCache& cache = store.layer(layer);
  state.length = held.length;
  state.dropped = state.layout.dropped(state.length);
  const Mover mover(queue);
  groups_read(spec, cache, held, state.layout.groups(state.length), mover, queue, state);
  exact_read(spec, cache, held.place, mover, state);
  queries_read(spec, cache, held, mover, state);
  return result;
}

void cache_from_host_check(const Cache& cache, const LayerSpec& expected) {
  LayerSpec spec = cache.spec();
  spec.dtype = expected.dtype;
  if (spec != expected) {
    fail_incompatible("this cache is of a layer with another shape or other settings");
  }
  if (!cache.state().settled()) {
    fail_incompatible("this cache is in the middle of a run; end it before it is moved");
  }
}

std::int64_t host_queries_first(std::span<const Cache> caches) {
  std::int64_t first = caches.front().length();
  for (const Cache& cache : caches) {
    first = std::min(first, cache.length() - cache.state().queries.rows());
  }
  return first;
}

void cache_from_host(const Cache& host, const LayerView& layer, const HeldCache& held,
                     HostPart part, const ProductSpace& products, const Queue& queue) {
  const Cache::State& state = host.state();
  cache_from_host_check(host, layer.spec);
  const Mover mover(queue);
  const bool groups = part == HostPart::all;
  DeviceCarver plan;
  if (groups) groups_write(state, layer.cache, held, mover, queue, plan);
  queries_write(state, layer, held.place, mover, products, queue, plan);
  const Buffer memory(std::max<std::size_t>(plan.used(), 1));
  DeviceCarver carver(memory.as<void>());
  if (groups) groups_write(state, layer.cache, held, mover, queue, carver);
  exact_write(state, layer.cache, held.place, mover);
  queries_write(state, layer, held.place, mover, products, queue, carver);
  check(cudaStreamSynchronize(queue), "running on the GPU");  // before its scratch is freed
}

}  // namespace lca::cuda
