#include "server/api/parse_common.h"

#include "server/api/fields.h"

#include <algorithm>
#include <limits>

namespace lca::server {

namespace {

bool is_name_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

}  // namespace

bool session_name_valid(std::string_view name) {
  if (name.empty() || name.size() > 64 || !is_name_letter(name.front())) return false;
  return std::ranges::all_of(name, [](char c) { return is_name_letter(c) || c == '.'; });
}

void model_check(std::string_view asked, std::string_view served) {
  if (asked.empty() || asked == served) return;
  ApiError error;
  error.status = 404;
  error.message = fmt::format("the model {} is not here; this server has {}",
                              json_shown(Json(asked)), json_shown(Json(served)));
  error.param = "model";
  throw ApiException(std::move(error));
}

ApiRequest request_begin(const Fields& body, Protocol protocol, std::string_view object) {
  fields_check(object, body);
  ApiRequest request;
  request.protocol = protocol;
  request.model = body.text("model").value_or("");
  request.stream = body.flag("stream").value_or(false);
  if (protocol == Protocol::messages) return request;  // nobody defines stream_options there
  if (const auto options = body.object("stream_options")) {
    fields_check(fmt::format("{}.stream_options", object), *options);
    request.include_usage = options->flag("include_usage").value_or(false) && request.stream;
  }
  return request;
}

void parse_sampling(const Fields& body, double most_temperature, Job& job) {
  lca::Sampling& sampling = job.generate.sampling;
  sampling.temperature = body.number("temperature", 0, most_temperature).value_or(1);
  sampling.top_p = body.number("top_p", 0, 1).value_or(1);
  sampling.top_k = body.integer("top_k", -1, std::numeric_limits<std::int32_t>::max()).value_or(0);
  sampling.top_k = std::max<std::int64_t>(sampling.top_k, 0);  // −1 is off elsewhere
  sampling.min_p = body.number("min_p", 0, 1).value_or(0);
  if (sampling.top_p == 0) {  // the likeliest token alone
    sampling.top_p = 1;
    sampling.top_k = 1;
  }
  sampling.repetition_penalty = body.number("repetition_penalty", 0.01, 100).value_or(1);
  const auto seed = body.integer("seed", std::numeric_limits<std::int64_t>::min(),
                                 std::numeric_limits<std::int64_t>::max());
  job.seeded = seed.has_value();
  sampling.seed = static_cast<std::uint64_t>(seed.value_or(0));
  job.ignore_end = body.flag("ignore_eos").value_or(false);
}

std::vector<std::string> parse_stops(const Fields& body, std::string_view name) {
  std::vector<std::string> stops;
  const Json* value = body.find(name);
  if (value == nullptr) return stops;
  const std::string path = body.path(name);
  const auto add = [&stops](const Json& each, const std::string& where) {
    if (!each.is_string()) refuse(where, "{} must be a string", where);
    std::string text = each.get<std::string>();
    if (text.empty()) refuse(where, "{} is empty: a stop string needs text", where);
    if (text.size() > kMostStopBytes) {
      refuse(where, "{} has {} bytes; at most {} are allowed", where, text.size(), kMostStopBytes);
    }
    stops.push_back(std::move(text));
  };
  if (!value->is_array()) {
    add(*value, path);
    return stops;
  }
  if (value->size() > kMostStops) {
    refuse(path, "{} has {} strings; at most {} are allowed", path, value->size(), kMostStops);
  }
  for (std::size_t i = 0; i < value->size(); ++i) add((*value)[i], json_at(path, i));
  return stops;
}

std::string parse_session(const Fields& body, std::string_view routing_key) {
  std::optional<std::string> name;
  std::string path = "X-SMG-Routing-Key";
  if (const auto metadata = body.object("metadata")) {
    name = metadata->text("session");
    if (name) path = metadata->path("session");
  }
  if (name && !routing_key.empty() && *name != routing_key) {
    refuse(path, "metadata.session and the header X-SMG-Routing-Key name different sessions");
  }
  if (!name && routing_key.empty()) return "";
  std::string session = name ? *name : std::string(routing_key);
  if (!session_name_valid(session)) {
    refuse(
        path,
        "{} is no name of a session: 1 to 64 letters, digits, '_', '-' and '.', the first no '.'",
        json_shown(session));
  }
  return session;
}

std::string parse_text_parts(const Json& content, const std::string& path,
                             const std::vector<std::string_view>& kinds) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) refuse(path, "{} must be a string or a list of parts", path);
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const Fields part(content[i], json_at(path, i));
    const std::string kind = part.need_text("type");
    if (std::ranges::find(kinds, kind) == kinds.end()) {
      refuse(part.path("type"), "{} is {}: only text can be read here", part.path("type"),
             json_shown(kind));
    }
    text += part.need_text("text");
  }
  return text;
}

std::int32_t parse_token(const Json& value, const std::string& path) {
  return static_cast<std::int32_t>(
      json_integer(value, path, 0, std::numeric_limits<std::int32_t>::max()));
}

