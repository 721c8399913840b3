#pragma once
/// What a reply must be where the request demands a tool call.

#include "server/tools/tool_format.h"
#include "server/types.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lca::server {

/// A reply of calls: for each, the fixed text before its arguments, their schema, and the fixed
/// text after them.
struct ToolRule {
  struct Call {
    std::string name;
    std::string before;
    Json arguments;  ///< a JSON schema of its own: `#` in a `$ref` is its root
    std::string after;
  };
  std::vector<Call> calls;       ///< any of these …
  std::string separator;         ///< … and with this between two …
  std::uint32_t most_calls = 1;  ///< … up to so many; at least one
};

/// The rule of `tool_required` (any tool) and `tool_named` (one call to this one). `is_parallel`:
/// several calls are welcome, if the format has them. Throws Error (bad input) where no reply could
/// follow it.
ToolRule tool_rule(ToolFormat format, std::span<const ToolSpec> tools, const OutputRule& rule,
                   bool is_parallel);
/// Whether calls must follow a schema that nobody demands: `strict` of any of the tools.
bool tools_are_strict(std::span<const ToolSpec> tools);
/// The rule of calls that a reply makes of its own accord: arguments of strict tools follow their
/// schemas, those of the others are objects.
ToolRule tool_rule_offered(ToolFormat format, std::span<const ToolSpec> tools, bool is_parallel);

}  // namespace lca::server
