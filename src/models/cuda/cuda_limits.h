#pragma once
/// What a model on a GPU is made for.

#include <cstdint>

#include "attention/cuda/cache/store_sizes.h"

namespace lca::cuda {

/// Sequences at a time and tokens of one: addresses alone, memory comes as it is needed.
inline constexpr StoreLimits kStoreLimits{
    .sequences = 2048, .longest = (std::int64_t{1} << 20) + (std::int64_t{1} << 16)};

/// Tokens of a prompt that pass the model together, unless the session says otherwise.
inline constexpr std::int64_t kPromptChunk = 16384;

}  // namespace lca::cuda
