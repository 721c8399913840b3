#pragma once
/// Which weights are packed while a model is loaded, and what that leaves of its size.

#include <lca/model.h>

#include <cstddef>
#include <cstdint>

#include "formats/checkpoint.h"

namespace lca {

/// The type that weights are packed into; only where packing is asked for.
PackedType packing_type(WeightPacking packing);
/// "q8_0", "q4_0", or "keep".
const char* packing_name(WeightPacking packing);

/// Whether a linear layer's weight of this type and so many columns is packed: plain numbers in
/// whole blocks. What is packed already stays as it is.
bool weight_packs(PackedType type, std::int64_t columns, WeightPacking packing);

/// Bytes of all weights once those that can be are packed.
std::size_t weight_bytes(const Checkpoint& checkpoint, WeightPacking packing);

/// Throws Error (bad input) where packing is asked for and there is nothing to pack.
void packing_require(const Checkpoint& checkpoint, WeightPacking packing);

}  // namespace lca
