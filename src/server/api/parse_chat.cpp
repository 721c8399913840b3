/// OpenAI's /v1/chat/completions and /v1/completions.

#include "server/api/fields.h"
#include "server/api/parse_common.h"

#include <algorithm>
#include <limits>

namespace lca::server {

namespace {

constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max();

std::vector<ToolCall> parse_chat_calls(const Fields& message) {
  std::vector<ToolCall> calls;
  const Json* list = message.list("tool_calls");
  if (list == nullptr) return calls;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const Fields call((*list)[i], json_at(message.path("tool_calls"), i));
    if (const auto type = call.text("type"); type && *type != "function") {
      refuse(call.path("type"), "{} is {}; only function is supported", call.path("type"),
             json_shown(*type));
    }
    call.need("function");
    const Fields function = *call.object("function");
    calls.push_back({.id = call.need_text("id"),
                     .name = function.need_text("name"),
                     .arguments = parse_arguments(function)});
  }
  return calls;
}

Message parse_chat_message(const Json& value, const std::string& path) {
  const Fields fields(value, path);
  Message message;
  message.role = fields.need_text("role");
  if (message.role == "developer") message.role = "system";
  const bool assistant = message.role == "assistant";
  const bool tool = message.role == "tool";
  if (!assistant && !tool && message.role != "user" && message.role != "system") {
    refuse(fields.path("role"), "{} is {}; it must be system, developer, user, assistant or tool",
           fields.path("role"), json_shown(message.role));
  }
  if (!tool) fields_check("chat.messages[]", fields);
  if (assistant) message.calls = parse_chat_calls(fields);
  if (tool) message.tool_call_id = fields.need_text("tool_call_id");
  if (const Json* content = fields.find("content")) {
    message.text = parse_text_parts(*content, fields.path("content"), {"text"});
  } else if (!assistant || message.calls.empty()) {
    refuse(fields.path("content"), "{} is missing", fields.path("content"));
  }
  return message;
}

void parse_chat_tools(const Fields& body, Job& job) {
  const Json* list = body.list("tools");
  for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
    const Fields tool((*list)[i], json_at("tools", i));
    if (const std::string type = tool.need_text("type"); type != "function") {
      refuse(tool.path("type"), "{} is {}; only function is supported", tool.path("type"),
             json_shown(type));
    }
    tool.need("function");
    const Fields function = *tool.object("function");
    ToolSpec spec;
    spec.name = parse_name(function);
    spec.description = function.text("description").value_or("");
    if (function.find("parameters") != nullptr) {
      spec.parameters = parse_schema(function, "parameters");
    }
    spec.strict = function.flag("strict").value_or(false);
    tools_add(job.tools, std::move(spec), function.path("name"));
  }
  job.parallel_calls = body.flag("parallel_tool_calls").value_or(true);
}

OutputRule parse_chat_format(const Fields& body) {
  OutputRule rule;
  const auto format = body.object("response_format");
  if (!format) return rule;
  const std::string type = format->need_text("type");
  if (type == "text") return rule;
  if (type == "json_object") {
    rule.kind = OutputRule::Kind::json_object;
  } else if (type == "json_schema") {
    format->need("json_schema");
    const Fields schema = *format->object("json_schema");
    rule.kind = OutputRule::Kind::json_schema;
    rule.name = parse_name(schema);
    rule.schema = parse_schema(schema, "schema");
  } else {
    refuse("response_format.type",
           "response_format.type is {}; it must be text, json_object or json_schema",
           json_shown(type));
  }
  return rule;
}

/// The reply goes on with the last message. It begins in the middle of a text, where neither a call
/// nor JSON begins.
void parse_chat_continue(const Fields& body, Job& job) {
  constexpr const char* kField = "continue_final_message";
  job.continue_last = body.flag(kField).value_or(false);
  if (!job.continue_last) return;
  const auto& messages = std::get<std::vector<Message>>(job.prompt);
  if (messages.size() < 2 || messages.back().role != "assistant") {
    refuse(kField, "{} needs a last message of role assistant, after another one", kField);
  }
  if (!messages.back().calls.empty()) {
    refuse(kField, "{} needs a last message without tool calls", kField);
  }
  if (!job.tools.empty() || job.rule.kind != OutputRule::Kind::free) {
    refuse(kField, "{} takes neither tools nor a response_format", kField);
  }
}

