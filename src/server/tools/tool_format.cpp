#include "server/tools/tool_format.h"

#include <algorithm>
#include <string>

namespace lca::server {
namespace {

char unescaped(char c) { return c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c; }

/// All string literals of a template in their order, without what is between them: how a text is
/// cut into literals does not matter then.
std::string literals_join(std::string_view text) {
  std::string joined;
  std::size_t at = 0;
  while (at + 1 < text.size()) {
    if (text[at] != '{' || (text[at + 1] != '{' && text[at + 1] != '%' && text[at + 1] != '#')) {
      ++at;
      continue;
    }
    const bool is_comment = text[at + 1] == '#';
    const char close = text[at + 1] == '{' ? '}' : text[at + 1];
    at += 2;
    while (at < text.size()) {
      const char c = text[at];
      if (c == close && at + 1 < text.size() && text[at + 1] == '}') {
        at += 2;
        break;
      }
      ++at;
      if (is_comment || (c != '\'' && c != '"')) continue;
      for (; at < text.size() && text[at] != c; ++at) {
        if (text[at] == '\\' && at + 1 < text.size()) {
          joined += unescaped(text[++at]);
        } else {
          joined += text[at];
        }
      }
      ++at;
    }
  }
  return joined;
}

bool has_all(std::string_view text, std::initializer_list<std::string_view> parts) {
  return std::ranges::all_of(
      parts, [&](std::string_view part) { return text.find(part) != std::string_view::npos; });
}

}  // namespace

ToolFormat tool_format_detect(std::string_view chat_template) {
  const std::string said = literals_join(chat_template);
  // Qwen3 and QwQ have nearly the same texts, and more rules: about thinking.
  const bool thinks = said.find("</think>") != std::string::npos;
  if (!thinks && has_all(said, {"<|im_start|>system\n", qwen25::kToolsHead, qwen25::kToolsTail,
                                "\n<tool_call>\n{\"name\": \"", "\", \"arguments\": ",
                                "}\n</tool_call>", "\n<tool_response>\n", "\n</tool_response>"})) {
    return ToolFormat::qwen25;
  }
  if (!thinks &&
      has_all(said, {"<|start_header_id|>", llama31::kEnvironment,
                     "Cutting Knowledge Date: ", llama31::kToolsHead, "{\"name\": \"",
                     "\"parameters\": ", "<|start_header_id|>ipython<|end_header_id|>\n\n"})) {
    return ToolFormat::llama31;
  }
  return ToolFormat::none;
}

std::string_view tool_call_tag(ToolFormat format) {
  switch (format) {
    case ToolFormat::qwen25:
      return qwen25::kCall;
    case ToolFormat::llama31:
      return llama31::kPython;
    case ToolFormat::none:
      break;
  }
  return {};
}

std::vector<std::string_view> tool_reply_marks(ToolFormat format) {
  switch (format) {
    case ToolFormat::qwen25:
      return {qwen25::kCall, qwen25::kCallEnd};
    case ToolFormat::llama31:
      return {llama31::kPython};
    case ToolFormat::none:
      break;
  }
  return {};
}

}  // namespace lca::server
