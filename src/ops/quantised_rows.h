#pragma once
/// Activations rounded to 15 bits, for products with packed weights in steps of one or a few tokens
/// (strips.h). Memory is what such a step waits for, so two 8-bit products a weight cost little,
/// and 8 bits of activation would cost text.

#include <cstddef>
#include <cstdint>

namespace lca {

/// Activations in blocks of 32: value = scale · (128 · high + low), high in −127 … 127, low in
/// −64 … 63.
struct QuantisedRows {
  std::int8_t* high = nullptr;  ///< [rows, blocks · 32]
  std::int8_t* low = nullptr;   ///< the same
  float* scales = nullptr;      ///< [rows, blocks]
  /// Sums of each half block, of what the quants stand for: [rows, blocks · 2].
  float* sums = nullptr;
  std::int64_t blocks = 0;
};

/// The same numbers each in one word, for products of many rows.
struct WordRows {
  std::int16_t* words = nullptr;  ///< [rows, blocks · 32]: 128 · high + low
  float* scales = nullptr;
  float* sums = nullptr;
  std::int64_t blocks = 0;
};

/// Bytes of scratch for `rows` rows of `columns` values (a multiple of 32).
std::size_t quantised_bytes(std::int64_t rows, std::int64_t columns);
/// Lays rows out in `memory`.
QuantisedRows quantised_carve(std::int64_t rows, std::int64_t columns, std::byte* memory);
/// Rounds rows `first` … `first + count − 1` of x; several threads may, each its own rows.
void quantised_round(const float* x, std::int64_t first, std::int64_t count,
                     const QuantisedRows& to);

/// The same in words.
std::size_t words_bytes(std::int64_t rows, std::int64_t columns);
WordRows words_carve(std::int64_t rows, std::int64_t columns, std::byte* memory);
/// Those from row `first` on.
WordRows words_from(const WordRows& rows, std::int64_t first);
void words_round(const float* x, std::int64_t first, std::int64_t count, const WordRows& to);

}  // namespace lca
