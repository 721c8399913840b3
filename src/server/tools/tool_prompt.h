#pragma once
/// Conversations with tools as token ids, as a checkpoint's own template writes them.

#include "engine/chat_pieces.h"
#include "server/tools/tool_format.h"
#include "server/types.h"

#include <lca/tokenizer.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace lca::server {

/// The conversation up to the point where the assistant replies. `style` is `chat_style`'s. Throws
/// Error (bad input) that names what the format cannot say.
std::vector<ChatPiece> tool_pieces(ToolFormat format, const ChatStyle& style,
                                   std::span<const Message> messages,
                                   std::span<const ToolSpec> tools);

/// Writes prompts. Special tokens and Qwen's call tags come from the format alone: no message, tool
/// or result encodes to one. Immutable and thread-safe.
class ToolPrompt {
 public:
  /// Throws Error (incompatible) where the tokenizer lacks the tokens of the format.
  ToolPrompt(const Tokenizer& tokenizer, ChatFormat chat, std::string_view chat_template);

  /// `none`: `ids` takes neither tools nor calls nor results.
  ToolFormat format() const { return format_; }
  /// Whether `ToolReader` reads tokens that this tokenizer declares special: replies must then be
  /// generated with GenerateOptions::with_special.
  bool reply_is_special() const;
  /// `open_last`: as `ChatTemplate::prompt_open`; the last message then has no calls.
  std::vector<std::int32_t> ids(std::span<const Message> messages, std::span<const ToolSpec> tools,
                                bool open_last = false) const;

 private:
  Tokenizer tokenizer_;
  ChatTemplate chat_;
  ToolFormat format_;
  ChatStyle style_;
  std::vector<std::int32_t> guarded_;
};

}  // namespace lca::server
