#include "server/tools/tool_rule.h"

#include "core/error.h"
#include "core/text.h"

#include <algorithm>
#include <utility>

namespace lca::server {
namespace {

/// A reply that must consist of calls would otherwise never have to end.
constexpr std::uint32_t kCallsMost = 16;
constexpr const char* kSeparator = "\n";

/// Llama 3.1 was trained on single calls.
std::uint32_t calls_most(ToolFormat format, bool is_parallel) {
  return is_parallel && format == ToolFormat::qwen25 ? kCallsMost : 1;
}

/// The schema of a tool's arguments: always an object. Without a schema a tool takes none. Members
/// that a list of properties does not name are left out, even where the schema tolerates them: a
/// model that is held to a schema has no other sign of where the object ends.
Json arguments_schema(const ToolSpec& tool) {
  if (tool.parameters.is_null() || (tool.parameters.is_object() && tool.parameters.empty())) {
    return {{"type", "object"}, {"properties", Json::object()}, {"additionalProperties", false}};
  }
  const Json& given = tool.parameters;
  const bool is_object =
      given.is_object() && (!given.contains("type") || given["type"] == "object");
  if (!is_object) {
    fail_input("the parameters of the tool {} must be a JSON schema of type object",
               text_printable(tool.name));
  }
  Json schema = given;
  schema["type"] = "object";
  const bool is_plain = !given.contains("anyOf") && !given.contains("$ref");
  if (is_plain && given.contains("properties") && !given.contains("additionalProperties")) {
    schema["additionalProperties"] = false;
  }
  return schema;
}

ToolRule::Call call_rule(ToolFormat format, const ToolSpec& tool, Json arguments) {
  const std::string name = Json(tool.name).dump();
  const bool is_qwens = format == ToolFormat::qwen25;
  return {.name = tool.name,
          .before = is_qwens ? "<tool_call>\n{\"name\": " + name + ", \"arguments\": "
                             : "{\"name\": " + name + ", \"parameters\": ",
          .arguments = std::move(arguments),
          .after = is_qwens ? "}\n</tool_call>" : "}"};
}

}  // namespace

ToolRule tool_rule(ToolFormat format, std::span<const ToolSpec> tools, const OutputRule& rule,
                   bool is_parallel) {
  const bool is_named = rule.kind == OutputRule::Kind::tool_named;
  if (!is_named && rule.kind != OutputRule::Kind::tool_required) {
    fail_internal("a rule for tools was asked for a reply that needs none");
  }
  if (format == ToolFormat::none) {
    fail_input(
        "this model's chat template has no tools in a format that is known (Qwen2.5's or Llama "
        "3.1's); a tool call cannot be demanded");
  }
  ToolRule made;
  for (const ToolSpec& tool : tools) {
    if (is_named && tool.name != rule.name) continue;
    made.calls.push_back(call_rule(format, tool, arguments_schema(tool)));
  }
  if (made.calls.empty()) {
    if (is_named) {
      fail_input("tool_choice names {}, which is not among the tools", text_printable(rule.name));
    }
    fail_input("tool_choice demands a tool call and there are no tools");
  }
  made.separator = kSeparator;
  made.most_calls = is_named ? 1 : calls_most(format, is_parallel);
  return made;
}

bool tools_are_strict(std::span<const ToolSpec> tools) {
  return std::ranges::any_of(tools, &ToolSpec::strict);
}

ToolRule tool_rule_offered(ToolFormat format, std::span<const ToolSpec> tools, bool is_parallel) {
  ToolRule made;
  for (const ToolSpec& tool : tools) {
    Json arguments = tool.strict ? arguments_schema(tool) : Json{{"type", "object"}};
    made.calls.push_back(call_rule(format, tool, std::move(arguments)));
  }
  made.separator = kSeparator;
  made.most_calls = calls_most(format, is_parallel);
  return made;
}

}  // namespace lca::server
