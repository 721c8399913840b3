#pragma once
/// Settings of a GGUF file that nobody has to read.

#include "formats/gguf/gguf.h"

#include <string_view>

namespace lca {

/// Whether a setting of an architecture (`key` without "llama.") changes nothing we compute, or has
/// the value that asks for nothing.
bool gguf_key_is_idle(std::string_view key, const GgufValue& value);

}  // namespace lca
