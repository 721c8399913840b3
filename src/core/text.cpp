#include "core/text.h"

#include <fmt/format.h>

#include <cstdint>

namespace lca {
namespace {

struct CodePoint {
  std::uint32_t value = 0;
  std::size_t bytes = 0;  // 0: not UTF-8
};

/// Decodes the first character of a text that is not empty. Overlong forms and surrogates do not
/// count as UTF-8.
CodePoint code_point_decode(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};

  std::size_t bytes = 0;
  std::uint32_t smallest = 0;
  if (lead >= 0xc2 && lead < 0xe0) {
    bytes = 2, smallest = 0x80;
  } else if (lead >= 0xe0 && lead < 0xf0) {
    bytes = 3, smallest = 0x800;
  } else if (lead >= 0xf0 && lead < 0xf5) {
    bytes = 4, smallest = 0x10000;
  }
  if (bytes == 0 || text.size() < bytes) return {};

  std::uint32_t value = lead & (0xffu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0u) != 0x80u) return {};
    value = (value << 6) | (byte(i) & 0x3fu);
  }
  if (value < smallest || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) return {};
  return {value, bytes};
}

/// Characters that would break the line, or make a terminal show something else than the text.
bool is_unprintable(std::uint32_t c) {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x200e || c == 0x200f ||
         (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) || c == 0xfeff;
}

}  // namespace

std::string text_printable(std::string_view text, std::size_t limit) {
  std::string line;
  while (!text.empty()) {
    const CodePoint c = code_point_decode(text);
    std::string piece;
    if (c.bytes == 0) {
      piece = fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    } else if (is_unprintable(c.value)) {
      piece =
          c.value < 0x100 ? fmt::format("\\x{:02x}", c.value) : fmt::format("\\u{:04x}", c.value);
    } else {
      piece = text.substr(0, c.bytes);
    }
    if (line.size() + piece.size() > limit) return line + "…";
    line += piece;
    text.remove_prefix(c.bytes == 0 ? 1 : c.bytes);
  }
  return line;
}

}  // namespace lca
