#pragma once
/// Caches with random contents, for benchmarks that need long sequences and not what is in them.

#include <cstdint>

#include "attention/cuda/cache/sequence.h"

namespace lca::cuda {

/// Makes `sequence` one of `length` tokens in memory of its own, about normal values. Waits for the
/// stream. Throws Error (out of memory).
void cache_fill_random(CacheSequence& sequence, std::int64_t length, std::uint32_t seed,
                       const Queue& queue);

}  // namespace lca::cuda
