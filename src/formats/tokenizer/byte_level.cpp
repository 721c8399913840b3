#include "formats/tokenizer/byte_level.h"

#include "formats/tokenizer/utf8.h"

#include <array>

namespace lca {
namespace {

struct Alphabet {
  std::array<std::uint16_t, 256> character{};  // of a byte
  std::array<std::int16_t, 512> byte{};        // of a character; -1: none

  Alphabet() {
    byte.fill(-1);
    // Bytes that are printable characters in Latin-1 stand for themselves, the others for
    // characters from U+0100 in their order.
    std::uint16_t next = 256;
    for (std::uint16_t b = 0; b < 256; ++b) {
      const bool is_printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
      character[b] = is_printable ? b : next++;
      byte[character[b]] = static_cast<std::int16_t>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

void byte_level_spell(std::string& to, std::string_view bytes) {
  for (const char byte : bytes) {
    utf8_append(to, alphabet().character[static_cast<unsigned char>(byte)]);
  }
}

std::optional<std::string> byte_level_read(std::string_view token) {
  std::string bytes;
  for (std::size_t at = 0; at < token.size();) {
    const Utf8Step step = utf8_step(token.substr(at));
    if (step.kind != Utf8Step::Kind::good || step.code >= 512) return std::nullopt;
    const std::int16_t byte = alphabet().byte[step.code];
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    at += step.bytes;
  }
  return bytes;
}

}  // namespace lca
