#pragma once
/// Ids of generated replies. A client sends a reply back as text, and text encodes to other tokens
/// than those the model chose; with the ids it was generated with, the conversation is found in the
/// prefix cache up to its last reply.

#include <lca/tokenizer.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace lca::server {

/// A number for every beginning of a sequence of tokens: that of n tokens follows from that of
/// n − 1. Equal numbers are a hint, never a proof.
class PrefixHash {
 public:
  void push(std::int32_t token) {
    value_ = (value_ ^ (static_cast<std::uint32_t>(token) + 1ULL)) * 0x9e3779b97f4a7c15ULL;
    value_ ^= value_ >> 29;
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0x243f6a8885a308d3ULL;
};

/// Keeps the newest replies, up to a number of tokens, prompts included. One thread at a time.
class ReplyBook {
 public:
  explicit ReplyBook(std::size_t most_tokens = std::size_t{1} << 22) : most_(most_tokens) {}

  /// A reply whose ids decode to what the client received.
  void add(std::span<const std::int32_t> prompt, std::span<const std::int32_t> reply,
           const Tokenizer& tokenizer);
  /// Puts the ids of known replies in place of the encoding of their text.
  std::vector<std::int32_t> restore(std::vector<std::int32_t> tokens,
                                    const Tokenizer& tokenizer) const;

 private:
  struct Reply {
    std::vector<std::int32_t> prompt, ids;
    std::uint64_t hash = 0;
    std::uint64_t age = 0;
    std::string text;
  };

  std::multimap<std::size_t, Reply> replies_;  ///< by the length of the prompt
  std::size_t tokens_ = 0;
  std::size_t most_;
  std::uint64_t next_ = 0;
};

}  // namespace lca::server
