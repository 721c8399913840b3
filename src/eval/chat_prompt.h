#pragma once
/// A task as a model reads it: the user's text in the model's chat format, then the beginning of
/// the reply.

#include <lca/chat.h>
#include <lca/tokenizer.h>

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace lca::eval {

/// Makes prompts for one model. Immutable and thread-safe.
class ChatPrompt {
 public:
  /// A format of kind `plain` has no turns: text and prefix follow one another.
  ChatPrompt(const Tokenizer& tokenizer, ChatTemplate chat);

  /// Ids of a user's message `text` and a reply that begins with `prefix`. Nothing in either
  /// becomes a special token.
  std::vector<std::int32_t> encode(std::string_view text, std::string_view prefix) const;
  /// The same for a text with a gap between `before` and `after`, into which ids can be put: those
  /// up to the gap, and those after it.
  std::pair<std::vector<std::int32_t>, std::vector<std::int32_t>> encode_around(
      std::string_view before, std::string_view after, std::string_view prefix) const;
  /// Ids of `text` as they are in the middle of another text, without what some tokenizers put
  /// before a text's first word. Such tokenizers write a leading space so: one is dropped there.
  std::vector<std::int32_t> encode_inside(std::string_view text) const;

  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  Tokenizer tokenizer_;
  ChatTemplate chat_;
  bool leads_ = false;  // the tokenizer puts a space before a text
};

}  // namespace lca::eval
