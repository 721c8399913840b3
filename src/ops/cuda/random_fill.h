#pragma once
/// Made-up values on the GPU.

#include <cstdint>

#include "core/cuda/device.h"
#include "core/cuda/head_rows.h"

namespace lca::cuda {

/// Values that are nearly normal, different for every index and seed.
void random_fill(bf16* data, std::int64_t count, float deviation, std::uint32_t seed,
                 cudaStream_t stream);
void random_fill(float* data, std::int64_t count, float deviation, std::uint32_t seed,
                 cudaStream_t stream);

/// One value everywhere.
void value_fill(float* data, std::int64_t count, float value, cudaStream_t stream);

}  // namespace lca::cuda
