#pragma once
/// The numbers GGUF gives to the storage types of tensors.

#include "ops/packed.h"

#include <cstdint>
#include <string_view>

namespace lca {

/// The storage type of that number; throws Error beginning with `where` that names a type we do not
/// read.
PackedType gguf_tensor_type(std::uint32_t number, std::string_view where);

}  // namespace lca
