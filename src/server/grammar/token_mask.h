#pragma once
/// Which tokens may follow in a grammar.

#include "server/grammar/grammar.h"
#include "server/grammar/vocabulary.h"

#include <lca/tokenizer.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

namespace lca::server {

/// One bit for each id.
using TokenBits = std::vector<std::uint64_t>;

/// Masks of one vocabulary, for any grammar. Any number of threads may use one.
///
/// Only inside a string do most tokens fit, and what fits until its closing quote depends on
/// nothing but the characters it may still have: that part is computed once and kept. All else is
/// found by walking the few branches of the vocabulary's tree that fit.
class TokenMask {
 public:
  explicit TokenMask(const Tokenizer& tokenizer);
  /// `tokens[i]` are the bytes of id i; empty for ids that never fit.
  explicit TokenMask(std::span<const std::string_view> tokens);

  /// The ids of tokens that may follow. End tokens are not among them.
  void allowed(const GrammarState& state, TokenBits& bits) const;
  /// Makes the logits of all other ids -inf; those of `end_tokens` unless the text is whole. The
  /// result is how many ids are left: 0 where the vocabulary cannot spell what must follow.
  std::size_t apply(const GrammarState& state, std::span<float> logits,
                    std::span<const std::int32_t> end_tokens) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  /// What fits inside a string: ids that do not leave it, and nodes whose last byte closes it.
  struct StringMask {
    TokenBits bits;
    std::vector<std::uint32_t> exits;
  };
  struct Kept {
    std::uint32_t node = 0;
    std::uint32_t left = 0;
    std::uint64_t used = 0;
    std::shared_ptr<const StringMask> mask;
  };
  class Walker;

  std::shared_ptr<const StringMask> string_mask(std::uint32_t node, std::uint32_t left) const;
  StringMask string_mask_make(const Node& node, std::uint32_t left) const;
  /// For places with the same mask; for one place alone if it is in a key that may be a name.
  void strings_allowed(const GrammarState& state, std::span<const Place> places,
                       const StringMask& mask, TokenBits& bits, Walker& walker) const;

  Vocabulary vocabulary_;
  mutable std::mutex mutex_;
  mutable std::vector<Kept> kept_;
  mutable std::uint64_t clock_ = 0;
};

}  // namespace lca::server
