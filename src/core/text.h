#pragma once
/// Text that comes from outside and goes into messages.

#include <cstddef>
#include <string>
#include <string_view>

namespace lca {

/// `text` as one printable line: control characters, line separators, direction overrides and bytes
/// that are not UTF-8 become escapes such as \x0a, and what exceeds `limit` bytes becomes "…".
std::string text_printable(std::string_view text, std::size_t limit = 80);

/// The same for a path, which may be long.
inline std::string path_printable(std::string_view path) { return text_printable(path, 1000); }

}  // namespace lca
