#pragma once
/// Rows of 8 bits (mechanism §7), plainly: each becomes the values it is stored as.

#include "attention/reference/heads.h"

#include <cstdint>

namespace lca::reference {

/// Rounds rows `first` and later: of GQA both parts, one scale for each KV head; of MLA the
/// latents, one scale for each 128 values.
void round_int8(const AttentionShape& shape, std::int64_t first, Array& semantic,
                Array& positional);

}  // namespace lca::reference
