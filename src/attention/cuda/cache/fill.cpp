#include "attention/cuda/cache/fill.h"

#include <algorithm>

#include "attention/cuda/condense/condense.h"
#include "ops/cuda/random_fill.h"

namespace lca::cuda {
namespace {

/// Groups that are made at once.
constexpr std::int64_t kSomeGroups = 4096;
/// Of entries; a model's are of order one.
constexpr float kFillDeviation = 0.5F;

}  // namespace

void cache_fill(CacheSequence& sequence, std::int64_t length, std::uint32_t seed) {
  CacheStore& store = sequence.store();
  const Queue& queue = store.queue();
  const DeviceScope scope(*queue.device);
  sequence.replace(length, length);
  const HeldCache held = sequence.held();
  const AttentionShape& shape = store.spec(0).shape;
  const std::int64_t semantic = shape.kv_heads * shape.d_semantic();
  const std::int64_t positional = shape.kv_heads * shape.d_positional();
  Buffer some(static_cast<std::size_t>(kSomeGroups * (semantic + positional)) * sizeof(bf16));
  Buffer biases(static_cast<std::size_t>(kSomeGroups * shape.kv_heads) * sizeof(float));
  random_fill(some.as<bf16>(), kSomeGroups * (semantic + positional), kFillDeviation, seed, queue);
  value_fill(biases.as<float>(), kSomeGroups * shape.kv_heads, 0, queue);
  for (int index = 0; index < store.layers(); ++index) {
    const LayerCache& layer = store.layer(index);
    const std::int64_t rows = std::min(layer.exact_each, length);
    random_fill(layer.semantic_of(held.place), rows * semantic, kFillDeviation, ++seed, queue);
    random_fill(layer.positional_of(held.place), rows * positional, kFillDeviation, ++seed, queue);
    if (layer.summary_rows == 0) continue;
    random_fill(layer.summary_of(held.place), layer.summary_rows * layer.summary_values,
                kFillDeviation, ++seed, queue);
    const std::int64_t groups = Layout(store.spec(index).settings).groups(length);
    for (std::int64_t first = 0; first < groups; first += kSomeGroups) {
      groups_append(shape, layer.pool, layer.pages_of(held.place), first,
                    std::min(kSomeGroups, groups - first), some.as<bf16>(),
                    some.as<bf16>() + kSomeGroups * semantic,
                    layer.pool.bias == nullptr ? nullptr : biases.as<float>(), queue);
    }
  }
  check(cudaStreamSynchronize(queue), "filling a cache");
}

}  // namespace lca::cuda
