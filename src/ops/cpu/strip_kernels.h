#pragma once
/// Work on weights in strips, one table for each instruction set.

#include <cstdint>

#include "ops/packed.h"
#include "ops/quantised_rows.h"

namespace lca {

struct StripKernels {
  /// out[m · stride + n] = row m of x · row n of w, for weight rows first … end − 1. For few rows.
  void (*dot)(const PackedMatrix& w, std::int64_t first, std::int64_t end, const QuantisedRows& x,
              std::int64_t rows, float* out, std::int64_t stride) = nullptr;
  /// The first `count` rows of a strip, one after another, rounded to bfloat16.
  void (*unpack)(const PackedMatrix& w, std::int64_t strip, int count, bf16_bits* to) = nullptr;
  /// The same as float32.
  void (*unpack_wide)(const PackedMatrix& w, std::int64_t strip, int count, float* to) = nullptr;
  /// The product for many rows, to the same bits; null where bfloat16 or float32 are as fast.
  /// `scratch`: panel_bytes.
  void (*dot_many)(const PackedMatrix& w, std::int64_t first, std::int64_t end, const WordRows& x,
                   std::int64_t rows, float* out, std::int64_t stride, void* scratch) = nullptr;

  /// For one strip of `columns` columns: 16-bit quants, and two numbers for each 16 of them.
  static std::size_t panel_bytes(std::int64_t columns) {
    return static_cast<std::size_t>(columns) * 16 * sizeof(std::int16_t) +
           static_cast<std::size_t>(columns) * 2 * sizeof(float);
  }
};

#if defined(__x86_64__)
namespace vnni {
extern const StripKernels kStrips;  ///< avx512vnni.cpp
}
namespace avx2 {
extern const StripKernels kStrips;  ///< avx2.cpp
}
#elif defined(__aarch64__)
namespace neon {
extern const StripKernels kStrips;  ///< neon.cpp
}
namespace neon_dotprod {
extern const StripKernels kStrips;  ///< neon_dotprod.cpp
}
#endif

/// Those for the level in use (core/cpu_level.h); nulls where there are none.
const StripKernels& strips_in_use();

}  // namespace lca
