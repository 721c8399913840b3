#pragma once
/// From tokens back to bytes.

#include "formats/tokenizer/normalise.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace lca {

/// Reads the byte-level alphabet; a token with other characters stays as it is.
struct ByteLevelDecode {};
/// Reads tokens such as <0x0A> as one byte.
struct ByteFallbackDecode {};
/// Takes characters equal to `character` from both ends of each token.
struct StripDecode {
  std::string character;
  std::size_t begin = 0, end = 0;  ///< how many at most
};
/// Turns the visible character into a space; in the first token it vanishes where `drops_first`.
struct MetaspaceDecode {
  std::string character;
  bool drops_first = true;
};

using DecodeStep =
    std::variant<ReplaceStep, ByteLevelDecode, ByteFallbackDecode, StripDecode, MetaspaceDecode>;

/// What is done to each token, and what to the front of the text they make.
struct TokenDecoder {
  std::vector<DecodeStep> steps;
  std::string separator;        ///< between tokens
  std::string strip_character;  ///< taken from the front of the text …
  std::size_t strip_count = 0;  ///< … this often at most

  /// The bytes of a token; `is_first` for the first one of a text.
  std::string bytes_of(std::string_view token, bool is_first, RegexBudget& budget) const;
  /// Whether the first token of a text may differ from the others.
  bool first_differs() const;
};

}  // namespace lca
