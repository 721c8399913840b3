#include "engine/chat_pieces.h"

#include <array>
#include <optional>
#include <utility>

namespace lca {
namespace {

using Role = ChatMessage::Role;

constexpr std::string_view kThinkBegin = "<think>";
constexpr std::string_view kThinkEnd = "</think>";

std::string_view role_name(Role role) {
  switch (role) {
    case Role::system:
      return "system";
    case Role::user:
      return "user";
    case Role::assistant:
      break;
  }
  return "assistant";
}

/// Whitespace as Python's str.strip sees it, which is what templates trim with.
constexpr std::array<std::string_view, 29> kSpaces = {
    "\t",           "\n",           "\v",           "\f",           "\r",
    "\x1c",         "\x1d",         "\x1e",         "\x1f",         " ",
    "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81",
    "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
    "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
    "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};

std::string_view without_thinking(const ChatStyle& style, std::string_view reply) {
  const std::size_t at = style.forgets_thinking ? reply.rfind(kThinkEnd) : std::string_view::npos;
  return at == std::string_view::npos ? reply : reply.substr(at + kThinkEnd.size());
}

// --- one writer per format
// ------------------------------------------------------------------------

void chatml_turn(ChatPieces& out, std::string_view role, std::string_view text) {
  out.mark("<|im_start|>");
  out.text(role);
  out.text("\n");
  out.text(text);
  out.mark("<|im_end|>");
  out.text("\n");
}

void chatml_write(ChatPieces& out, const ChatStyle& style, std::span<const ChatMessage> messages) {
  if (!style.default_system.empty() && messages.front().role != Role::system) {
    chatml_turn(out, "system", style.default_system);
  }
  for (const ChatMessage& message : messages) {
    chatml_turn(out, role_name(message.role), message.text);
  }
}

void chatml_answer(ChatPieces& out) {
  out.mark("<|im_start|>");
  out.text("assistant\n");
}

void llama3_turn(ChatPieces& out, std::string_view role, std::string_view first,
                 std::string_view text) {
  out.mark("<|start_header_id|>");
  out.text(role);
  out.mark("<|end_header_id|>");
  out.text("\n\n");
  out.text(first);
  out.text(chat_trim(text));
  out.mark("<|eot_id|>");
}

void llama3_write(ChatPieces& out, const ChatStyle& style, std::span<const ChatMessage> messages) {
  if (!style.preamble.empty()) {
    const bool given = messages.front().role == Role::system;
    llama3_turn(out, "system", style.preamble, given ? messages.front().text : std::string_view());
    if (given) messages = messages.subspan(1);
  }
  for (const ChatMessage& message : messages) {
    llama3_turn(out, role_name(message.role), {}, message.text);
  }
}

void llama3_answer(ChatPieces& out) {
  out.mark("<|start_header_id|>");
  out.text("assistant");
  out.mark("<|end_header_id|>");
  out.text("\n\n");
}

void llama2_user(ChatPieces& out, const ChatStyle& style, std::optional<std::string_view> system,
                 std::string_view user) {
  // The template trims the system message and the question as one text.
  std::string text;
  if (system) text.append("<<SYS>>\n").append(*system).append("\n<</SYS>>\n\n");
  text += user;
  out.mark(style.begin);
  out.text("[INST] ");
  out.text(chat_trim(text));
  out.text(" [/INST]");
}

void llama2_write(ChatPieces& out, const ChatStyle& style, std::span<const ChatMessage> messages) {
  std::optional<std::string_view> system;
  for (const ChatMessage& message : messages) {
    switch (message.role) {
      case Role::system:
        system = message.text;
        break;
      case Role::user:
        llama2_user(out, style, std::exchange(system, std::nullopt), message.text);
        break;
      case Role::assistant:
        out.text(" ");
        out.text(chat_trim(message.text));
        out.text(" ");
        out.mark(style.end);
        break;
    }
  }
}

void deepseek_user(ChatPieces& out, std::string_view text) {
  out.text("User: ");
  out.text(text);
  out.text("\n\n");
}

void deepseek_write(ChatPieces& out, const ChatStyle& style,
                    std::span<const ChatMessage> messages) {
  for (const ChatMessage& message : messages) {
    switch (message.role) {
      case Role::system:
        out.text(message.text);
        out.text("\n\n");
        break;
      case Role::user:
        deepseek_user(out, message.text);
        break;
      case Role::assistant:
        out.text("Assistant: ");
        out.text(message.text);
        out.mark(style.end);
        break;
    }
  }
}

void r1_user(ChatPieces& out, std::string_view text) {
  out.mark("<｜User｜>");
  out.text(text);
}

void r1_write(ChatPieces& out, const ChatStyle& style, std::span<const ChatMessage> messages) {
  // The system message is written first, wherever it occurs; of several, the last one is used.
  std::string_view system;
  for (const ChatMessage& message : messages) {
    if (message.role == Role::system) system = message.text;
  }
  out.text(system);
  for (const ChatMessage& message : messages) {
    if (message.role == Role::user) r1_user(out, message.text);
    if (message.role != Role::assistant) continue;
    out.mark("<｜Assistant｜>");
    out.text(without_thinking(style, message.text));
    out.mark(style.end);
  }
}

void r1_answer(ChatPieces& out, const ChatStyle& style) {
  out.mark("<｜Assistant｜>");
  if (!style.thinks) return;
  out.mark(kThinkBegin);
  out.text("\n");
}

/// A base model continues the text, so a reply follows it without a separator.
void plain_write(ChatPieces& out, std::span<const ChatMessage> messages) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (i > 0 && messages[i].role != Role::assistant) out.text("\n\n");
    out.text(messages[i].text);
  }
}

void answer(ChatPieces& out, const ChatStyle& style) {
  switch (style.format) {
    case ChatFormat::chatml:
    case ChatFormat::minicpm:
      chatml_answer(out);
      break;
    case ChatFormat::deepseek:
      out.text("Assistant:");
      break;
    case ChatFormat::deepseek_r1:
      r1_answer(out, style);
      break;
    case ChatFormat::llama3:
      llama3_answer(out);
      break;
    case ChatFormat::llama2:
    case ChatFormat::plain:
      break;
  }
}

}  // namespace

