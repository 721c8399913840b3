/// OpenAI's /v1/responses, without state: every request carries the whole conversation.

#include "server/api/fields.h"
#include "server/api/parse_common.h"

#include <limits>

namespace lca::server {

namespace {

/// The message that a function_call belongs to: the assistant's last one, or a new one.
Message& responses_assistant(std::vector<Message>& messages) {
  if (messages.empty() || messages.back().role != "assistant") {
    messages.push_back({.role = "assistant", .text = ""});
  }
  return messages.back();
}

void parse_responses_item(const Json& value, const std::string& path,
                          std::vector<Message>& messages) {
  const Fields item(value, path);
  const std::string type = item.text("type").value_or("message");
  if (type == "function_call") {
    responses_assistant(messages).calls.push_back({.id = item.need_text("call_id"),
                                                   .name = item.need_text("name"),
                                                   .arguments = parse_arguments(item)});
    return;
  }
  if (type == "function_call_output") {
    messages.push_back(
        {.role = "tool",
         .text = parse_text_parts(item.need("output"), item.path("output"), {"input_text"}),
         .tool_call_id = item.need_text("call_id")});
    return;
  }
  if (type != "message") {
    refuse(item.path("type"), "{} is {}; it must be message, function_call or function_call_output",
           item.path("type"), json_shown(type));
  }
  Message message;
  message.role = item.need_text("role");
  if (message.role == "developer") message.role = "system";
  if (message.role != "user" && message.role != "system" && message.role != "assistant") {
    refuse(item.path("role"), "{} is {}; it must be system, developer, user or assistant",
           item.path("role"), json_shown(message.role));
  }
  message.text =
      parse_text_parts(item.need("content"), item.path("content"), {"input_text", "output_text"});
  messages.push_back(std::move(message));
}

std::vector<Message> parse_responses_input(const Fields& body) {
  std::vector<Message> messages;
  if (auto instructions = body.text("instructions")) {
    messages.push_back({.role = "system", .text = std::move(*instructions)});
  }
  const Json& input = body.need("input");
  if (input.is_string()) {
    messages.push_back({.role = "user", .text = input.get<std::string>()});
    return messages;
  }
  if (!input.is_array() || input.empty()) {
    refuse("input", "input must be a text or a list of items that is not empty");
  }
  for (std::size_t i = 0; i < input.size(); ++i) {
    parse_responses_item(input[i], json_at("input", i), messages);
  }
  return messages;
}

OutputRule parse_responses_format(const Fields& body) {
  OutputRule rule;
  const auto text = body.object("text");
  if (!text) return rule;
  fields_check("responses.text", *text);
  const auto format = text->object("format");
  if (!format) return rule;
  const std::string type = format->need_text("type");
  if (type == "text") return rule;
  if (type == "json_object") {
    rule.kind = OutputRule::Kind::json_object;
  } else if (type == "json_schema") {
    rule.kind = OutputRule::Kind::json_schema;
    rule.name = parse_name(*format);
    rule.schema = parse_schema(*format, "schema");
  } else {
    refuse("text.format.type",
           "text.format.type is {}; it must be text, json_object or json_schema", json_shown(type));
  }
  return rule;
}

/// Fills the job's tools; returns them as the reply repeats them.
Json parse_responses_tools(const Fields& body, Job& job) {
  Json shown = Json::array();
  const Json* list = body.list("tools");
  for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
    const Fields tool((*list)[i], json_at("tools", i));
    if (const std::string type = tool.need_text("type"); type != "function") {
      refuse(tool.path("type"), "{} is {}; only function is supported", tool.path("type"),
             json_shown(type));
    }
    fields_check("responses.tools[]", tool);
    ToolSpec spec;
    spec.name = parse_name(tool);
    spec.description = tool.text("description").value_or("");
    if (tool.find("parameters") != nullptr) spec.parameters = parse_schema(tool, "parameters");
    spec.strict = tool.flag("strict").value_or(false);
    shown.push_back({{"type", "function"},
                     {"name", spec.name},
                     {"description", spec.description},
                     {"parameters", spec.parameters},
                     {"strict", spec.strict}});
    tools_add(job.tools, std::move(spec), tool.path("name"));
  }
  job.parallel_calls = body.flag("parallel_tool_calls").value_or(true);
  return shown;
}

/// include: only log-probabilities can be given; the rest is of tools that do not exist here.
bool parse_responses_include(const Fields& body) {
  bool logprobs = false;
  const Json* list = body.list("include");
  for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
    const std::string path = json_at("include", i);
    if (!(*list)[i].is_string()) refuse(path, "{} must be a string", path);
    const std::string what = (*list)[i].get<std::string>();
    if (what == "message.output_text.logprobs") {
      logprobs = true;
    } else if (what != "reasoning.encrypted_content") {  // there is no reasoning: nothing to add
      refuse(path, "{} is {}; only message.output_text.logprobs can be included", path,
             json_shown(what));
    }
  }
  return logprobs;
}

Json value_or_null(const Fields& body, std::string_view name) {
  const Json* value = body.find(name);
  return value == nullptr ? Json(nullptr) : *value;
}

}  // namespace

ApiRequest parse_responses(const Json& body, std::string_view routing_key) {
  const Fields fields(body, "");
  ApiRequest request = request_begin(fields, Protocol::responses, "responses");
  Job job;
  job.prompt = parse_responses_input(fields);
  parse_sampling(fields, 2, job);
  job.generate.max_tokens =
      fields.integer("max_output_tokens", 1, std::numeric_limits<std::int32_t>::max())
          .value_or(kNoTokenLimit);
  job.generate.top_logprobs = fields.integer("top_logprobs", 0, kMostTopLogprobs).value_or(0);
  job.generate.logprobs = parse_responses_include(fields) || job.generate.top_logprobs > 0;
  job.session = parse_session(fields, routing_key);
  job.rule = parse_responses_format(fields);
  Json tools = parse_responses_tools(fields, job);
  parse_openai_tool_choice(fields, false, job);

  const Json* metadata = fields.find("metadata");
  const Json* choice = fields.find("tool_choice");
  const Json* text = fields.find("text");
  request.shown = {{"instructions", value_or_null(fields, "instructions")},
                   {"max_output_tokens", value_or_null(fields, "max_output_tokens")},
                   {"metadata", metadata == nullptr ? Json::object() : *metadata},
                   {"parallel_tool_calls", job.parallel_calls},
                   {"previous_response_id", nullptr},
                   {"store", false},
                   {"temperature", fields.number("temperature", 0, 2).value_or(1)},
                   {"text", text == nullptr ? Json{{"format", {{"type", "text"}}}} : *text},
                   {"tool_choice", choice == nullptr ? Json("auto") : *choice},
                   {"tools", std::move(tools)},
                   {"top_logprobs", job.generate.top_logprobs},
                   {"top_p", fields.number("top_p", 0, 1).value_or(1)},
                   {"truncation", "disabled"}};
  request.jobs.push_back(std::move(job));
  return request;
}

}  // namespace lca::server
