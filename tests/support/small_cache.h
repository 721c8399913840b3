#pragma once
/// Layers small enough for exhaustive tests of their caches.

#include "support/random_layer.h"

namespace lca::test {

inline const AttentionShape kMla = AttentionShape::mla(2, 4, 3, 9, 5);
inline const AttentionShape kGqa = AttentionShape::gqa(4, 2, 6, 5);

/// One of the two shapes, of either dtype, plain or of 8 bits, with any settings that a run of
/// `count` tokens can show.
inline LayerSpec random_spec(Random& random, std::int64_t count) {
  LayerSpec spec;
  spec.shape = random.chance(0.5) ? kMla : kGqa;
  spec.dtype = random.chance(0.5) ? DType::f32 : DType::bf16;
  spec.settings = random_settings(random, count);
  random_positions(spec, random);
  if (random.chance(0.3)) spec.storage = CacheStorage::int8;
  return spec;
}

}  // namespace lca::test
