#pragma once
/// A tokenizer for weights that have none.

#include <lca/tokenizer.h>

#include <cstdint>

namespace lca::server {

/// Token `i` of `size` reads " i". It encodes no text.
Tokenizer number_tokenizer(std::int64_t size);

}  // namespace lca::server
