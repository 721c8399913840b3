#pragma once
/// One GGUF file by itself: what `Gguf` puts together from one or several parts.

#include "formats/gguf/gguf.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lca {

/// The checked content of one file; views into its bytes.
struct GgufPart {
  std::string name;  ///< what messages call the file, printable
  std::unordered_map<std::string, GgufValue> values;
  std::vector<GgufTensor> tensors;  ///< sorted by name
};

/// Reads a whole file; throws Error naming file and key or tensor.
GgufPart gguf_part_parse(std::span<const std::byte> bytes, std::string_view name);

}  // namespace lca
