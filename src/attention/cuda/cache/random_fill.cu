// Random values straight into caches: DeepSeek-V2-Lite at 128K writes 0.28 GB, well below a
// millisecond; the launches, some ten per layer, take longer.

#include "attention/cuda/cache/random_fill.h"

#include <algorithm>

#include "attention/cuda/condense/condense.h"

namespace lca::cuda {
namespace {

constexpr int kFillThreads = 256;

/// Uniform in [−1, 1) from a number (splitmix64).
__device__ float uniform_of(std::uint64_t number) {
  number += 0x9e3779b97f4a7c15u;
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9u;
  number = (number ^ (number >> 27)) * 0x94d049bb133111ebu;
  number ^= number >> 31;
  return static_cast<float>(static_cast<std::int32_t>(number >> 32)) * 0x1p-31f;
}

__device__ void value_set(bf16& to, float value) { to = __float2bfloat16(value); }
__device__ void value_set(float& to, float value) { to = value; }

template <typename T>
__global__ void fill_kernel(T* to, std::int64_t count, float size, std::uint64_t seed) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kFillThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kFillThreads + threadIdx.x;
       i < count; i += step) {
    value_set(to[i], size * uniform_of(seed + static_cast<std::uint64_t>(i)));
  }
}

class Filler {
 public:
  Filler(std::uint64_t seed, const Queue& queue) : next_(seed << 40), queue_(queue) {}

  template <typename T>
  void operator()(T* to, std::int64_t count, float size) {
    if (to == nullptr || count == 0) return;
    const std::int64_t blocks = std::min<std::int64_t>((count + kFillThreads - 1) / kFillThreads,
                                                       8 * queue_.device->multiprocessors);
    fill_kernel<<<static_cast<unsigned>(blocks), kFillThreads, 0, queue_.stream>>>(to, count, size,
                                                                                   next_);
    check(cudaGetLastError(), "filling a cache");
    next_ += static_cast<std::uint64_t>(count);
  }

 private:
  std::uint64_t next_;
  const Queue& queue_;
};

}  // namespace

void cache_fill_random(CacheSequence& sequence, std::int64_t length, std::uint64_t seed,
                       const Queue& queue) {
  sequence.replace(length, 0);
  const CacheStore& store = sequence.store();
  const CachePlace at = sequence.held().place;
  const AttentionShape& shape = store.spec(0).shape;
  const std::int64_t semantic = shape.kv_heads * shape.d_semantic();
  const std::int64_t positional = shape.kv_heads * shape.d_positional();
  constexpr std::int64_t kRows = 8192;  // representatives at a time
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
  Filler fill(seed, queue);
  for (int i = 0; i < store.layers(); ++i) {
    const LayerCache& cache = store.layer(i);
    const std::int64_t rows = std::min(cache.exact_each, length);
    fill(cache.semantic_of(at), rows * semantic, 1.f);
    fill(cache.positional_of(at), rows * positional, 1.f);
    if (cache.recent == 0) continue;
    fill(cache.summary_of(at), cache.summary_rows * cache.summary_values, kQuerySize);
    if (cache.recent_nope != nullptr) {
      fill(cache.recent_nope_of(at), cache.recent * shape.heads * shape.d_nope, kQuerySize);
    }
    fill(cache.recent_rope_of(at), cache.recent * shape.heads * shape.d_rope, kQuerySize);
    const std::int64_t groups = Layout(store.spec(i).settings).groups(length);
    for (std::int64_t first = 0; first < groups; first += kRows) {
      const std::int64_t count = std::min(kRows, groups - first);
      fill(rows_semantic, count * semantic, 1.f);
      fill(rows_positional, count * positional, 1.f);
      fill(rows_bias, count * shape.kv_heads, 1.f);
      groups_append(shape, cache.pool, cache.pages_of(at), first, count, rows_semantic,
                    rows_positional, rows_bias, queue);
    }
  }
  check(cudaStreamSynchronize(queue), "filling a cache");  // before the scratch is freed
}

}  // namespace lca::cuda
