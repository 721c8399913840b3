/// Anthropic's /v1/messages and /v1/messages/count_tokens.

#include "server/api/fields.h"
#include "server/api/parse_common.h"

#include <limits>

namespace lca::server {

namespace {

std::string block_type(const Fields& block, const std::string& role) {
  const std::string type = block.need_text("type");
  const bool known = type == "text" || (role == "assistant" && type == "tool_use") ||
                     (role == "user" && type == "tool_result");
  if (!known) {
    refuse(block.path("type"), "{} is {}: only text{} can be read here", block.path("type"),
           json_shown(type),
           role == "assistant" ? " and tool_use" : (role == "user" ? " and tool_result" : ""));
  }
  return type;
}

Message parse_tool_result(const Fields& block) {
  Message message{.role = "tool", .text = ""};
  message.tool_call_id = block.need_text("tool_use_id");
  if (const Json* content = block.find("content")) {
    message.text = parse_text_parts(*content, block.path("content"), {"text"});
  }
  if (block.flag("is_error").value_or(false)) message.text = "Error: " + message.text;
  return message;
}

/// One message of the request; results of tools become messages of their own, before the text.
void parse_messages_entry(const Json& value, const std::string& path,
                          std::vector<Message>& messages) {
  const Fields entry(value, path);
  Message message;
  message.role = entry.need_text("role");
  if (message.role != "user" && message.role != "assistant" && message.role != "system") {
    refuse(entry.path("role"), "{} is {}; it must be user, assistant or system", entry.path("role"),
           json_shown(message.role));
  }
  const Json& content = entry.need("content");
  if (content.is_string()) {
    message.text = content.get<std::string>();
    messages.push_back(std::move(message));
    return;
  }
  const std::string where = entry.path("content");
  if (!content.is_array()) refuse(where, "{} must be a string or a list of blocks", where);
  bool has_text = false;
  bool has_result = false;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const Fields block(content[i], json_at(where, i));
    const std::string type = block_type(block, message.role);
    if (type == "text") {
      message.text += block.need_text("text");
      has_text = true;
    } else if (type == "tool_use") {
      block.need("input");
      message.calls.push_back({.id = block.need_text("id"),
                               .name = block.need_text("name"),
                               .arguments = json_text(block.object("input")->json())});
    } else {
      if (has_text) refuse(block.path("type"), "results of tools must come before text");
      messages.push_back(parse_tool_result(block));
      has_result = true;
    }
  }
  if (has_text || !has_result) messages.push_back(std::move(message));
}

std::vector<Message> parse_messages_prompt(const Fields& body) {
  std::vector<Message> messages;
  if (const Json* system = body.find("system")) {
    messages.push_back({.role = "system", .text = parse_text_parts(*system, "system", {"text"})});
  }
  body.need("messages");
  const Json& list = *body.list("messages");
  if (list.empty()) refuse("messages", "messages is empty");
  for (std::size_t i = 0; i < list.size(); ++i) {
    parse_messages_entry(list[i], json_at("messages", i), messages);
  }
  if (messages.back().role == "assistant") {
    refuse(json_at("messages", list.size() - 1),
           "the last message is the assistant's: a reply that is begun cannot be continued");
  }
  return messages;
}

void parse_messages_tools(const Fields& body, Job& job) {
  const Json* list = body.list("tools");
  for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
    const Fields tool((*list)[i], json_at("tools", i));
    if (const auto type = tool.text("type"); type && *type != "custom") {
      refuse(tool.path("type"), "{} is {}; only custom is supported", tool.path("type"),
             json_shown(*type));
    }
    fields_check("messages.tools[]", tool);
    ToolSpec spec;
    spec.name = parse_name(tool, 128);
    spec.description = tool.text("description").value_or("");
    spec.parameters = parse_schema(tool, "input_schema");
    spec.strict = tool.flag("strict").value_or(false);
    tools_add(job.tools, std::move(spec), tool.path("name"));
  }
  const auto choice = body.object("tool_choice");
  if (!choice) return tools_choose(job, ToolMode::automatic, "");
  job.parallel_calls = !choice->flag("disable_parallel_tool_use").value_or(false);
  const std::string type = choice->need_text("type");
  if (type == "auto") return tools_choose(job, ToolMode::automatic, "");
  if (type == "none") return tools_choose(job, ToolMode::none, "");
  if (type == "any") return tools_choose(job, ToolMode::required, "");
  if (type == "tool") return tools_choose(job, ToolMode::named, choice->need_text("name"));
  refuse("tool_choice.type", "tool_choice.type is {}; it must be auto, any, tool or none",
         json_shown(type));
}

void parse_messages_format(const Fields& body, Job& job) {
  const auto config = body.object("output_config");
  if (!config) return;
  fields_check("messages.output_config", *config);
  const auto format = config->object("format");
  if (!format) return;
  if (const std::string type = format->need_text("type"); type != "json_schema") {
    refuse(format->path("type"), "{} is {}; it must be json_schema", format->path("type"),
           json_shown(type));
  }
  job.rule.kind = OutputRule::Kind::json_schema;
  job.rule.schema = parse_schema(*format, "schema");
}

}  // namespace

ApiRequest parse_messages(const Json& body, std::string_view routing_key) {
  const Fields fields(body, "");
  ApiRequest request = request_begin(fields, Protocol::messages, "messages");
  Job job;
  job.prompt = parse_messages_prompt(fields);
  parse_sampling(fields, 1, job);
  fields.need("max_tokens");
  job.generate.max_tokens =
      *fields.integer("max_tokens", 1, std::numeric_limits<std::int32_t>::max());
  job.generate.stops = parse_stops(fields, "stop_sequences");
  job.session = parse_session(fields, routing_key);
  parse_messages_format(fields, job);
  parse_messages_tools(fields, job);
  request.jobs.push_back(std::move(job));
  return request;
}

CountRequest parse_count_tokens(const Json& body) {
  const Fields fields(body, "");
  fields_check("count_tokens", fields);
  CountRequest request;
  request.model = fields.text("model").value_or("");
  request.job.prompt = parse_messages_prompt(fields);
  parse_messages_format(fields, request.job);
  parse_messages_tools(fields, request.job);
  return request;
}

}  // namespace lca::server
