#pragma once
/// Which weights are packed while a model is loaded, and their size and an adapter's afterwards.

#include <lca/model.h>

#include <cstddef>
#include <cstdint>

#include "formats/adapter.h"
#include "formats/checkpoint.h"
#include "ops/linear.h"

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

/// Bytes of an adapter beside the weights on the CPU, for products of `type`. MLA's kv_b_proj is
/// not counted: it is unpacked, and its change merged.
std::size_t adapter_bytes(const Adapter& adapter, ProductType type);

/// Throws Error (bad input) if packing is requested and there is nothing to pack.
void packing_require(const Checkpoint& checkpoint, WeightPacking packing);

}  // namespace lca
