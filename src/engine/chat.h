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

/// One piece of a written conversation: a token the format names, or text.
struct ChatPiece {
  std::string text;
  bool mark = false;  ///< a special token, spelled out
};

/// All that tells two checkpoints of one format apart.
struct ChatStyle {
  ChatFormat format = ChatFormat::plain;
  std::string begin;              ///< spelling of the token that begins a conversation; empty: none
  std::string end;                ///< spelling of the token that ends a reply; empty: none
  std::string default_system;     ///< the system message where nobody gives one; empty: none
  std::string preamble;           ///< what Llama 3.1 says before every system message; empty: none
  bool thinks = false;            ///< replies begin inside <think>
  bool forgets_thinking = false;  ///< past replies keep only what follows </think>
};

/// Reads the style off a template. `begin` and `end` are the tokenizer's tokens as it spells them.
ChatStyle chat_style(ChatFormat format, std::string_view chat_template, std::string_view begin,
                     std::string_view end);
/// The conversation up to where the assistant is to speak. Neighbours of one kind are joined.
std::vector<ChatPiece> chat_pieces(const ChatStyle& style, std::span<const ChatMessage> messages);
/// From the end of a reply, its end token first (a format without one: none), through the user's
/// message to where the assistant speaks again.
std::vector<ChatPiece> chat_next_pieces(const ChatStyle& style, std::string_view user);

/// A conversation as token ids: those of the checkpoint's own template for ordinary text. Special
/// tokens come from the format alone; what people wrote never spells one, so that a document cannot
/// end a turn.
class ChatWriter {
 public:
  /// Keeps a reference to `tokenizer`. What the template adds of its own (a default system message,
  /// say) is taken from it; an empty one adds nothing. Throws Error where the tokenizer lacks the
  /// tokens of the format.
  ChatWriter(const Tokenizer& tokenizer, ChatFormat format, std::string_view chat_template);

  ChatFormat format() const { return style_.format; }
  /// Ids of the whole conversation up to where the assistant is to speak; no message throws Error.
  std::vector<std::int32_t> prompt(std::span<const ChatMessage> messages) const;
  /// Ids that take a session from the end of the assistant's reply (whose end token may or may not
  /// have been taken: `ended`) through the user's next message to where it speaks again. What the
  /// session thought stays in it, while `prompt` would drop it.
  std::vector<std::int32_t> next_turn(std::string_view user, bool ended) const;
  /// Tokens that end a reply, beside the checkpoint's own.
  const std::vector<std::int32_t>& end_tokens() const { return end_tokens_; }
  /// Some formats let a reply begin with a space; whoever shows it or sends it back in a message
  /// leaves that out.
  std::string_view reply_lead() const;
  /// Replies begin inside <think>, which the prompt has opened.
  bool thinks() const { return style_.thinks; }

 private:
  std::vector<std::int32_t> encode(std::span<const ChatPiece> pieces) const;
  std::vector<std::int32_t> encode_text(std::string_view text) const;

  const Tokenizer* tokenizer_;
  ChatStyle style_;
  std::vector<std::int32_t> end_tokens_;
  std::vector<std::int32_t> guarded_;  // tokens that no text may become
};

}  // namespace lca
