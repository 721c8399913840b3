#pragma once
/// A conversation before encoding, as pieces: special tokens of the format, and text.

#include <lca/chat.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lca {

/// One piece of a conversation: a special token of the format, or text.
struct ChatPiece {
  std::string text;
  bool mark = false;  ///< a special token, as its text
};

/// Collects pieces and joins adjacent texts, because a token may span both.
class ChatPieces {
 public:
  void mark(std::string_view token) {
    if (!token.empty()) list_.push_back({std::string(token), true});
  }
  void text(std::string_view text) {
    if (text.empty()) return;
    if (list_.empty() || list_.back().mark) list_.push_back({});
    list_.back().text += text;
  }
  std::vector<ChatPiece> take() { return std::move(list_); }

 private:
  std::vector<ChatPiece> list_;
};

/// What may differ between two checkpoints of one format.
struct ChatStyle {
  ChatFormat format = ChatFormat::plain;
  std::string begin;              ///< text of the token that begins a conversation; empty: none
  std::string end;                ///< text of the token that ends a reply; empty: none
  std::string default_system;     ///< the system message where none is given; empty: none
  std::string preamble;           ///< what Llama 3.1 puts before every system message; empty: none
  bool thinks = false;            ///< replies begin inside <think>
  bool forgets_thinking = false;  ///< past replies keep only what follows </think>
};

/// Derives the style from a template. `begin` and `end` are the texts of the tokenizer's tokens.
ChatStyle chat_style(ChatFormat format, std::string_view chat_template, std::string_view begin,
                     std::string_view end);
/// The conversation up to the point where the assistant replies. Adjacent texts are joined.
std::vector<ChatPiece> chat_pieces(const ChatStyle& style, std::span<const ChatMessage> messages);
/// A conversation whose assistant has replied `text` so far: text continues the last piece. A reply
/// that begins with a space in this format has one already, or gets it.
void chat_open(const ChatStyle& style, std::vector<ChatPiece>& pieces, std::string_view text);
/// What a reply begins with and its text does not.
std::string_view chat_lead(const ChatStyle& style);
/// From the end of a reply (beginning with its end token, if the format has one) through the user's
/// message to the point where the assistant replies again.
std::vector<ChatPiece> chat_next_pieces(const ChatStyle& style, std::string_view user);
/// Ids of pieces: a mark becomes its token, and no text becomes a special token or one of
/// `guarded`. A mark that the tokenizer lacks is text.
std::vector<std::int32_t> chat_encode(const Tokenizer& tokenizer,
                                      std::span<const std::int32_t> guarded,
                                      std::span<const ChatPiece> pieces);
/// Without whitespace at the ends, as templates trim.
std::string_view chat_trim(std::string_view text);

}  // namespace lca
