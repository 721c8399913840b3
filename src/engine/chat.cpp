#include <lca/chat.h>

#include "core/error.h"
#include "engine/chat_pieces.h"

#include <algorithm>

namespace lca {
namespace {

/// Tokens that a format requires.
std::vector<std::string_view> marks_needed(ChatFormat format) {
  switch (format) {
    case ChatFormat::chatml:
    case ChatFormat::minicpm:
      return {"<|im_start|>", "<|im_end|>"};
    case ChatFormat::deepseek_r1:
      return {"<｜User｜>", "<｜Assistant｜>"};
    case ChatFormat::llama3:
      return {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
    case ChatFormat::deepseek:
    case ChatFormat::llama2:
    case ChatFormat::plain:
      break;
  }
  return {};
}

/// Tokens that end a reply, if the tokenizer has them.
std::vector<std::string_view> ends_known(ChatFormat format) {
  switch (format) {
    case ChatFormat::chatml:
      return {"<|im_end|>", "<|endoftext|>"};
    case ChatFormat::minicpm:
      return {"<|im_end|>", "</s>"};
    case ChatFormat::llama3:
      return {"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"};
    case ChatFormat::deepseek:
    case ChatFormat::deepseek_r1:
      return {"<｜end▁of▁sentence｜>"};
    case ChatFormat::llama2:
      return {"</s>"};
    case ChatFormat::plain:
      break;
  }
  return {};
}

std::string_view spelling(const Tokenizer& tokenizer, std::optional<std::int32_t> id) {
  return id ? tokenizer.token(*id) : std::string_view();
}

/// Ids of a text, none of them special nor one of `guarded`.
std::vector<std::int32_t> encode_text(const Tokenizer& tokenizer,
                                      std::span<const std::int32_t> guarded,
                                      std::string_view text) {
  constexpr EncodeOptions kText{.add_special = false, .parse_special = false};
  if (text.empty()) return {};
  std::vector<std::int32_t> ids = tokenizer.encode(text, kText);
  const auto is_guarded = [&](std::int32_t id) {
    return std::ranges::find(guarded, id) != guarded.end();
  };
  if (std::ranges::none_of(ids, is_guarded)) return ids;

  // Some checkpoints do not declare the marks of their format special, so that their tokenizers
  // match them in any text. The text is cut after the first byte of each, so that none matches.
  ids.clear();
  std::size_t from = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool spelled = std::ranges::any_of(
        guarded, [&](std::int32_t id) { return text.substr(at).starts_with(tokenizer.token(id)); });
    if (!spelled && at + 1 < text.size()) continue;
    const auto part = tokenizer.encode(text.substr(from, at + 1 - from), kText);
    ids.insert(ids.end(), part.begin(), part.end());
    from = at + 1;
  }
  return ids;
}

}  // namespace

std::vector<std::int32_t> chat_encode(const Tokenizer& tokenizer,
                                      std::span<const std::int32_t> guarded,
                                      std::span<const ChatPiece> pieces) {
  std::string whole;
  std::vector<std::int32_t> marks;
  bool is_parsed = true;
  for (const ChatPiece& piece : pieces) {
    whole += piece.text;
    if (!piece.mark) continue;
    if (const auto id = tokenizer.find(piece.text)) {
      marks.push_back(*id);
      is_parsed = is_parsed && tokenizer.is_special(*id);
    }
  }

  // Ordinary text: encode all of it, as the checkpoint's own tokenizer would. This is correct if
  // and only if the special tokens in the result are those of the format.
  if (is_parsed) {
    std::vector<std::int32_t> ids =
        tokenizer.encode(whole, {.add_special = false, .parse_special = true});
    std::vector<std::int32_t> special;
    std::ranges::copy_if(ids, std::back_inserter(special), [&](std::int32_t id) {
      return tokenizer.is_special(id) || std::ranges::find(guarded, id) != guarded.end();
    });
    if (special == marks) return ids;
  }

  // A message contains the text of a special token: encode everything between the marks as plain
  // text.
  std::vector<std::int32_t> ids;
  std::string text;
  const auto flush = [&] {
    const auto part = encode_text(tokenizer, guarded, text);
    ids.insert(ids.end(), part.begin(), part.end());
    text.clear();
  };
  for (const ChatPiece& piece : pieces) {
    const auto id = piece.mark ? tokenizer.find(piece.text) : std::nullopt;
    if (id) {
      flush();
      ids.push_back(*id);
    } else {
      text += piece.text;
    }
  }
  flush();
  return ids;
}

struct ChatTemplate::State {
  State(const Tokenizer& shared, ChatFormat format, std::string_view text);
  std::vector<std::int32_t> encode(std::span<const ChatPiece> pieces) const {
    return chat_encode(tokenizer, guarded, pieces);
  }
  std::vector<std::int32_t> prompt(std::span<const ChatPiece> pieces) const;

