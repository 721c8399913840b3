#pragma once
/// The alphabet of byte-level BPE: a printable character for each of the 256 bytes.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lca {

/// `bytes` spelled in the alphabet, as vocabularies hold them; appended to `to`.
void byte_level_spell(std::string& to, std::string_view bytes);
/// The bytes a token spells; nothing where it has a character that is not of the alphabet.
std::optional<std::string> byte_level_read(std::string_view token);

}  // namespace lca
