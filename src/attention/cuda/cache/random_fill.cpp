#include "attention/cuda/cache/random_fill.h"

#include <algorithm>
#include <tuple>

#include "attention/cuda/condense/condense.h"
#include "ops/cuda/random_fill.h"

namespace lca::cuda {

void cache_fill_random(CacheSequence& sequence, std::int64_t length, std::uint32_t seed,
                       const Queue& queue) {
  const DeviceScope scope(*queue.device);
  sequence.replace(length, 0);
  const CacheStore& store = sequence.store();
  const CachePlace at = sequence.held().place;
  const AttentionShape& shape = store.spec(0).shape;
  const std::int64_t semantic = shape.kv_heads * shape.d_semantic();
  const std::int64_t positional = shape.kv_heads * shape.d_positional();
  constexpr std::int64_t kRows = 8192;  // representatives at a time
  constexpr float kEntrySize = 0.5f;
  constexpr float kQuerySize = 0.1f;
  const auto carve = [&](DeviceCarver& carver) {
    return std::tuple(carver.take<bf16>(kRows * semantic), carver.take<bf16>(kRows * positional),
                      carver.take<float>(kRows * shape.kv_heads));
  };
  DeviceCarver plan;
  carve(plan);
  const Buffer memory(plan.used());
  DeviceCarver carver(memory.as<void>());
  const auto [rows_semantic, rows_positional, rows_bias] = carve(carver);
  seed *= 1u << 16;  // a number for every call below
  const auto fill = [&](auto* to, std::int64_t count, float size) {
    if (to != nullptr) random_fill(to, count, size, ++seed, queue);
  };
  for (int i = 0; i < store.layers(); ++i) {
    const LayerCache& cache = store.layer(i);
    const std::int64_t rows = std::min(cache.exact_each, length);
    fill(cache.semantic_of(at), rows * semantic, kEntrySize);
    fill(cache.positional_of(at), rows * positional, kEntrySize);
    if (cache.recent == 0) continue;
    fill(cache.summary_of(at), cache.summary_rows * cache.summary_values, kQuerySize);
    if (cache.recent_nope != nullptr) {
      fill(cache.recent_nope_of(at), cache.recent * shape.heads * shape.d_nope, kQuerySize);
    }
    fill(cache.recent_rope_of(at), cache.recent * shape.heads * shape.d_rope, kQuerySize);
    const std::int64_t groups = Layout(store.spec(i).settings).groups(length);
    for (std::int64_t first = 0; first < groups; first += kRows) {
      const std::int64_t count = std::min(kRows, groups - first);
      fill(rows_semantic, count * semantic, kEntrySize);
      fill(rows_positional, count * positional, kEntrySize);
      fill(rows_bias, count * shape.kv_heads, kEntrySize);
      groups_append(shape, cache.pool, cache.pages_of(at), first, count, rows_semantic,
                    rows_positional, rows_bias, queue);
    }
  }
  check(cudaStreamSynchronize(queue), "filling a cache");  // before the scratch is freed
}

}  // namespace lca::cuda