  Tokenizer tokenizer;
  ChatStyle style;
  std::vector<std::int32_t> end_tokens;
  std::vector<std::int32_t> guarded;  // tokens that message text must not encode to
};

ChatTemplate::State::State(const Tokenizer& shared, ChatFormat format, std::string_view text)
    : tokenizer(shared),
      style(chat_style(format, text, spelling(tokenizer, tokenizer.begin_token()),
                       spelling(tokenizer, tokenizer.end_token()))) {
  for (const std::string_view mark : marks_needed(format)) {
    const auto id = tokenizer.find(mark);
    if (!id) {
      fail_incompatible(
          "the chat format {} needs the token \"{}\", which this checkpoint's tokenizer does not "
          "have; choose another format",
          chat_format_name(format), mark);
    }
    guarded.push_back(*id);
  }
  for (const std::string_view mark : ends_known(format)) {
    if (const auto id = tokenizer.find(mark)) end_tokens.push_back(*id);
  }
  // DeepSeek's formats end a reply with the token that the template names, or the tokenizer's end
  // token.
  const bool ends_by_own = format == ChatFormat::deepseek || format == ChatFormat::deepseek_r1 ||
                           format == ChatFormat::llama2;
  if (ends_by_own && !end_tokens.empty()) style.end = tokenizer.token(end_tokens.front());
  if (ends_by_own && style.end.empty()) {
    fail_incompatible(
        "the chat format {} needs a token that ends a reply, and this checkpoint's tokenizer names "
        "none; choose another format",
        chat_format_name(format));
  }
  if (const auto end = tokenizer.end_token();
      end && std::ranges::find(end_tokens, *end) == end_tokens.end()) {
    end_tokens.push_back(*end);
  }
  guarded.insert(guarded.end(), end_tokens.begin(), end_tokens.end());
  if (const auto begin = tokenizer.begin_token()) guarded.push_back(*begin);
}

ChatTemplate::ChatTemplate(const Tokenizer& tokenizer, ChatFormat format, std::string_view text)
    : state_(guarded([&] { return std::make_shared<const State>(tokenizer, format, text); })) {}

ChatFormat ChatTemplate::format() const { return state_->style.format; }
bool ChatTemplate::thinks() const { return state_->style.thinks; }
const std::vector<std::int32_t>& ChatTemplate::end_tokens() const { return state_->end_tokens; }

std::string_view ChatTemplate::reply_lead() const { return chat_lead(state_->style); }

std::vector<std::int32_t> ChatTemplate::State::prompt(std::span<const ChatPiece> pieces) const {
  std::vector<std::int32_t> ids = encode(pieces);
  if (style.format == ChatFormat::plain) {
    const std::vector<std::int32_t>& prefix = tokenizer.prefix();
    ids.insert(ids.begin(), prefix.begin(), prefix.end());
  }
  return ids;
}

std::vector<std::int32_t> ChatTemplate::prompt(std::span<const ChatMessage> messages) const {
  if (messages.empty()) fail_input("a conversation needs at least one message");
  return guarded([&] { return state_->prompt(chat_pieces(state_->style, messages)); });
}

std::vector<std::int32_t> ChatTemplate::prompt_open(std::span<const ChatMessage> messages) const {
  if (messages.size() < 2 || messages.back().role != ChatMessage::Role::assistant) {
    fail_input(
        "a message can be continued where it is the assistant's and another one comes before it");
  }
  return guarded([&] {
    std::vector<ChatPiece> pieces = chat_pieces(state_->style, messages.first(messages.size() - 1));
    chat_open(state_->style, pieces, messages.back().text);
    return state_->prompt(pieces);
  });
}

std::vector<std::int32_t> ChatTemplate::next_turn(std::string_view user, bool ended) const {
  return guarded([&] {
    const std::vector<ChatPiece> pieces = chat_next_pieces(state_->style, user);
    std::vector<std::int32_t> ids = state_->encode(pieces);
    // The end token is always encoded, since the encoding of what follows may depend on it.
    if (ended && pieces.front().mark) ids.erase(ids.begin());
    return ids;
  });
}

}  // namespace lca
