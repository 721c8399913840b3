#pragma once
/// All operations on a cache that `load` accepted, whatever its bytes. Header-only, for the fuzz
/// target as well as the tests.

#include <lca/lca.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <vector>

namespace lca::test {

/// Aborts, so that a fuzzer or a sanitizer detects it.
inline void cache_require(bool holds) {
  if (!holds) std::abort();
}

/// Reads every byte of a view, so that a sanitizer detects accesses outside its memory.
inline void cache_touch(const ConstTensor& tensor) {
  volatile unsigned char sink = 0;
  for (std::int64_t i = 0; i < tensor.shape[0]; ++i) {
    for (std::int64_t j = 0; j < tensor.shape[1]; ++j) {
      const auto* row = static_cast<const unsigned char*>(tensor.row(i, j));
      const auto bytes = static_cast<std::size_t>(tensor.shape[2]) * dtype_bytes(tensor.dtype);
      for (std::size_t k = 0; k < bytes; ++k) sink = sink ^ row[k];
    }
  }
}

/// One more token, all zeros, through the cache's own method, where the layer is small enough to be
/// quick.
inline void cache_step(Cache& cache) {
  const LayerSpec& spec = cache.spec();
  const AttentionShape& shape = spec.shape;
  constexpr std::int64_t kMost = 64;
  for (std::int64_t size :
       {shape.heads, shape.kv_heads, shape.d_nope, shape.d_rope, shape.d_latent, shape.d_value}) {
    if (size > kMost) return;
  }
  static const std::vector<float> zeros(static_cast<std::size_t>(kMost * kMost * kMost));
  const auto tensor = [&](std::int64_t d0, std::int64_t d1, std::int64_t d2) {
    return ConstTensor(zeros.data(), DType::f32, {d0, d1, d2});
  };
  LayerWeights weights;
  Run run;
  if (shape.form == Form::mla) {
    weights.w_uk = tensor(shape.heads, shape.d_nope, shape.d_latent);
    weights.w_uv = tensor(shape.heads, shape.d_value, shape.d_latent);
    run.queries.nope = tensor(1, shape.heads, shape.d_nope);
  }
  run.queries.rope = tensor(1, shape.heads, shape.d_rope);
  run.entries.semantic = tensor(1, shape.kv_heads, shape.d_semantic());
  run.entries.positional = tensor(1, shape.kv_heads, shape.d_positional());
  for (ConstTensor* entry : {&run.entries.semantic, &run.entries.positional}) {
    entry->dtype = spec.dtype;  // zero is zero in both types
  }
  std::vector<float> out(static_cast<std::size_t>(shape.heads * shape.d_value));
  std::vector<float> lse(static_cast<std::size_t>(shape.heads));
  run.cache = &cache;
  run.out = out.data();
  run.lse = lse.data();
  static Context context(1);
  method_for(spec.settings.method).forward(context, weights, {&run, 1});
}

/// All of these operations; aborts if an invariant is broken.
inline void cache_exercise(const Cache& cache) {
  const std::vector<std::byte> stream = cache.save();
  const Cache again = Cache::load(stream);
  cache_require(again.save() == stream);
  cache_require(again.spec() == cache.spec());
  cache_require(again.length() == cache.length());
  cache_require(again.groups() == cache.groups());
  cache_require(again.bytes() == cache.bytes());
  for (std::int64_t j = 0; j < cache.groups(); ++j) {
    const Entries representative = cache.representative(j);
    cache_touch(representative.semantic);
    cache_touch(representative.positional);
    for (std::int64_t kv = 0; kv < cache.spec().shape.kv_heads; ++kv) (void)cache.bias(j, kv);
  }

  Cache copy = cache.clone();
  cache_require(copy.save() == stream);
  const std::int64_t length = copy.length();
  constexpr std::int64_t kSteps = 6;  // enough to condense a small group from what was loaded
  try {
    for (std::int64_t step = 0; step < kSteps; ++step) cache_step(copy);
    cache_require(copy.length() == length || copy.length() == length + kSteps);
    const std::int64_t floor = copy.truncate_floor();
    copy.truncate(floor);
    cache_require(copy.length() == floor);
  } catch (const Error&) {
    // A stream may stop where a step is refused (an open prompt), or a mode refuse to go back.
  }
  cache_require(cache.save() == stream);  // the copy was independent
}

}  // namespace lca::test
