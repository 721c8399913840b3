#pragma once
/// UTF-8 as tokenizers need it: replacing what is none, and a few classes of characters.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lca {

constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";  // U+FFFD

/// What stands at the front of a text.
struct Utf8Step {
  enum class Kind : std::uint8_t {
    good,  ///< a character
    bad,   ///< bytes that begin no character, whatever follows them
    cut,   ///< the text ends inside what may become a character
  };
  Kind kind = Kind::bad;
  std::uint8_t bytes = 0;  ///< 1 to 4
  std::uint32_t code = 0;  ///< of kind `good`
};

/// Looks at the front of a text that is not empty. A bad sequence is as long as Unicode's "maximal
/// subpart" rule makes it, so that everybody counts the same number of them.
Utf8Step utf8_step(std::string_view text);

/// `text` with each sequence that is not UTF-8 replaced by one U+FFFD.
std::string utf8_clean(std::string_view text);
/// The same, appended to `to`.
void utf8_clean_append(std::string& to, std::string_view text);
/// Whether `text` is UTF-8 as a whole.
bool utf8_is_valid(std::string_view text);
/// Length of the end of `text` that may become a character with more bytes: 0 to 3.
std::size_t utf8_cut_bytes(std::string_view text);
/// Appends one character.
void utf8_append(std::string& to, std::uint32_t code);

/// Length of the character at the front of valid UTF-8.
inline std::size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

/// Unicode's White_Space.
bool is_white_space(std::uint32_t code);
/// Unicode's categories Nd, Nl and No.
bool is_numeric(std::uint32_t code);
/// Letters, marks, digits and connectors: what makes up words.
bool is_word(std::uint32_t code);

}  // namespace lca
