#pragma once
/// A tokenizer of bytes and special tokens without merges: ids are easy to predict.

#include "formats/tokenizer/tokenizer_load.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lca::test {

/// `code` in UTF-8; below U+0800 is all that byte-level BPE needs.
inline std::string utf8_of(int code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

/// How byte-level BPE writes each byte: printable ones as they are, the rest from U+0100 on.
inline std::vector<std::string> byte_spellings() {
  std::vector<std::string> spellings;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    spellings.push_back(utf8_of(plain ? byte : next++));
  }
  return spellings;
}

/// Ids 0 … 255 are the bytes, those after them `special`; `begin` and `end` are spellings among
/// those, or empty; `type` is GGUF's: 3 control, 4 user-defined.
inline Tokenizer byte_tokenizer(const std::vector<std::string>& special,
                                std::string_view begin = {}, std::string_view end = {},
                                std::int64_t type = 3) {
  std::vector<std::string> spellings = byte_spellings();
  spellings.insert(spellings.end(), special.begin(), special.end());
  // A merge is required: one of two bytes that occur in no UTF-8 text.
  const std::string merge = spellings[0xfe] + " " + spellings[0xff];
  spellings.push_back(spellings[0xfe] + spellings[0xff]);
  GgufTokenizer tables;
  tables.model = "gpt2";
  tables.pre = "smollm";
  for (std::size_t id = 0; id < spellings.size(); ++id) {
    tables.tokens.emplace_back(spellings[id]);
    tables.types.push_back(id < 256 || id + 1 == spellings.size() ? 1 : type);
    if (id >= 256 && spellings[id] == begin) tables.begin = static_cast<std::int64_t>(id);
    if (id >= 256 && spellings[id] == end) tables.end = static_cast<std::int64_t>(id);
  }
  tables.merges.emplace_back(merge);
  tables.add_begin = tables.begin.has_value();
  return tokenizer_from_tables(tables, "byte tokenizer");
}

}  // namespace lca::test
