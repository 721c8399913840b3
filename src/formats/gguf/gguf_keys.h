#pragma once
/// Ignored keys of a GGUF file.

#include "formats/gguf/gguf.h"

#include <string_view>

namespace lca {

/// Whether a setting of an architecture (`key` without "llama.") changes nothing we compute, or has
/// a value without effect.
bool gguf_key_is_ignored(std::string_view key, const GgufValue& value);

}  // namespace lca
