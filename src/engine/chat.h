#pragma once
/// How each family of models writes a conversation down.

#include "formats/tokenizer.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lca {

enum class ChatFormat : std::uint8_t {
  chatml,
  deepseek,
  deepseek_r1,
  llama2,
  llama3,
  minicpm,
  plain
};

/// "chatml", "deepseek", "deepseek-r1", "llama2", "llama3", "minicpm", "plain" (no turns at all:
/// the text as it is, for base models).
std::string_view chat_format_name(ChatFormat format);
const std::vector<std::string_view>& chat_format_names();
/// Throws Error that lists the names.
ChatFormat chat_format_parse(std::string_view name);

/// The format a checkpoint's chat template writes. An empty template means `plain`. Throws Error
/// that lists the formats and the flag to choose one where the template is none we know.
/// `architecture` ("minicpm3", …) settles what looks alike.
ChatFormat chat_format_detect(std::string_view chat_template, std::string_view architecture);

struct ChatMessage {
  enum class Role : std::uint8_t { system, user, assistant };
  Role role = Role::user;
  std::string text;
};

/// A conversation as token ids. Pieces that are the format's own are parsed for special tokens;
/// what people wrote never is, so that a document cannot end a turn.
class ChatWriter {
 public:
  /// `default_system`: what the template says where nobody gives a system message (SmolLM2's
  /// ChatML does); taken from the template by the constructor.
  ChatWriter(const Tokenizer& tokenizer, ChatFormat format, std::string_view chat_template);

  ChatFormat format() const { return format_; }
  /// Ids of the whole conversation up to where the assistant is to speak.
  std::vector<std::int32_t> prompt(std::span<const ChatMessage> messages) const;
  /// Ids that take a session from the end of the assistant's reply (whose end token may or may not
  /// have been taken: `ended`) through the user's next message to where it speaks again.
  std::vector<std::int32_t> next_turn(std::string_view user, bool ended) const;
  /// Tokens that end a reply, beside the checkpoint's own.
  const std::vector<std::int32_t>& end_tokens() const { return end_tokens_; }

 private:
  const Tokenizer* tokenizer_;
  ChatFormat format_;
  std::string default_system_;
  std::vector<std::int32_t> end_tokens_;
};

}  // namespace lca
