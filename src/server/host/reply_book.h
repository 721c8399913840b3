#pragma once
/// Ids of generated replies. A client sends a reply back as text, and text encodes to other tokens
/// than those the model chose; with the ids it was generated with, the conversation is found in the
/// prefix cache up to its last reply.

#include <lca/tokenizer.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory_resource>
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

/// Keeps the newest replies, up to a number of bytes. Of a prompt its hash is enough: should two
/// prompts have the same, the ids that are put in place still stand for the text that was sent. One
/// thread at a time.
class ReplyBook {
 public:
  explicit ReplyBook(std::size_t most_bytes = std::size_t{4} << 20) : most_(most_bytes) {}

  /// A reply whose ids decode to what the client received.
  void add(std::span<const std::int32_t> prompt, std::span<const std::int32_t> reply,
           const Tokenizer& tokenizer);
  /// Puts the ids of known replies in place of the encoding of their text.
  std::vector<std::int32_t> restore(std::vector<std::int32_t> tokens,
                                    const Tokenizer& tokenizer) const;
  std::size_t bytes() const { return bytes_; }

 private:
  struct Reply {
    std::pmr::vector<std::int32_t> ids;
    std::pmr::string text;
    std::uint64_t hash = 0;  ///< of the prompt
    std::uint64_t age = 0;

    std::size_t bytes() const;
  };
  using Replies = std::pmr::multimap<std::size_t, Reply>;  ///< by the length of the prompt

  void drop(Replies::iterator at);

  /// Replies are many, small, and stay for long. In the heap of all others they would lie scattered
  /// where requests were, and what the next request needs would not fit between them.
  std::pmr::unsynchronized_pool_resource pool_;
  Replies replies_{&pool_};
  std::pmr::map<std::uint64_t, Replies::iterator> ages_{&pool_};
  std::size_t bytes_ = 0;
  std::size_t most_;
  std::uint64_t next_ = 0;
};

}  // namespace lca::server
