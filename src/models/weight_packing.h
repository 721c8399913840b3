#pragma once
/// Which weights are packed while a model is loaded, and their size afterwards.

#include <lca/model.h>

#include <cstddef>
#include <cstdint>

#include "formats/checkpoint.h"

namespace lca {

/// The type that weights are packed into; not for `keep`.
PackedType packing_type(WeightPacking packing);
/// "q8_0", "q4_0", or "keep".
const char* packing_name(WeightPacking packing);

/// Whether a linear weight of this type with `columns` columns is packed: it must be unpacked, and
/// its rows whole blocks. Weights that are packed already stay as they are.
bool weight_packs(PackedType type, std::int64_t columns, WeightPacking packing);

/// Bytes of all weights after packing.
std::size_t weight_bytes(const Checkpoint& checkpoint, WeightPacking packing);

/// Throws Error (bad input) if packing is requested and there is nothing to pack.
void packing_require(const Checkpoint& checkpoint, WeightPacking packing);

}  // namespace lca
