#pragma once
/// Caches with random contents, for benchmarks that need long sequences and not what is in them.

#include "attention/cuda/cache/sequence.h"

namespace lca::cuda {

/// Makes `sequence` one of `length` tokens in memory of its own: values uniform in [−1, 1), queries
/// smaller. Waits for the stream. Throws Error (out of memory).
void cache_fill_random(CacheSequence& sequence, std::int64_t length, std::uint64_t seed,
                       const Queue& queue);

}  // namespace lca::cuda
