#pragma once
/// What a Tokenizer holds.

#include "formats/tokenizer/added_tokens.h"
#include "formats/tokenizer/bpe.h"
#include "formats/tokenizer/normalise.h"
#include "formats/tokenizer/pre_tokenize.h"
#include "formats/tokenizer/token_decoder.h"
#include "formats/tokenizer/tokenizer_load.h"
#include "formats/tokenizer/vocabulary.h"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lca {

struct Tokenizer::State {
  std::string where;
  Vocabulary vocabulary;
  BpeModel model{vocabulary};
  std::vector<AddedToken> added;
  std::vector<NormaliseStep> normalise;
  std::vector<PreTokenizeStep> pre_tokenize;
  TokenDecoder decoder;
  std::vector<std::int32_t> prefix, suffix;
  std::optional<std::int32_t> begin, end;
  std::vector<std::string> warnings;

  /// Fills what follows from the above; throws Error. The last thing that is done to a State.
  void finish();

  // From here on set by finish.
  AddedTokenFinder raw_finder, normalised_finder;
  std::map<std::int32_t, std::size_t> added_by_id;
  std::map<std::string, std::int32_t, std::less<>> added_by_text;
  std::vector<char> is_special;              // by id
  std::string decoded;                       // the bytes of all tokens …
  std::vector<std::uint64_t> decoded_begin;  // … and where each begins; one more at the end
  std::size_t most_bytes = 0;                // of a text that one token can stand for; 0: not known
  bool spells_bytes = false;  // the last step is byte-level: words are spelled only to be encoded

  std::int64_t size() const { return static_cast<std::int64_t>(is_special.size()); }
  void check_id(std::int32_t id) const;
  /// The bytes of a token in the middle of a text.
  std::string_view bytes_of(std::int32_t id) const;
  /// The token as decoding begins with it: normalised where it was looked for so.
  std::string decode_text(std::int32_t id, RegexBudget& budget) const;
};

/// What `most_bytes` is, once all else of a State is known: the bytes of the longest token, as far
/// as no step makes texts shorter.
std::size_t most_token_bytes(const Tokenizer::State& state);

/// Takes from the front of `text` what the decoder strips; `left` counts down over the parts of a
/// text.
void decoded_strip(const TokenDecoder& decoder, std::string& text, std::size_t& left);

}  // namespace lca
