#include "formats/tokenizer/utf8.h"

#include "formats/tokenizer/unicode_additions.h"

#include <utf8proc.h>

#include <algorithm>

namespace lca {
namespace {

struct Lead {
  std::uint8_t bytes = 0;                // 0: begins no character
  std::uint8_t low = 0x80, high = 0xbf;  // what the second byte may be
};

Lead lead_of(unsigned char byte) {
  if (byte < 0xc2) return {};
  if (byte < 0xe0) return {2};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte < 0xf0) return {3};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte < 0xf4) return {4};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {};
}

/// Whether a character is of a category in a Unicode newer than utf8proc's.
bool is_addition(std::uint32_t code, char category) {
  return std::ranges::any_of(unicode_additions_of(category), [&](const CodeRange& range) {
    return code >= range.first && code <= range.last;
  });
}

}  // namespace

Utf8Step utf8_step(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return {Utf8Step::Kind::good, 1, byte(0)};
  const Lead lead = lead_of(byte(0));
  if (lead.bytes == 0) return {Utf8Step::Kind::bad, 1, 0};
  std::uint32_t code = byte(0) & (0xffu >> (lead.bytes + 1));
  for (std::uint8_t i = 1; i < lead.bytes; ++i) {
    if (i == text.size()) return {Utf8Step::Kind::cut, i, 0};
    const unsigned low = i == 1 ? lead.low : 0x80;
    const unsigned high = i == 1 ? lead.high : 0xbf;
    if (byte(i) < low || byte(i) > high) return {Utf8Step::Kind::bad, i, 0};
    code = (code << 6) | (byte(i) & 0x3fu);
  }
  return {Utf8Step::Kind::good, lead.bytes, code};
}

void utf8_clean_append(std::string& to, std::string_view text) {
  std::size_t done = 0;  // copied so far
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text.substr(at));
    if (step.kind != Utf8Step::Kind::good) {
      to.append(text.substr(done, at - done));
      to.append(kReplacementCharacter);
      done = at + step.bytes;
    }
    at += step.bytes;
  }
  to.append(text.substr(done));
}

std::string utf8_clean(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  utf8_clean_append(clean, text);
  return clean;
}

bool utf8_is_valid(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text.substr(at));
    if (step.kind != Utf8Step::Kind::good) return false;
    at += step.bytes;
  }
  return true;
}

std::size_t utf8_cut_bytes(std::string_view text) {
  // Only the last lead byte can begin a character that is not whole yet.
  for (std::size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xc0u) == 0x80u) continue;
    const Utf8Step step = utf8_step(text.substr(text.size() - back));
    return step.kind == Utf8Step::Kind::cut && step.bytes == back ? back : 0;
  }
  return 0;
}

void utf8_append(std::string& to, std::uint32_t code) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  to.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(count));
}

bool is_white_space(std::uint32_t code) {
  return (code >= 0x09 && code <= 0x0d) || code == 0x20 || code == 0x85 || code == 0xa0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 ||
         code == 0x202f || code == 0x205f || code == 0x3000;
}

bool is_numeric(std::uint32_t code) {
  if (code < 0x80) return code >= '0' && code <= '9';
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  if (category == UTF8PROC_CATEGORY_CN) return is_addition(code, 'N');
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

bool is_word(std::uint32_t code) {
  // Joiners, and letters in circles and squares, which Unicode files under symbols.
  if (code == 0x200c || code == 0x200d || (code >= 0x24b6 && code <= 0x24e9) ||
      (code >= 0x1f130 && code <= 0x1f149) || (code >= 0x1f150 && code <= 0x1f169) ||
      (code >= 0x1f170 && code <= 0x1f189)) {
    return true;
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    case UTF8PROC_CATEGORY_CN:
      return is_addition(code, 'L') || is_addition(code, 'M');
    default:
      return false;
  }
}

}  // namespace lca
