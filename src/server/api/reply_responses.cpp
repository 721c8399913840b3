/// Replies of OpenAI's /v1/responses.

#include "server/api/reply.h"
#include "server/api/request_json.h"
#include "server/api/token_text.h"

namespace lca::server {

namespace {

/// Items open and close one after the other; the whole reply is what the stream builds.
class ResponsesReply final : public Reply {
 public:
  ResponsesReply(const ApiRequest& request, ReplyInfo info)
      : Reply(request, std::move(info)), shown_(request.shown) {}

  std::string body() const override { return json_text(response(status())); }

 protected:
  std::string on_started() override {
    std::string text;
    for (const char* type : {"response.created", "response.in_progress"}) {
      Json event;
      event["response"] = response("in_progress");
      text += send(type, std::move(event));
    }
    return text;
  }

  std::string on_text(std::size_t index, const JobEvent& event) override {
    std::string text;
    if (open_ != Open::text) {
      text = close("completed");
      text += open_message();
    }
    Json& part = items_.back()["content"][0];
    part["text"].get_ref<std::string&>() += event.text;
    Json numbers = token_logprobs(choices()[index].tokens);
    choice(index).tokens.clear();
    for (const Json& each : numbers) part["logprobs"].push_back(each);
    Json change = place(true);
    change["delta"] = event.text;
    change["logprobs"] = std::move(numbers);
    return text + send("response.output_text.delta", std::move(change));
  }

  std::string on_call(std::size_t, const ToolCallPiece& piece, bool first) override {
    std::string text;
    if (first) {
      text = close("completed");
      text += open_call(piece);
    }
    if (open_ != Open::call || piece.arguments.empty()) return text;
    items_.back()["arguments"].get_ref<std::string&>() += piece.arguments;
    Json change = place(false);
    change["delta"] = piece.arguments;
    return text + send("response.function_call_arguments.delta", std::move(change));
  }

  std::string on_done(std::size_t) override {
    std::string text;
    if (items_.empty()) text = open_message();  // an empty reply is a message without text
    return text + close(status());
  }

  std::string on_over() override {
    Json event;
    event["response"] = response(status());
    return send(std::string("response.") + status(), std::move(event));
  }

  std::string on_failed(const ApiError& error) override {
    Json event;
    event["code"] = error_type(Dialect::openai, error);
    event["message"] = error.message;
    event["param"] = error.param.empty() ? Json(nullptr) : Json(error.param);
    return send("error", std::move(event));
  }

 private:
  enum class Open : std::uint8_t { nothing, text, call };

  const char* status() const {
    const bool cut = choices().front().reason == lca::StopReason::length;
    return cut ? "incomplete" : "completed";
  }

  std::string send(const std::string& type, Json rest) {
    Json event;
    event["type"] = type;
    event["sequence_number"] = sequence_++;
    for (auto& [key, value] : rest.items()) event[key] = std::move(value);
    return sse_event(event, type);
  }

  Json response(const std::string& status) const {
    const bool over = status != "in_progress";
    Json value;
    value["id"] = "resp_" + info().id;
    value["object"] = "response";
    value["created_at"] = info().created;
    value["status"] = status;
    value["background"] = false;
    value["error"] = nullptr;
    value["incomplete_details"] = nullptr;
    if (status == "incomplete") value["incomplete_details"]["reason"] = "max_output_tokens";
    value["model"] = info().model;
    value["output"] = over ? items_ : Json::array();
    for (const auto& [key, each] : shown_.items()) value[key] = each;
    value["usage"] = over ? counts() : Json(nullptr);
    return value;
  }

  Json counts() const {
    const Usage sum = usage();
    Json value;
    value["input_tokens"] = sum.prompt;
    value["input_tokens_details"]["cached_tokens"] = sum.cached;
    value["input_tokens_details"]["cache_write_tokens"] = 0;
    value["output_tokens"] = sum.completion;
    value["output_tokens_details"]["reasoning_tokens"] = 0;
    value["total_tokens"] = sum.prompt + sum.completion;
    return value;
  }

  /// Which item an event is about, and which part of a message.
  Json place(bool part) const {
    Json value;
    value["item_id"] = items_.back()["id"];
    value["output_index"] = items_.size() - 1;
    if (part) value["content_index"] = 0;
    return value;
  }

  std::string item_id(const char* prefix) const {
    return fmt::format("{}_{}_{}", prefix, info().id, items_.size());
  }

  std::string item_added(const Json& item) {
    Json event;
    event["output_index"] = items_.size() - 1;
    event["item"] = item;
    return send("response.output_item.added", std::move(event));
  }

  std::string open_message() {
    open_ = Open::text;
    Json item;
    item["type"] = "message";
    item["id"] = item_id("msg");
    item["status"] = "in_progress";
    item["role"] = "assistant";
    item["content"] = Json::array();
    items_.push_back(item);
    std::string text = item_added(item);
    Json part;
    part["type"] = "output_text";
    part["text"] = "";
    part["annotations"] = Json::array();
    part["logprobs"] = Json::array();
    items_.back()["content"].push_back(part);
    Json event = place(true);
    event["part"] = std::move(part);
    return text + send("response.content_part.added", std::move(event));
  }

  std::string open_call(const ToolCallPiece& piece) {
    open_ = Open::call;
    Json item;
    item["type"] = "function_call";
    item["id"] = item_id("fc");
    item["call_id"] = piece.id;
    item["name"] = piece.name;
    item["arguments"] = "";
    item["status"] = "in_progress";
    items_.push_back(item);
    return item_added(item);
  }

  std::string close(const std::string& status) {
    if (open_ == Open::nothing) return "";
    std::string text;
    Json& item = items_.back();
    if (open_ == Open::text) {
      const Json& part = item["content"][0];
      Json event = place(true);
      event["text"] = part["text"];
      event["logprobs"] = part["logprobs"];
      text = send("response.output_text.done", std::move(event));
      event = place(true);
      event["part"] = part;
      text += send("response.content_part.done", std::move(event));
    } else {
      Json event = place(false);
      event["name"] = item["name"];
      event["arguments"] = item["arguments"];
      text = send("response.function_call_arguments.done", std::move(event));
    }
    item["status"] = status;
    open_ = Open::nothing;
    Json event;
    event["output_index"] = items_.size() - 1;
    event["item"] = item;
    return text + send("response.output_item.done", std::move(event));
  }

  Json shown_;
  Json items_ = Json::array();
  Open open_ = Open::nothing;
  std::int64_t sequence_ = 0;
};

}  // namespace

std::unique_ptr<Reply> reply_responses(const ApiRequest& request, ReplyInfo info) {
  return std::make_unique<ResponsesReply>(request, std::move(info));
}

}  // namespace lca::server
