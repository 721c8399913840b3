#pragma once
/// A tool call from its text.

#include "server/tools/json_scan.h"
#include "server/types.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lca::server {

/// Whether the beginning of a JSON object can still become a call to one of `names`. `is_tagged`:
/// the model has said that it is a call, so that members nobody knows do not matter.
bool tool_call_possible(const JsonScan& scan, std::string_view text,
                        std::span<const std::string> names, bool is_tagged);
/// The call that a whole JSON object is; none where it is no call to one of `names`. Arguments are
/// as the model wrote them.
std::optional<ToolCall> tool_call_json(const JsonScan& scan, std::string_view text,
                                       std::span<const std::string> names);

/// Whether a text can still become what `tool_call_python` reads.
bool tool_call_python_possible(std::string_view text, std::span<const std::string> names);
/// NAME.call(argument="value", …), which Llama writes for tools built into it.
std::optional<ToolCall> tool_call_python(std::string_view text, std::span<const std::string> names);

}  // namespace lca::server
