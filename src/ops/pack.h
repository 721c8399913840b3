#pragma once
/// Plain numbers to blocks of a few bits: Q8_0 and Q4_0, with the bytes that ggml's reference
/// quantisation writes.

#include <lca/context.h>

#include <cstddef>
#include <cstdint>

#include "ops/packed.h"

namespace lca {

/// What became of values that were to be packed.
enum class PackResult : std::uint8_t {
  packed,
  not_finite,  ///< a value is NaN or infinite
  too_large,   ///< a block's scale is beyond half precision
};

/// Whether values are packed into this type.
constexpr bool packs_into(PackedType type) {
  return type == PackedType::q8_0 || type == PackedType::q4_0;
}

/// Packs `values` values (whole blocks) into `type`, one that `packs_into` knows. Where they cannot
/// be packed, blocks that cannot are zero.
PackResult pack_f32(PackedType type, const float* source, std::byte* out, std::int64_t values);

/// Packs a matrix of plain numbers (F32, F16, BF16) whose columns are whole blocks, rows shared out
/// to the context's threads. `out` holds rows × packed_bytes(type, columns).
PackResult pack_matrix(Context& context, const PackedMatrix& source, PackedType type,
                       std::byte* out);

}  // namespace lca