std::string_view chat_trim(std::string_view text) {
  for (bool again = true; again;) {
    again = false;
    for (const std::string_view space : kSpaces) {
      if (text.starts_with(space)) {
        text.remove_prefix(space.size());
        again = true;
      }
      if (text.ends_with(space)) {
        text.remove_suffix(space.size());
        again = true;
      }
    }
  }
  return text;
}

std::vector<ChatPiece> chat_pieces(const ChatStyle& style, std::span<const ChatMessage> messages) {
  ChatPieces out;
  if (messages.empty()) return {};
  if (style.format != ChatFormat::llama2) out.mark(style.begin);
  switch (style.format) {
    case ChatFormat::chatml:
    case ChatFormat::minicpm:
      chatml_write(out, style, messages);
      break;
    case ChatFormat::deepseek:
      deepseek_write(out, style, messages);
      break;
    case ChatFormat::deepseek_r1:
      r1_write(out, style, messages);
      break;
    case ChatFormat::llama2:
      llama2_write(out, style, messages);
      break;
    case ChatFormat::llama3:
      llama3_write(out, style, messages);
      break;
    case ChatFormat::plain:
      plain_write(out, messages);
      break;
  }
  answer(out, style);
  return out.take();
}

std::string_view chat_lead(const ChatStyle& style) {
  const bool spaced = style.format == ChatFormat::deepseek || style.format == ChatFormat::llama2;
  return spaced ? " " : "";
}

void chat_open(const ChatStyle& style, std::vector<ChatPiece>& pieces, std::string_view text) {
  if (text.empty()) return;
  if (pieces.empty() || pieces.back().mark) pieces.emplace_back();
  std::string& last = pieces.back().text;
  if (!text.starts_with(chat_lead(style))) last += chat_lead(style);
  last += text;
}

std::vector<ChatPiece> chat_next_pieces(const ChatStyle& style, std::string_view user) {
  ChatPieces out;
  switch (style.format) {
    case ChatFormat::chatml:
    case ChatFormat::minicpm:
      out.mark("<|im_end|>");
      out.text("\n");
      chatml_turn(out, "user", user);
      break;
    case ChatFormat::deepseek:
      out.mark(style.end);
      deepseek_user(out, user);
      break;
    case ChatFormat::deepseek_r1:
      out.mark(style.end);
      r1_user(out, user);
      break;
    case ChatFormat::llama2:
      out.mark(style.end);
      llama2_user(out, style, std::nullopt, user);
      break;
    case ChatFormat::llama3:
      out.mark("<|eot_id|>");
      llama3_turn(out, "user", {}, user);
      break;
    case ChatFormat::plain:
      out.text("\n\n");
      out.text(user);
      break;
  }
  answer(out, style);
  return out.take();
}

}  // namespace lca
