#include "server/api/reply.h"

#include "server/api/request_json.h"
#include "server/api/token_text.h"

#include <algorithm>
#include <ctime>
#include <iterator>

namespace lca::server {

namespace {

std::string date_text(std::int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {text, length};
}

Json model_entry(Dialect dialect, const ModelEntry& model) {
  if (dialect == Dialect::anthropic) {
    return {{"type", "model"},          {"id", model.id},
            {"display_name", model.id}, {"created_at", date_text(model.created)},
            {"lifecycle", "active"},    {"max_input_tokens", model.context}};
  }
  return {{"id", model.id},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "lca"},
          {"max_model_len", model.context}};
}

}  // namespace

Reply::Reply(const ApiRequest& request, ReplyInfo info)
    : info_(std::move(info)),
      stream_(request.stream),
      logprobs_(request.jobs.front().generate.logprobs),
      echo_(request.jobs.front().echo),
      per_job_(static_cast<std::size_t>(request.jobs.front().n)),
      choices_(request.jobs.size() * per_job_),
      prompts_(request.jobs.size()) {}

Usage Reply::usage() const {
  Usage sum;
  for (const Usage& each : prompts_) {
    sum.prompt += each.prompt;
    sum.cached += each.cached;
  }
  for (const ReplyChoice& each : choices_) sum.completion += each.completion;
  return sum;
}

std::string Reply::feed(std::size_t job, JobEvent event) {
  if (over_ || job >= prompts_.size()) return "";
  std::string text = take(job, std::move(event));
  return stream_ ? text : "";
}

std::string Reply::take(std::size_t job, JobEvent event) {
  using Kind = JobEvent::Kind;
  if (event.kind == Kind::progress) return ": " + progress_text(event) + "\n\n";
  if (event.kind == Kind::failed) {
    over_ = true;
    error_ = event.error;
    if (!error_) error_.emplace().message = "the reply failed";
    return on_failed(*error_);
  }
  if (event.kind == Kind::started || event.kind == Kind::done) prompts_[job] = event.usage;
  std::string text;
  if (!started_) {
    started_ = true;
    text = on_started();
  }
  if (event.kind == Kind::started) return text;

  const std::size_t within = static_cast<std::size_t>(std::max(event.choice, 0));
  if (within >= per_job_) return text;
  const std::size_t index = job * per_job_ + within;
  ReplyChoice& one = choices_[index];
  if (one.done) return text;
  if (event.kind == Kind::call) return text + take_call(index, event.call);
  if (event.kind == Kind::done) {
    one.done = true;
    one.reason = event.reason;
    one.stop = event.stop;
    one.completion = event.usage.completion;
    text += on_done(index);
    over_ = std::ranges::all_of(choices_, [](const ReplyChoice& each) { return each.done; });
    if (over_) text += on_over();
    return text;
  }
  if (event.kind == Kind::prompt && !echo_) return text;
  const bool tokens = logprobs_ && !event.tokens.empty();
  if (event.text.empty() && !tokens) return text;
  if (!stream_) body_bytes_ += event_bytes(event);
  one.text += event.text;
  if (tokens) std::ranges::move(event.tokens, std::back_inserter(one.tokens));
  text += on_text(index, event);
  one.begun = true;
  return text;
}

std::string Reply::take_call(std::size_t index, const ToolCallPiece& piece) {
  ReplyChoice& one = choices_[index];
  ToolCallPiece known = piece;
  const auto count = static_cast<int>(one.calls.size());
  known.index = std::clamp(piece.index, 0, count);
  const bool first = known.index == count;
  if (first) one.calls.push_back({.id = known.id, .name = known.name, .arguments = ""});
  one.calls[static_cast<std::size_t>(known.index)].arguments += known.arguments;
  std::string text = on_call(index, known, first);
  one.begun = true;
  return text;
}

std::size_t event_bytes(const JobEvent& event) {
  constexpr std::size_t kToken = 64;  // its text, its number, and their keys
  std::size_t bytes = event.text.size() + event.call.arguments.size();
  for (const TokenDetail& token : event.tokens) bytes += kToken * (1 + token.top.size());
  return bytes;
}

