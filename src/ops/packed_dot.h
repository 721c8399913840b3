#pragma once
/// Dot products of packed weight rows with activations rounded to 8 bits, for steps of one or a few
/// tokens: a weight is read once, packed, and never written back unpacked.

#include <cstdint>

#include "ops/packed.h"

namespace lca {

/// Activations in blocks of 32: value = scale · quant, quant in −127 … 127.
struct QuantisedRows {
  std::int8_t* quants = nullptr;  ///< [rows, blocks · 32]
  float* scales = nullptr;        ///< [rows, blocks]
  /// Sums of the quants of each half block, times the block's scale: [rows, blocks · 2].
  float* sums = nullptr;
  std::int64_t blocks = 0;
};

/// Whether this processor and this storage type have such products.
bool packed_dot_supported(PackedType type);

/// Bytes of scratch for `rows` rows of `columns` values.
std::size_t quantised_bytes(std::int64_t rows, std::int64_t columns);

/// Carves `memory` and rounds rows of `columns` values (a multiple of 32) into it.
QuantisedRows quantise_rows(const float* x, std::int64_t rows, std::int64_t columns,
                            std::byte* memory);

/// out[m · stride + n] = row m of x · row n of w, for weight rows first … end − 1.
void packed_dot(const PackedMatrix& w, std::int64_t first, std::int64_t end, const QuantisedRows& x,
                std::int64_t rows, float* out, std::int64_t stride);

}  // namespace lca
