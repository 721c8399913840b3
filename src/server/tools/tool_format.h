#pragma once
/// How a checkpoint writes tools into a prompt and calls into a reply.

#include <cstdint>
#include <string_view>
#include <vector>

namespace lca::server {

enum class ToolFormat : std::uint8_t {
  none,     ///< the template has no tools, or in a format that is not known here
  qwen25,   ///< tools in the system message, calls in <tool_call>
  llama31,  ///< tools in the first question, a call is the whole reply
};

/// The format a chat template (Jinja) writes, recognised without running it: every fixed text of
/// the format must be among its string literals, so that a template which only resembles one is
/// `none`.
ToolFormat tool_format_detect(std::string_view chat_template);

/// What a call in the middle of a text begins with; empty: there are none.
std::string_view tool_call_tag(ToolFormat format);

/// Tokens of calls that `ToolReader` reads: they must be in the text of a reply.
std::vector<std::string_view> tool_reply_marks(ToolFormat format);

// --- the fixed texts ---------------------------------------------------------------------------

namespace qwen25 {
inline constexpr std::string_view kCall = "<tool_call>";
inline constexpr std::string_view kCallEnd = "</tool_call>";
inline constexpr std::string_view kResult = "<tool_response>";
inline constexpr std::string_view kResultEnd = "</tool_response>";
inline constexpr std::string_view kToolsHead =
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
inline constexpr std::string_view kToolsTail =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>";
}  // namespace qwen25

namespace llama31 {
inline constexpr std::string_view kPython = "<|python_tag|>";
inline constexpr std::string_view kEnvironment = "Environment: ipython\n";
inline constexpr std::string_view kToolsHead =
    "Given the following functions, please respond with a JSON for a function call with its proper "
    "arguments that best answers the given prompt.\n\nRespond in the format {\"name\": function "
    "name, \"parameters\": dictionary of argument name and its value}.Do not use variables.\n\n";
}  // namespace llama31

}  // namespace lca::server
