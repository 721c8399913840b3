#pragma once
/// Random numbers made on the GPU, for measurements. The same seed gives the same numbers.

#include <cstdint>

#include "core/cuda/device.h"
#include "core/cuda/head_rows.h"

namespace lca::cuda {

/// Values of mean 0 and standard deviation `deviation`, about normal.
void random_fill(bf16* to, std::int64_t count, float deviation, std::uint64_t seed,
                 const Queue& queue);
void random_fill(float* to, std::int64_t count, float deviation, std::uint64_t seed,
                 const Queue& queue);
/// The same value everywhere.
void value_fill(float* to, std::int64_t count, float value, const Queue& queue);

}  // namespace lca::cuda
