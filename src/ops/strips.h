#pragma once
/// A second layout of packed weights, for products with one row or a few: strips of 16 rows, whose
/// blocks lie side by side so that one vector holds four columns of every row. Sums then need no
/// adding across lanes, scales come sixteen at a time, and memory is read in one stream. A strip
/// takes as many bytes as its rows did, and at most a cache line more.

#include <cstddef>
#include <cstdint>

#include "core/bf16.h"
#include "ops/packed.h"
#include "ops/quantised_rows.h"

namespace lca {

inline constexpr std::int64_t kStripRows = 16;

/// Whether weights of this type have such a layout, and this processor the product for it.
bool strips_supported(PackedType type);

/// Bytes of one strip of a matrix of `columns` columns; a multiple of a cache line.
std::size_t strip_bytes(PackedType type, std::int64_t columns);

/// Strips of a matrix; the last one is filled up with zeros.
constexpr std::int64_t strip_count(std::int64_t rows) {
  return (rows + kStripRows - 1) / kStripRows;
}

/// Lays rows 16·strip … of a row-major matrix out as a strip.
void strip_arrange(const PackedMatrix& rows, std::int64_t strip, std::byte* to);

/// Rows first (a multiple of 16) … first + count − 1 of weights in strips, rounded to bfloat16; the
/// second writes them as float32.
void strips_unpack_bf16(const PackedMatrix& strips, std::int64_t first, std::int64_t count,
                        bf16_bits* to);
void strips_unpack_rounded(const PackedMatrix& strips, std::int64_t first, std::int64_t count,
                           float* to);

/// One row of a matrix in strips, packed as it was.
void strip_row_restore(const PackedMatrix& strips, std::int64_t row, std::byte* to);

/// out[m · stride + n] = row m of x · row n of w, for weight rows first (a multiple of 16) …
/// end − 1; `w` in strips.
void strips_dot(const PackedMatrix& w, std::int64_t first, std::int64_t end, const QuantisedRows& x,
                std::int64_t rows, float* out, std::int64_t stride);

/// The same for many rows, to the same bits, where this processor has a fast one. `scratch` takes
/// strips_many_bytes.
bool strips_many_supported();
std::size_t strips_many_bytes(std::int64_t columns);
void strips_dot_many(const PackedMatrix& w, std::int64_t first, std::int64_t end, const WordRows& x,
                     std::int64_t rows, float* out, std::int64_t stride, void* scratch);

}  // namespace lca
