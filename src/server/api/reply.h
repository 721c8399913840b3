#pragma once
/// Replies: from the events of jobs to JSON, or to server-sent events. Pure: feed events, send what
/// comes back.

#include "server/api/request.h"
#include "server/types.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lca::server {

/// What a reply says about itself.
struct ReplyInfo {
  std::string id;            ///< unique; the protocol's prefix ("chatcmpl-") is added
  std::int64_t created = 0;  ///< seconds since 1970
  std::string model;         ///< the name of the model that is served
};

/// One choice as it is so far.
struct ReplyChoice {
  std::string text;
  std::vector<TokenDetail> tokens;  ///< of what is not yet sent, in a stream
  std::vector<ToolCall> calls;
  bool begun = false;  ///< a stream has sent something of it
  bool done = false;
  lca::StopReason reason = lca::StopReason::length;
  std::string stop;
  std::int64_t completion = 0;
  std::int64_t offset = 0;  ///< characters in tokens that were rendered
};

/// The reply to one request.
class Reply {
 public:
  Reply(const ApiRequest& request, ReplyInfo info);
  virtual ~Reply() = default;
  Reply(const Reply&) = delete;
  Reply& operator=(const Reply&) = delete;

  /// Takes an event of job number `job`. Returns what a stream sends now, which may be nothing;
  /// nothing where the request asks for no stream. Events after the end are ignored.
  std::string feed(std::size_t job, JobEvent event);
  /// All choices are done, or a job failed.
  bool over() const { return over_; }
  const std::optional<ApiError>& error() const { return error_; }
  /// The whole reply as JSON text, once it is over without error.
  virtual std::string body() const = 0;
  /// About the bytes of `body` where the request asks for no stream, by the events so far.
  std::size_t body_bytes() const { return body_bytes_; }

 protected:
  virtual std::string on_started() { return ""; }
  virtual std::string on_text(std::size_t choice, const JobEvent& event) = 0;
  virtual std::string on_call(std::size_t choice, const ToolCallPiece& piece, bool first) = 0;
  virtual std::string on_done(std::size_t choice) = 0;
  virtual std::string on_over() = 0;
  virtual std::string on_failed(const ApiError& error) = 0;

  const ReplyInfo& info() const { return info_; }
  const std::vector<ReplyChoice>& choices() const { return choices_; }
  ReplyChoice& choice(std::size_t index) { return choices_[index]; }
  bool streams() const { return stream_; }
  bool logprobs() const { return logprobs_; }
  /// Of all jobs and choices.
  Usage usage() const;

 private:
  std::string take(std::size_t job, JobEvent event);
  std::string take_call(std::size_t index, const ToolCallPiece& piece);

  ReplyInfo info_;
  bool stream_;
  bool logprobs_;
  bool echo_;
  std::size_t per_job_;
  std::vector<ReplyChoice> choices_;
  std::vector<Usage> prompts_;  ///< of each job: prompt and cached
  bool started_ = false;
  bool over_ = false;
  std::size_t body_bytes_ = 0;
  std::optional<ApiError> error_;
};

/// About the bytes that an event is in a reply.
std::size_t event_bytes(const JobEvent& event);

std::unique_ptr<Reply> reply_begin(const ApiRequest& request, ReplyInfo info);
/// One per protocol; `reply_begin` chooses.
std::unique_ptr<Reply> reply_chat(const ApiRequest& request, ReplyInfo info);
std::unique_ptr<Reply> reply_completions(const ApiRequest& request, ReplyInfo info);
std::unique_ptr<Reply> reply_responses(const ApiRequest& request, ReplyInfo info);
std::unique_ptr<Reply> reply_messages(const ApiRequest& request, ReplyInfo info);

/// An error as the caller's client reads it.
std::string error_body(Dialect dialect, const ApiError& error);
/// The type of an error in a dialect.
std::string error_type(Dialect dialect, const ApiError& error);

/// GET /v1/models, in OpenAI's or Anthropic's form, and GET /v1/models/{id}.
struct ModelEntry {
  std::string id;
  std::int64_t created = 0;
  std::int64_t context = 0;  ///< tokens that fit
};
std::string models_body(Dialect dialect, const std::vector<ModelEntry>& models);
std::string model_body(Dialect dialect, const ModelEntry& model);

/// POST /v1/messages/count_tokens, /tokenize, /detokenize.
std::string count_body(std::int64_t tokens);
/// `bytes_of` a token: called where pieces are asked for.
std::string tokenize_body(const TokenizeRequest& request, std::span<const std::int32_t> ids,
                          const std::function<std::string_view(std::int32_t)>& bytes_of);
std::string detokenize_body(std::string_view text);

/// `data: …`, with an event name where one is given.
std::string sse_event(const Json& data, std::string_view name = {});
/// How far reading the prompt is, as the comments of a stream say it.
std::string progress_text(const JobEvent& event);

}  // namespace lca::server
