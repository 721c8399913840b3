#include "ops/packed.h"

#include <array>

namespace lca {
namespace {

// In the order of PackedType.
constexpr std::array<PackedTypeInfo, kPackedTypes> kInfo = {{
    {"F32", 1, 4},
    {"F16", 1, 2},
    {"BF16", 1, 2},
    {"Q4_0", 32, 18},
    {"Q4_1", 32, 20},
    {"Q5_0", 32, 22},
    {"Q5_1", 32, 24},
    {"Q8_0", 32, 34},
    {"Q4_K", 256, 144},
    {"Q5_K", 256, 176},
    {"Q6_K", 256, 210},
}};

}  // namespace

const PackedTypeInfo& packed_type_info(PackedType type) {
  return kInfo[static_cast<std::size_t>(type)];
}

std::size_t packed_bytes(PackedType type, std::int64_t values) {
  const PackedTypeInfo& info = packed_type_info(type);
  return static_cast<std::size_t>(values / info.block_values) * info.block_bytes;
}

}  // namespace lca
