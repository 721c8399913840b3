#include "server/tools/tool_prompt.h"

#include "core/error.h"
#include "core/text.h"
#include "server/json_read.h"
#include "server/tools/python_json.h"

#include <algorithm>
#include <array>
#include <utility>

namespace lca::server {
namespace {

class ToolPieces : public ChatPieces {
 public:
  /// A fixed text in which Qwen's tags are tokens where the tokenizer has them.
  void fixed(std::string_view text_given) {
    constexpr std::array kTags = {qwen25::kCall, qwen25::kCallEnd, qwen25::kResult,
                                  qwen25::kResultEnd};
    std::size_t from = 0;
    for (std::size_t at = 0; at < text_given.size();) {
      const std::string_view rest = text_given.substr(at);
      const auto* const tag =
          std::ranges::find_if(kTags, [&](std::string_view one) { return rest.starts_with(one); });
      if (tag == kTags.end()) {
        ++at;
        continue;
      }
      text(text_given.substr(from, at - from));
      mark(*tag);
      from = at += tag->size();
    }
    text(text_given.substr(from));
  }
};

/// Templates write names without quoting them.
void name_check(std::string_view name) {
  const bool is_plain = std::ranges::all_of(name, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' ||
           c == '-' || c == '.';
  });
  if (name.empty() || name.size() > 128 || !is_plain) {
    fail_input(
        "\"{}\" is not the name of a function; names have 1 to 128 letters, digits, \"_\", \"-\" "
        "and \".\"",
        text_printable(name));
  }
}

Json tool_as_json(const ToolSpec& tool) {
  name_check(tool.name);
  Json function = {{"name", tool.name}};
  if (!tool.description.empty()) function["description"] = tool.description;
  if (!tool.parameters.is_null()) function["parameters"] = tool.parameters;
  return Json{{"type", "function"}, {"function", std::move(function)}};
}

std::string arguments_json(const ToolCall& call) {
  const JsonRead read = json_read_arguments(call.arguments);
  if (!read.fault.empty()) {
    fail_input("the text of the arguments of the call to {} {}", text_printable(call.name),
               read.fault);
  }
  return python_json(read.value);
}

void role_check(const Message& message) {
  const bool is_known = message.role == "system" || message.role == "user" ||
                        message.role == "assistant" || message.role == "tool";
  if (!is_known) fail_input("the role \"{}\" is not known", text_printable(message.role));
  if (!message.calls.empty() && message.role != "assistant") {
    fail_input("a message of role {} cannot have tool calls", message.role);
  }
}

// --- Qwen2.5 -----------------------------------------------------------------------------------

void qwen_begin(ToolPieces& out, std::string_view role) {
  out.mark("<|im_start|>");
  out.text(role);
}

void qwen_end(ToolPieces& out) {
  out.mark("<|im_end|>");
  out.text("\n");
}

void qwen_system(ToolPieces& out, const ChatStyle& style, std::span<const Message> messages,
                 std::span<const ToolSpec> tools) {
  const bool given = messages.front().role == "system";
  if (tools.empty() && !given && style.default_system.empty()) return;
  qwen_begin(out, "system\n");
  out.text(given ? messages.front().text : style.default_system);
  if (!tools.empty()) {
    out.fixed(qwen25::kToolsHead);
    for (const ToolSpec& tool : tools) {
      out.text("\n");
      out.text(python_json(tool_as_json(tool)));
    }
    out.fixed(qwen25::kToolsTail);
  }
  qwen_end(out);
}

void qwen_assistant(ToolPieces& out, const Message& message) {
  qwen_begin(out, "assistant");
  if (!message.text.empty() || message.calls.empty()) {
    out.text("\n");
    out.text(message.text);
  }
  for (const ToolCall& call : message.calls) {
    name_check(call.name);
    out.fixed("\n<tool_call>\n");
    out.text("{\"name\": \"" + call.name + "\", \"arguments\": " + arguments_json(call) + "}\n");
    out.fixed(qwen25::kCallEnd);
  }
  qwen_end(out);
}

void qwen_write(ToolPieces& out, const ChatStyle& style, std::span<const Message> messages,
                std::span<const ToolSpec> tools) {
  out.mark(style.begin);
  qwen_system(out, style, messages, tools);
  const auto is_result = [&](std::size_t i) {
    return i < messages.size() && messages[i].role == "tool";
  };
  for (std::size_t i = messages.front().role == "system" ? 1 : 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    if (is_result(i)) {  // results that follow each other share a turn
      if (i == 0 || !is_result(i - 1)) qwen_begin(out, "user");
      out.fixed("\n<tool_response>\n");
      out.text(message.text);
      out.fixed("\n</tool_response>");
      if (!is_result(i + 1)) qwen_end(out);
    } else if (message.role == "assistant") {
      qwen_assistant(out, message);
    } else {
      qwen_begin(out, message.role);
      out.text("\n");
      out.text(message.text);
      qwen_end(out);
    }
  }
  qwen_begin(out, "assistant\n");
}

// --- Llama 3.1 ---------------------------------------------------------------------------------

void llama_begin(ToolPieces& out, std::string_view role) {
  out.mark("<|start_header_id|>");
  out.text(role);
  out.mark("<|end_header_id|>");
  out.text("\n\n");
}

void llama_turn(ToolPieces& out, std::string_view role, std::string_view text) {
  llama_begin(out, role);
  out.text(text);
  out.mark("<|eot_id|>");
}

void llama_call(ToolPieces& out, const ToolCall& call) {
  name_check(call.name);
  llama_turn(out, "assistant",
             "{\"name\": \"" + call.name + "\", \"parameters\": " + arguments_json(call) + "}");
}

/// The template takes one call per message. Several become turns of their own, each followed by its
/// result: the conversation that the same calls would have been one by one. Returns how many
/// messages were written.
std::size_t llama_calls(ToolPieces& out, std::span<const Message> messages) {
  const std::vector<ToolCall>& calls = messages.front().calls;
  std::size_t end = 1;
  while (end < messages.size() && messages[end].role == "tool") ++end;
  std::vector<bool> written(end, false);
  const auto result = [&](std::size_t i) {
    llama_turn(out, "ipython", python_json_string(messages[i].text));
    written[i] = true;
  };
  for (const ToolCall& call : calls) {
    llama_call(out, call);
    if (calls.size() == 1) break;
    for (std::size_t i = 1; i < end; ++i) {
      if (!written[i] && messages[i].tool_call_id == call.id) result(i);
    }
  }
  for (std::size_t i = 1; i < end; ++i) {
    if (!written[i]) result(i);
  }
  return end;
}

void llama_write(ToolPieces& out, const ChatStyle& style, std::span<const Message> messages,
                 std::span<const ToolSpec> tools) {
  out.mark(style.begin);
  const bool given = messages.front().role == "system";
  std::string first(tools.empty() ? std::string_view() : llama31::kEnvironment);
  first.append(style.preamble).append(given ? chat_trim(messages.front().text) : "");
  llama_turn(out, "system", first);
  if (given) messages = messages.subspan(1);
  if (!tools.empty()) {
    if (messages.empty() || messages.front().role != "user") {
      fail_input(
          "this model reads tools in the first question; the first message after the system's must "
          "be the user's");
    }
    std::string text(llama31::kToolsHead);
    for (const ToolSpec& tool : tools) text += python_json(tool_as_json(tool), 4) + "\n\n";
    text += chat_trim(messages.front().text);
    llama_turn(out, "user", text);
    messages = messages.subspan(1);
  }
  while (!messages.empty()) {
    const Message& message = messages.front();
    std::size_t count = 1;
    if (!message.calls.empty()) {
      count = llama_calls(out, messages);
    } else if (message.role == "tool") {
      llama_turn(out, "ipython", python_json_string(message.text));
    } else {
      llama_turn(out, message.role, chat_trim(message.text));
    }
    messages = messages.subspan(count);
  }
  llama_begin(out, "assistant");
}

// --- no format ---------------------------------------------------------------------------------

std::vector<ChatMessage> plain_messages(std::span<const Message> messages,
                                        std::span<const ToolSpec> tools) {
  std::vector<ChatMessage> plain;
  bool has_tools = !tools.empty();
  for (const Message& message : messages) {
    role_check(message);
    has_tools = has_tools || message.role == "tool" || !message.calls.empty();
    const auto role = message.role == "system" ? ChatMessage::Role::system
                      : message.role == "user" ? ChatMessage::Role::user
                                               : ChatMessage::Role::assistant;
    plain.push_back({role, message.text});
  }
  if (has_tools) {
    fail_input(
        "this model's chat template has no tools in a format that is known (Qwen2.5's or Llama "
        "3.1's); send no tools, tool calls or tool results");
  }
  return plain;
}

}  // namespace

