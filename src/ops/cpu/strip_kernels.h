#pragma once
/// Products of weights in strips with few rows of activations, one table for each instruction set.

#include <cstdint>

#include "ops/packed.h"
#include "ops/quantised_rows.h"

namespace lca {

/// out[m · stride + n] = row m of x · row n of w, for weight rows first … end − 1.
using StripsDot = void (*)(const PackedMatrix& w, std::int64_t first, std::int64_t end,
                           const QuantisedRows& x, std::int64_t rows, float* out,
                           std::int64_t stride);

#if defined(__x86_64__)
namespace vnni {
extern const StripsDot kStripsDot;  ///< avx512vnni.cpp
}
namespace avx2 {
extern const StripsDot kStripsDot;  ///< avx2.cpp
}
#elif defined(__aarch64__)
namespace neon {
extern const StripsDot kStripsDot;  ///< neon.cpp
}
namespace neon_dotprod {
extern const StripsDot kStripsDot;  ///< neon_dotprod.cpp
}
#endif

/// The product for the level in use (core/cpu_level.h), or null.
StripsDot strips_dot_in_use();

}  // namespace lca
