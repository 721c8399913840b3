#pragma once
/// Weights as they lie on disk: plain numbers, or blocks of a few bits a value with shared scales
/// (ggml's layouts). Matrices keep that form in memory; operators unpack what they need.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "core/bf16.h"

namespace lca {

/// The storage types we read.
enum class PackedType : std::uint8_t {
  f32,
  f16,
  bf16,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q4_k,
  q5_k,
  q6_k
};

inline constexpr int kPackedTypes = 11;

/// What is fixed about a storage type.
struct PackedTypeInfo {
  std::string_view name;      ///< "F32", "Q4_K", …
  std::int64_t block_values;  ///< values that share a block; 1 for plain numbers
  std::size_t block_bytes;
};

const PackedTypeInfo& packed_type_info(PackedType type);

/// Bytes of `values` values; `values` is a multiple of the type's block.
std::size_t packed_bytes(PackedType type, std::int64_t values);

/// A matrix in a storage type; every row holds whole blocks. Row-major, memory of any alignment,
/// or laid out in strips of rows (strips.h), on cache lines.
struct PackedMatrix {
  const std::byte* data = nullptr;
  PackedType type = PackedType::f32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  bool strips = false;  ///< `row` and `slice` are then not to be used

  bool empty() const { return data == nullptr; }
  std::size_t row_bytes() const { return packed_bytes(type, columns); }
  std::size_t bytes() const { return static_cast<std::size_t>(rows) * row_bytes(); }
  const std::byte* row(std::int64_t index) const {
    return data + static_cast<std::size_t>(index) * row_bytes();
  }
  /// Rows first … first + count − 1.
  PackedMatrix slice(std::int64_t first, std::int64_t count) const {
    return {row(first), type, count, columns};
  }
};

/// Unpacks `values` values (whole blocks) to float32.
void unpack_f32(PackedType type, const std::byte* source, float* out, std::int64_t values);

/// The same, each value rounded to the nearest bfloat16 (ties to even).
void unpack_bf16(PackedType type, const std::byte* source, bf16_bits* out, std::int64_t values);

}  // namespace lca