std::vector<ChatPiece> tool_pieces(ToolFormat format, const ChatStyle& style,
                                   std::span<const Message> messages,
                                   std::span<const ToolSpec> tools) {
  if (messages.empty()) fail_input("a conversation needs at least one message");
  if (format == ToolFormat::none) return chat_pieces(style, plain_messages(messages, tools));
  for (const Message& message : messages) role_check(message);
  ToolPieces out;
  if (format == ToolFormat::qwen25) {
    qwen_write(out, style, messages, tools);
  } else {
    llama_write(out, style, messages, tools);
  }
  return out.take();
}

ToolPrompt::ToolPrompt(const Tokenizer& tokenizer, ChatFormat chat, std::string_view chat_template)
    : tokenizer_(tokenizer),
      chat_(tokenizer, chat, chat_template),
      format_(tool_format_detect(chat_template)) {
  // A format chosen by hand may not be the template's.
  const ChatFormat needed = format_ == ToolFormat::qwen25 ? ChatFormat::chatml : ChatFormat::llama3;
  if (format_ == ToolFormat::none || chat != needed) {
    format_ = ToolFormat::none;
    return;
  }
  const auto spelling = [&](std::optional<std::int32_t> id) {
    return id ? tokenizer_.token(*id) : std::string_view();
  };
  style_ = chat_style(chat, chat_template, spelling(tokenizer_.begin_token()),
                      spelling(tokenizer_.end_token()));
  guarded_ = chat_.end_tokens();
  if (const auto begin = tokenizer_.begin_token()) guarded_.push_back(*begin);
  for (const std::string_view mark :
       {std::string_view("<|im_start|>"), std::string_view("<|im_end|>"), qwen25::kCall,
        qwen25::kCallEnd, qwen25::kResult, qwen25::kResultEnd,
        std::string_view("<|start_header_id|>"), std::string_view("<|end_header_id|>"),
        std::string_view("<|eot_id|>"), std::string_view("<|eom_id|>"), llama31::kPython}) {
    if (const auto id = tokenizer_.find(mark)) guarded_.push_back(*id);
  }
}

bool ToolPrompt::reply_is_special() const {
  return std::ranges::any_of(tool_reply_marks(format_), [&](std::string_view mark) {
    const auto id = tokenizer_.find(mark);
    return id && tokenizer_.is_special(*id);
  });
}

std::vector<std::int32_t> ToolPrompt::ids(std::span<const Message> messages,
                                          std::span<const ToolSpec> tools, bool open_last) const {
  if (format_ == ToolFormat::none) {
    const std::vector<ChatMessage> plain = plain_messages(messages, tools);
    return open_last ? chat_.prompt_open(plain) : chat_.prompt(plain);
  }
  const std::size_t closed = messages.size() - (open_last && !messages.empty() ? 1 : 0);
  std::vector<ChatPiece> pieces = tool_pieces(format_, style_, messages.first(closed), tools);
  if (open_last) {
    if (messages.back().role != "assistant" || !messages.back().calls.empty()) {
      fail_input("only a text of the assistant's can be continued");
    }
    chat_open(style_, pieces, messages.back().text);
  }
  return chat_encode(tokenizer_, guarded_, pieces);
}

}  // namespace lca::server
