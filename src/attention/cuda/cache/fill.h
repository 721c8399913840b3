#pragma once
/// Caches without a prompt, for measurements.

#include <cstdint>

#include "attention/cuda/cache/sequence.h"

namespace lca::cuda {

/// Makes a sequence of `length` tokens whose exact tokens, representatives and queries are random
/// numbers, in memory of its own. Throws Error (out of memory); waits for the store's stream.
void cache_fill(CacheSequence& sequence, std::int64_t length, std::uint32_t seed);

}  // namespace lca::cuda