std::string parse_name(const Fields& fields, std::size_t most) {
  std::string name = fields.need_text("name");
  if (name.empty() || name.size() > most || !std::ranges::all_of(name, is_name_letter)) {
    refuse(fields.path("name"), "{} is {}; it must be 1 to {} letters, digits, '_' and '-'",
           fields.path("name"), json_shown(name), most);
  }
  return name;
}

std::string parse_arguments(const Fields& call) {
  std::string text = call.need_text("arguments");
  const JsonRead read = json_read_arguments(text);
  if (!read.fault.empty()) {
    refuse(call.path("arguments"), "the text of {} {}", call.path("arguments"), read.fault);
  }
  return text;
}

Json parse_schema(const Fields& fields, std::string_view name) {
  const Json& schema = fields.need(name);
  if (!schema.is_object()) refuse(fields.path(name), "{} must be an object", fields.path(name));
  return schema;
}

void tools_add(std::vector<ToolSpec>& tools, ToolSpec tool, const std::string& path) {
  const auto same = [&tool](const ToolSpec& other) { return other.name == tool.name; };
  if (std::ranges::any_of(tools, same)) {
    refuse(path, "the tool {} is there twice", tool.name);
  }
  if (tools.size() >= 512) refuse(path, "there are more than 512 tools");
  tools.push_back(std::move(tool));
}

void tools_choose(Job& job, ToolMode mode, const std::string& name) {
  if (mode == ToolMode::none) {
    job.tools.clear();
    return;
  }
  if (mode == ToolMode::automatic) {
    if (!job.tools.empty() && job.rule.kind != OutputRule::Kind::free) {
      refuse("tools",
             "tools together with a format of the reply are not supported: send tool_choice "
             "\"none\" or drop the format");
    }
    return;
  }
  if (job.tools.empty()) refuse("tool_choice", "tool_choice asks for a tool, but tools is empty");
  if (job.rule.kind != OutputRule::Kind::free) {
    refuse("tool_choice", "tool_choice asks for a tool, so the reply can have no other format");
  }
  if (mode == ToolMode::required) {
    job.rule.kind = OutputRule::Kind::tool_required;
    return;
  }
  const auto same = [&name](const ToolSpec& tool) { return tool.name == name; };
  if (std::ranges::none_of(job.tools, same)) {
    refuse("tool_choice", "tool_choice names {}, which is not among the tools", json_shown(name));
  }
  job.rule.kind = OutputRule::Kind::tool_named;
  job.rule.name = name;
}

void parse_openai_tool_choice(const Fields& body, bool nested, Job& job) {
  const Json* choice = body.find("tool_choice");
  if (choice == nullptr) return tools_choose(job, ToolMode::automatic, "");
  if (choice->is_string()) {
    const std::string mode = choice->get<std::string>();
    if (mode == "auto") return tools_choose(job, ToolMode::automatic, "");
    if (mode == "none") return tools_choose(job, ToolMode::none, "");
    if (mode == "required") return tools_choose(job, ToolMode::required, "");
    refuse("tool_choice", "tool_choice is {}; it must be auto, none, required or a function",
           json_shown(mode));
  }
  const Fields fields(*choice, "tool_choice");
  const std::string type = fields.need_text("type");
  if (type != "function") {
    refuse("tool_choice.type", "tool_choice.type is {}; only function is supported",
           json_shown(type));
  }
  if (nested) {
    fields.need("function");
    tools_choose(job, ToolMode::named, fields.object("function")->need_text("name"));
  } else {
    tools_choose(job, ToolMode::named, fields.need_text("name"));
  }
}

TokenizeRequest parse_tokenize(const Json& body) {
  const Fields fields(body, "");
  TokenizeRequest request;
  request.content = fields.need_text("content");
  request.add_special = fields.flag("add_special").value_or(false);
  request.parse_special = fields.flag("parse_special").value_or(true);
  request.with_pieces = fields.flag("with_pieces").value_or(false);
  return request;
}

std::vector<std::int32_t> parse_detokenize(const Json& body) {
  const Fields fields(body, "");
  fields.need("tokens");
  const Json& list = *fields.list("tokens");
  std::vector<std::int32_t> tokens;
  tokens.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    tokens.push_back(parse_token(list[i], json_at("tokens", i)));
  }
  return tokens;
}

ForkRequest parse_fork(const Json& body) {
  const Fields fields(body, "");
  ForkRequest request;
  request.to = fields.need_text("to");
  if (!session_name_valid(request.to)) {
    refuse(
        "to",
        "{} is no name of a session: 1 to 64 letters, digits, '_', '-' and '.', the first no '.'",
        json_shown(request.to));
  }
  request.at_message =
      fields.integer("at_message", 0, std::numeric_limits<std::int32_t>::max()).value_or(-1);
  return request;
}

}  // namespace lca::server