/// prompt: a text, a list of texts, a list of ids, a list of lists of ids.
std::vector<Job> parse_prompts(const Fields& body) {
  const Json& prompt = body.need("prompt");
  std::vector<Job> jobs;
  const auto add_ids = [&jobs](const Json& list, const std::string& path) {
    if (list.empty()) refuse(path, "{} has no token", path);
    std::vector<std::int32_t> ids;
    ids.reserve(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      ids.push_back(parse_token(list[i], json_at(path, i)));
    }
    jobs.push_back({.prompt = std::move(ids)});
  };
  if (prompt.is_string()) {
    jobs.push_back({.prompt = prompt.get<std::string>()});
    return jobs;
  }
  if (!prompt.is_array() || prompt.empty()) {
    refuse("prompt", "prompt must be a text, token ids, or a list of either");
  }
  if (prompt.front().is_number()) {
    add_ids(prompt, "prompt");
    return jobs;
  }
  if (prompt.size() > static_cast<std::size_t>(kMostChoices)) {
    refuse("prompt", "there are {} prompts; at most {} are allowed", prompt.size(), kMostChoices);
  }
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    const std::string path = json_at("prompt", i);
    if (prompt[i].is_array()) {
      add_ids(prompt[i], path);
    } else if (prompt[i].is_string()) {
      jobs.push_back({.prompt = prompt[i].get<std::string>()});
    } else {
      refuse(path, "{} must be a text or a list of token ids", path);
    }
  }
  return jobs;
}

}  // namespace

ApiRequest parse_chat(const Json& body, std::string_view routing_key) {
  const Fields fields(body, "");
  ApiRequest request = request_begin(fields, Protocol::chat, "chat");
  Job job;
  fields.need("messages");
  const Json& list = *fields.list("messages");
  if (list.empty()) refuse("messages", "messages is empty");
  std::vector<Message> messages;
  for (std::size_t i = 0; i < list.size(); ++i) {
    messages.push_back(parse_chat_message(list[i], json_at("messages", i)));
  }
  job.prompt = std::move(messages);

  parse_sampling(fields, 2, job);
  const auto most = fields.integer("max_completion_tokens", 1, kMostTokens);
  const auto older = fields.integer("max_tokens", 1, kMostTokens);
  if (most && older && *most != *older) {
    refuse("max_tokens", "max_tokens and max_completion_tokens differ: send one of them");
  }
  job.generate.max_tokens = most ? *most : older.value_or(kNoTokenLimit);
  job.generate.stops = parse_stops(fields, "stop");
  job.generate.logprobs = fields.flag("logprobs").value_or(false);
  job.generate.top_logprobs = fields.integer("top_logprobs", 0, kMostTopLogprobs).value_or(0);
  if (job.generate.top_logprobs > 0 && !job.generate.logprobs) {
    refuse("top_logprobs", "top_logprobs needs logprobs to be true");
  }
  job.n = static_cast<int>(fields.integer("n", 1, kMostN).value_or(1));
  job.session = parse_session(fields, routing_key);
  job.rule = parse_chat_format(fields);
  parse_chat_tools(fields, job);
  parse_openai_tool_choice(fields, true, job);
  parse_chat_continue(fields, job);
  request.jobs.push_back(std::move(job));
  return request;
}

ApiRequest parse_completions(const Json& body, std::string_view routing_key) {
  const Fields fields(body, "");
  ApiRequest request = request_begin(fields, Protocol::completions, "completions");
  request.jobs = parse_prompts(fields);

  Job common;
  parse_sampling(fields, 2, common);
  common.generate.max_tokens = fields.integer("max_tokens", 0, kMostTokens).value_or(16);
  common.generate.stops = parse_stops(fields, "stop");
  common.echo = fields.flag("echo").value_or(false);
  const auto top = fields.integer("logprobs", 0, kMostTopLogprobs);
  common.generate.logprobs = top.has_value();
  common.generate.prompt_logprobs = top.has_value() && common.echo;
  common.generate.top_logprobs = top.value_or(0);
  common.n = static_cast<int>(fields.integer("n", 1, kMostN).value_or(1));
  const auto best_of = fields.integer("best_of", 1, kMostN);
  if (best_of && *best_of != common.n) {
    refuse("best_of", "best_of is not supported by this server; leave it out or send n, {}",
           common.n);
  }
  const auto choices = static_cast<std::int64_t>(request.jobs.size()) * common.n;
  if (choices > kMostChoices) {
    refuse("n", "the request wants {} replies; at most {} are allowed", choices, kMostChoices);
  }
  common.session = parse_session(fields, routing_key);
  if (!common.session.empty() && request.jobs.size() > 1) {
    refuse("prompt", "a session takes one prompt, not {}", request.jobs.size());
  }
  for (Job& job : request.jobs) {
    auto prompt = std::move(job.prompt);
    job = common;
    job.prompt = std::move(prompt);
  }
  return request;
}

}  // namespace lca::server
