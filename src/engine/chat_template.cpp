// What can be derived from a chat template (Jinja) without running it: the format, from its marks,
// and the few strings in which checkpoints of one format differ.
#include "core/error.h"
#include "core/text.h"
#include "engine/chat_pieces.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

namespace lca {
namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// Whether the template has a string literal that begins with `part`.
bool has_literal(std::string_view text, std::string_view part) {
  for (std::size_t at = text.find(part); at != std::string_view::npos;
       at = text.find(part, at + 1)) {
    if (at > 0 && (text[at - 1] == '\'' || text[at - 1] == '"')) return true;
  }
  return false;
}

/// The string literal whose contents begin at `at`, with escapes resolved; none if it is not
/// terminated.
std::optional<std::string> literal_at(std::string_view text, std::size_t at) {
  const char quote = text[at - 1];
  std::string inside;
  for (std::size_t i = at; i < text.size(); ++i) {
    if (text[i] == quote) return inside;
    if (text[i] != '\\' || i + 1 == text.size()) {
      inside += text[i];
      continue;
    }
    const char escaped = text[++i];
    inside += escaped == 'n' ? '\n' : escaped == 't' ? '\t' : escaped == 'r' ? '\r' : escaped;
  }
  return std::nullopt;
}

/// The result of `accept` for the first literal that begins with `first` and that it accepts.
template <typename Accept>
std::string literal_find(std::string_view text, std::string_view first, const Accept& accept) {
  for (std::size_t at = text.find(first); at != std::string_view::npos;
       at = text.find(first, at + 1)) {
    if (at == 0 || (text[at - 1] != '\'' && text[at - 1] != '"')) continue;
    const std::optional<std::string> inside = literal_at(text, at);
    if (!inside) continue;
    if (std::optional<std::string> found = accept(*inside)) return *std::move(found);
  }
  return {};
}

/// "<|im_start|>system⏎ TEXT <|im_end|>⏎", in one literal, is the default system message.
std::string chatml_default(std::string_view chat_template) {
  constexpr std::string_view kHead = "<|im_start|>system\n";
  constexpr std::string_view kTail = "<|im_end|>\n";
  return literal_find(chat_template, "<|im_start|>system",
                      [&](std::string_view inside) -> std::optional<std::string> {
                        if (!inside.starts_with(kHead) || !inside.ends_with(kTail)) return {};
                        inside.remove_prefix(kHead.size());
                        if (inside.size() < kTail.size()) return {};
                        inside.remove_suffix(kTail.size());
                        if (contains(inside, "<|im_")) return {};
                        return std::string(inside);
                      });
}

/// Llama 3.1 states its knowledge and a date before every system message. The date is the
/// template's default: an answer should not depend on the day.
std::string llama3_preamble(std::string_view chat_template) {
  constexpr std::string_view kDate = "date_string = ";
  const auto whole = [](std::string_view inside) { return std::optional<std::string>(inside); };
  std::string preamble = literal_find(chat_template, "Cutting Knowledge Date: ", whole);
  if (preamble.empty()) return {};
  const std::string today = literal_find(chat_template, "Today Date: ", whole);
  std::string date;
  for (std::size_t at = chat_template.find(kDate); at != std::string_view::npos && date.empty();
       at = chat_template.find(kDate, at + 1)) {
    const std::size_t value = at + kDate.size() + 1;
    if (value >= chat_template.size()) break;
    if (chat_template[value - 1] != '"' && chat_template[value - 1] != '\'') continue;
    date = literal_at(chat_template, value).value_or("");
  }
  if (!today.empty() && !date.empty()) preamble += today + date + "\n\n";
  return preamble;
}

struct Name {
  ChatFormat format;
  std::string_view name;
};
constexpr Name kNames[] = {{ChatFormat::chatml, "chatml"},
                           {ChatFormat::deepseek, "deepseek"},
                           {ChatFormat::deepseek_r1, "deepseek-r1"},
                           {ChatFormat::llama2, "llama2"},
                           {ChatFormat::llama3, "llama3"},
                           {ChatFormat::minicpm, "minicpm"},
                           {ChatFormat::plain, "plain"}};

}  // namespace

std::string_view chat_format_name(ChatFormat format) {
  for (const Name& entry : kNames) {
    if (entry.format == format) return entry.name;
  }
  return "?";
}

const std::vector<std::string_view>& chat_format_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> list;
    for (const Name& entry : kNames) list.push_back(entry.name);
    return list;
  }();
  return names;
}

ChatFormat chat_format_parse(std::string_view name) {
  for (const Name& entry : kNames) {
    if (entry.name == name) return entry.format;
  }
  fail_input("unknown chat format \"{}\"; the formats are {}", text_printable(name),
             fmt::join(chat_format_names(), ", "));
}

ChatFormat chat_format_detect(std::string_view chat_template, std::string_view architecture) {
  const std::string_view text = chat_template;
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) return ChatFormat::plain;
  // Phi-4 and SmolVLM use ChatML's first token for layouts of their own.
  if (contains(text, "<|im_start|>") && !contains(text, "<|im_sep|>") &&
      !contains(text, "<end_of_utterance>")) {
    return architecture.starts_with("minicpm") ? ChatFormat::minicpm : ChatFormat::chatml;
  }
  if (contains(text, "<｜User｜>") && contains(text, "<｜Assistant｜>")) {
    return ChatFormat::deepseek_r1;
  }
  if (contains(text, "<|start_header_id|>") && contains(text, "<|end_header_id|>")) {
    return ChatFormat::llama3;
  }
  // [INST] without <<SYS>> is Mistral's.
  if (contains(text, "[INST]") && contains(text, "<<SYS>>")) return ChatFormat::llama2;
  if (has_literal(text, "User: ") && has_literal(text, "Assistant:") &&
      contains(text, "eos_token")) {
    return ChatFormat::deepseek;
  }
  fail_incompatible(
      "the checkpoint's chat template (\"{}\") has no known format; choose a format: {}",
      text_printable(text, 60), fmt::join(chat_format_names(), ", "));
}

ChatStyle chat_style(ChatFormat format, std::string_view chat_template, std::string_view begin,
                     std::string_view end) {
  ChatStyle style;
  style.format = format;
  style.end = end;
  const bool is_given = !chat_template.empty();
  switch (format) {
    case ChatFormat::chatml:
    case ChatFormat::minicpm:
      style.default_system = chatml_default(chat_template);
      if (contains(chat_template, "bos_token")) style.begin = begin;
      break;
    case ChatFormat::deepseek_r1: {
      constexpr std::string_view kOpened = "<｜Assistant｜><think>";
      style.begin = begin;
      style.thinks = !is_given || contains(chat_template, kOpened);
      style.forgets_thinking = !is_given || contains(chat_template, "</think>");
      break;
    }
    case ChatFormat::llama3:
      style.preamble = llama3_preamble(chat_template);
      [[fallthrough]];
    case ChatFormat::deepseek:
    case ChatFormat::llama2:
      style.begin = begin;
      break;
    case ChatFormat::plain:
      break;
  }
  return style;
}

}  // namespace lca
