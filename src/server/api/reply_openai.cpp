/// Replies of /v1/chat/completions and /v1/completions.

#include "server/api/reply.h"
#include "server/api/request_json.h"
#include "server/api/token_text.h"

namespace lca::server {

namespace {

Json usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt},
          {"completion_tokens", usage.completion},
          {"total_tokens", usage.prompt + usage.completion},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached}}}};
}

Json call_json(const ToolCall& call) {
  return {{"id", call.id},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

/// What both protocols share: the frame of a chunk, usage, errors.
class OpenaiReply : public Reply {
 public:
  OpenaiReply(const ApiRequest& request, ReplyInfo info, const char* prefix, const char* whole,
              const char* chunk)
      : Reply(request, std::move(info)),
        id_(prefix + this->info().id),
        whole_(whole),
        chunk_(chunk),
        include_usage_(request.include_usage) {}

  std::string body() const override {
    Json list = Json::array();
    for (std::size_t i = 0; i < choices().size(); ++i) list.push_back(choice_json(i));
    Json reply = frame(whole_, std::move(list));
    reply["usage"] = usage_json(usage());
    return json_text(reply);
  }

 protected:
  virtual Json choice_json(std::size_t index) const = 0;

  static const char* finish_reason(const ReplyChoice& one) {
    if (one.reason == lca::StopReason::length) return "length";
    return one.calls.empty() ? "stop" : "tool_calls";
  }

  std::string chunk(Json one) const {
    Json list = Json::array();
    list.push_back(std::move(one));
    Json reply = frame(chunk_, std::move(list));
    if (include_usage_) reply["usage"] = nullptr;
    return sse_event(reply);
  }

  std::string on_over() override {
    std::string text;
    if (include_usage_) {
      Json reply = frame(chunk_, Json::array());
      reply["usage"] = usage_json(usage());
      text = sse_event(reply);
    }
    return text + "data: [DONE]\n\n";
  }

  std::string on_failed(const ApiError& error) override {
    return "data: " + error_body(Dialect::openai, error) + "\n\n";
  }

 private:
  Json frame(const char* object, Json list) const {
    Json reply;
    reply["id"] = id_;
    reply["object"] = object;
    reply["created"] = info().created;
    reply["model"] = info().model;
    reply["choices"] = std::move(list);
    return reply;
  }

  std::string id_;
  const char* whole_;
  const char* chunk_;
  bool include_usage_;
};

class ChatReply final : public OpenaiReply {
 public:
  ChatReply(const ApiRequest& request, ReplyInfo info)
      : OpenaiReply(request, std::move(info), "chatcmpl-", "chat.completion",
                    "chat.completion.chunk") {}

 protected:
  Json choice_json(std::size_t index) const override {
    const ReplyChoice& one = choices()[index];
    Json message;
    message["role"] = "assistant";
    message["content"] = one.text;
    if (one.text.empty() && !one.calls.empty()) message["content"] = nullptr;
    message["refusal"] = nullptr;
    if (!one.calls.empty()) {
      message["tool_calls"] = Json::array();
      for (const ToolCall& call : one.calls) message["tool_calls"].push_back(call_json(call));
    }
    Json choice;
    choice["index"] = index;
    choice["message"] = std::move(message);
    choice["logprobs"] = logprobs() ? logprobs_json(one) : Json(nullptr);
    choice["finish_reason"] = finish_reason(one);
    return choice;
  }

  std::string on_text(std::size_t index, const JobEvent& event) override {
    if (!streams()) return "";
    ReplyChoice& one = choice(index);
    Json change;
    change["content"] = event.text;
    Json entry = delta(index, std::move(change));
    if (logprobs()) entry["logprobs"] = logprobs_json(one);
    one.tokens.clear();
    std::string text = opening(index);
    return text + chunk(std::move(entry));
  }

  std::string on_call(std::size_t index, const ToolCallPiece& piece, bool first) override {
    Json call;
    call["index"] = piece.index;
    if (first) {
      call["id"] = piece.id;
      call["type"] = "function";
      call["function"]["name"] = piece.name;
    }
    call["function"]["arguments"] = piece.arguments;
    Json calls = Json::array();
    calls.push_back(std::move(call));
    Json change;
    change["tool_calls"] = std::move(calls);
    std::string text = opening(index);
    return text + chunk(delta(index, std::move(change)));
  }

  std::string on_done(std::size_t index) override {
    Json entry = delta(index, Json::object());
    entry["finish_reason"] = finish_reason(choices()[index]);
    std::string text = opening(index);
    return text + chunk(std::move(entry));
  }

 private:
  static Json logprobs_json(const ReplyChoice& one) {
    Json value;
    value["content"] = token_logprobs(one.tokens);
    value["refusal"] = nullptr;
    return value;
  }

  static Json delta(std::size_t index, Json change) {
    Json entry;
    entry["index"] = index;
    entry["delta"] = std::move(change);
    entry["logprobs"] = nullptr;
    entry["finish_reason"] = nullptr;
    return entry;
  }

  /// The chunk that says whose message this is, before the first of a choice.
  std::string opening(std::size_t index) {
    ReplyChoice& one = choice(index);
    if (one.begun) return "";
    one.begun = true;
    Json change;
    change["role"] = "assistant";
    change["content"] = "";
    return chunk(delta(index, std::move(change)));
  }
};

class CompletionsReply final : public OpenaiReply {
 public:
  CompletionsReply(const ApiRequest& request, ReplyInfo info)
      : OpenaiReply(request, std::move(info), "cmpl-", "text_completion", "text_completion") {}

 protected:
  Json choice_json(std::size_t index) const override {
    const ReplyChoice& one = choices()[index];
    std::int64_t offset = 0;
    return entry(index, one.text, logprobs() ? legacy_logprobs(one.tokens, offset) : Json(nullptr),
                 finish_reason(one));
  }

  std::string on_text(std::size_t index, const JobEvent& event) override {
    if (!streams()) return "";
    ReplyChoice& one = choice(index);
    Json numbers = logprobs() ? legacy_logprobs(one.tokens, one.offset) : Json(nullptr);
    one.tokens.clear();
    return chunk(entry(index, event.text, std::move(numbers), nullptr));
  }

  // Completions have no tools: a call's text would be lost, so that none is asked for.
  std::string on_call(std::size_t, const ToolCallPiece&, bool) override { return ""; }

  std::string on_done(std::size_t index) override {
    return chunk(entry(index, "", nullptr, finish_reason(choices()[index])));
  }

 private:
  static Json entry(std::size_t index, const std::string& text, Json numbers, Json reason) {
    Json value;
    value["text"] = text;
    value["index"] = index;
    value["logprobs"] = std::move(numbers);
    value["finish_reason"] = std::move(reason);
    return value;
  }
};

}  // namespace

std::unique_ptr<Reply> reply_chat(const ApiRequest& request, ReplyInfo info) {
  return std::make_unique<ChatReply>(request, std::move(info));
}

std::unique_ptr<Reply> reply_completions(const ApiRequest& request, ReplyInfo info) {
  return std::make_unique<CompletionsReply>(request, std::move(info));
}

}  // namespace lca::server
