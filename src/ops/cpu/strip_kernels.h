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

/// The first `count` rows of a strip, one after another, rounded to bfloat16.
using StripUnpack = void (*)(const PackedMatrix& w, std::int64_t strip, int count, void* to);

/// The same strip as bfloat16, and as float32.
struct StripUnpacks {
  StripUnpack narrow = nullptr, wide = nullptr;
};

#if defined(__x86_64__)
namespace vnni {
extern const StripsDot kStripsDot;  ///< avx512vnni.cpp
extern const StripUnpacks kStripUnpacks;
}  // namespace vnni
namespace avx2 {
extern const StripsDot kStripsDot;  ///< avx2.cpp
extern const StripUnpacks kStripUnpacks;
}  // namespace avx2
#endif

/// The product for the level in use (core/cpu_level.h), or null.
StripsDot strips_dot_in_use();
/// The same; of nulls where there is none.
StripUnpacks strip_unpacks_in_use();

}  // namespace lca
