/// Replies of Anthropic's /v1/messages.

#include "server/api/reply.h"
#include "server/api/request_json.h"

namespace lca::server {

namespace {

/// Content blocks open and close one after the other; the whole reply is what the stream builds.
class MessagesReply final : public Reply {
 public:
  MessagesReply(const ApiRequest& request, ReplyInfo info) : Reply(request, std::move(info)) {}

  std::string body() const override {
    Json reply = message();
    reply["content"] = blocks_;
    reply["stop_reason"] = stop_reason();
    reply["stop_sequence"] = stop_sequence();
    return json_text(reply);
  }

 protected:
  std::string on_started() override {
    Json event;
    event["type"] = "message_start";
    event["message"] = message();
    return sse_event(event, "message_start");
  }

  std::string on_text(std::size_t, const JobEvent& event) override {
    std::string text;
    if (open_ != Open::text) {
      Json block;
      block["type"] = "text";
      block["text"] = "";
      text = close();
      text += open(Open::text, std::move(block));
    }
    auto& sum = blocks_.back()["text"].get_ref<std::string&>();
    sum += event.text;
    return text + delta("text_delta", "text", event.text);
  }

  std::string on_call(std::size_t, const ToolCallPiece& piece, bool first) override {
    std::string text;
    if (first) {
      Json block;
      block["type"] = "tool_use";
      block["id"] = piece.id;
      block["name"] = piece.name;
      block["input"] = Json::object();
      text = close();
      text += open(Open::call, std::move(block));
    }
    if (open_ != Open::call) return text;  // arguments of a call that is closed
    arguments_ += piece.arguments;
    if (piece.arguments.empty()) return text;
    return text + delta("input_json_delta", "partial_json", piece.arguments);
  }

  std::string on_done(std::size_t) override {
    std::string text = close();
    Json event;
    event["type"] = "message_delta";
    event["delta"]["stop_reason"] = stop_reason();
    event["delta"]["stop_sequence"] = stop_sequence();
    event["usage"] = counts();
    return text + sse_event(event, "message_delta");
  }

  std::string on_over() override {
    Json event;
    event["type"] = "message_stop";
    return sse_event(event, "message_stop");
  }

  std::string on_failed(const ApiError& error) override {
    return "event: error\ndata: " + error_body(Dialect::anthropic, error) + "\n\n";
  }

 private:
  enum class Open : std::uint8_t { nothing, text, call };

  Json counts() const {
    const Usage sum = usage();
    Json value;
    value["input_tokens"] = sum.prompt - sum.cached;
    value["cache_creation_input_tokens"] = 0;
    value["cache_read_input_tokens"] = sum.cached;
    value["output_tokens"] = sum.completion;
    return value;
  }

  Json message() const {
    Json value;
    value["id"] = "msg_" + info().id;
    value["type"] = "message";
    value["role"] = "assistant";
    value["model"] = info().model;
    value["content"] = Json::array();
    value["stop_reason"] = nullptr;
    value["stop_sequence"] = nullptr;
    value["usage"] = counts();
    return value;
  }

  Json stop_reason() const {
    const ReplyChoice& one = choices().front();
    if (one.reason == lca::StopReason::length) return "max_tokens";
    if (!one.calls.empty()) return "tool_use";
    return one.reason == lca::StopReason::stop_string ? "stop_sequence" : "end_turn";
  }

  Json stop_sequence() const {
    const ReplyChoice& one = choices().front();
    return one.reason == lca::StopReason::stop_string ? Json(one.stop) : Json(nullptr);
  }

  std::string open(Open kind, Json block) {
    open_ = kind;
    arguments_.clear();
    Json event;
    event["type"] = "content_block_start";
    event["index"] = blocks_.size();
    event["content_block"] = block;
    blocks_.push_back(std::move(block));
    return sse_event(event, "content_block_start");
  }

  std::string delta(const char* type, const char* field, const std::string& text) const {
    Json event;
    event["type"] = "content_block_delta";
    event["index"] = blocks_.size() - 1;
    event["delta"]["type"] = type;
    event["delta"][field] = text;
    return sse_event(event, "content_block_delta");
  }

  std::string close() {
    if (open_ == Open::nothing) return "";
    if (open_ == Open::call) {
      // Cut off by max_tokens, arguments may be no JSON: the block must have an object all the
      // same.
      JsonRead input = json_read(arguments_, kJsonOfModel);
      if (input.value.is_object()) blocks_.back()["input"] = std::move(input.value);
    }
    open_ = Open::nothing;
    Json event;
    event["type"] = "content_block_stop";
    event["index"] = blocks_.size() - 1;
    return sse_event(event, "content_block_stop");
  }

  Json blocks_ = Json::array();
  Open open_ = Open::nothing;
  std::string arguments_;
};

}  // namespace

std::unique_ptr<Reply> reply_messages(const ApiRequest& request, ReplyInfo info) {
  return std::make_unique<MessagesReply>(request, std::move(info));
}

}  // namespace lca::server