std::unique_ptr<Reply> reply_begin(const ApiRequest& request, ReplyInfo info) {
  switch (request.protocol) {
    case Protocol::chat:
      return reply_chat(request, std::move(info));
    case Protocol::completions:
      return reply_completions(request, std::move(info));
    case Protocol::responses:
      return reply_responses(request, std::move(info));
    case Protocol::messages:
      break;
  }
  return reply_messages(request, std::move(info));
}

std::string error_type(Dialect dialect, const ApiError& error) {
  if (!error.type.empty()) return error.type;
  const bool openai = dialect != Dialect::anthropic;
  switch (error.status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 408:
      return "timeout_error";
    case 409:
      return "conflict_error";
    case 413:
      return openai ? "invalid_request_error" : "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return openai ? "server_error" : "overloaded_error";
    default:
      break;
  }
  if (error.status < 500) return "invalid_request_error";
  return openai ? "server_error" : "api_error";
}

std::string error_body(Dialect dialect, const ApiError& error) {
  const std::string type = error_type(dialect, error);
  if (dialect == Dialect::anthropic) {
    return json_text({{"type", "error"}, {"error", {{"type", type}, {"message", error.message}}}});
  }
  const Json param = error.param.empty() ? Json(nullptr) : Json(error.param);
  const Json code = error.status == 401   ? Json("invalid_api_key")
                    : error.status == 429 ? Json("rate_limit_exceeded")
                                          : Json(nullptr);
  return json_text(
      {{"error", {{"message", error.message}, {"type", type}, {"param", param}, {"code", code}}}});
}

std::string model_body(Dialect dialect, const ModelEntry& model) {
  return json_text(model_entry(dialect, model));
}

std::string models_body(Dialect dialect, const std::vector<ModelEntry>& models) {
  Json data = Json::array();
  for (const ModelEntry& model : models) data.push_back(model_entry(dialect, model));
  if (dialect != Dialect::anthropic) {
    return json_text({{"object", "list"}, {"data", std::move(data)}});
  }
  const Json first = models.empty() ? Json(nullptr) : Json(models.front().id);
  const Json last = models.empty() ? Json(nullptr) : Json(models.back().id);
  return json_text(
      {{"data", std::move(data)}, {"first_id", first}, {"last_id", last}, {"has_more", false}});
}

std::string count_body(std::int64_t tokens) { return json_text({{"input_tokens", tokens}}); }

std::string tokenize_body(const TokenizeRequest& request, std::span<const std::int32_t> ids,
                          const std::function<std::string_view(std::int32_t)>& bytes_of) {
  // Written as text: values would take many times as much.
  std::string text = R"({"tokens":[)";
  for (const std::int32_t id : ids) {
    if (text.back() != '[') text += ',';
    if (!request.with_pieces) {
      fmt::format_to(std::back_inserter(text), "{}", id);
      continue;
    }
    const std::string_view bytes = bytes_of(id);
    Json piece = bytes;
    if (!utf8_valid(bytes)) {  // part of a character: its bytes
      piece = Json::array();
      for (const char c : bytes) piece.push_back(static_cast<unsigned char>(c));
    }
    fmt::format_to(std::back_inserter(text), R"({{"id":{},"piece":{}}})", id, json_text(piece));
  }
  return text + "]}";
}

std::string detokenize_body(std::string_view text) { return json_text({{"content", text}}); }

std::string sse_event(const Json& data, std::string_view name) {
  const std::string text = json_text(data);
  return name.empty() ? fmt::format("data: {}\n\n", text)
                      : fmt::format("event: {}\ndata: {}\n\n", name, text);
}

std::string progress_text(const JobEvent& event) {
  const std::string left =
      event.seconds_left > 0 ? fmt::format(", {:.1f} s left", event.seconds_left) : std::string();
  return fmt::format("reading {} of {} tokens{}", event.prefill.done, event.prefill.total, left);
}

}  // namespace lca::server
