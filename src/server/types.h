#pragma once
/// What passes between the parts of the server: HTTP requests, jobs for the engine, their events.
/// The parts know these types and not each other.

#include <lca/error.h>
#include <lca/generate.h>
#include <lca/session.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace lca::server {

class Grammar;

using Json = nlohmann::ordered_json;

/// A request as it was read from the socket. Header names are as sent: compare without case.
struct HttpRequest {
  std::string method, path, query;  ///< `path` without the query, percent-decoded
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
};

/// Whose client asks; decides what errors look like.
enum class Dialect : std::uint8_t { openai, anthropic, plain };

/// Why a request is refused, in words of no dialect.
struct ApiError {
  int status = 500;     ///< of HTTP
  std::string type;     ///< empty: follows from the status, per dialect
  std::string message;  ///< one line: what is wrong and what to do
  std::string param;    ///< the field that is wrong, as a path ("messages[0].role"); may be empty
  int retry_after = 0;  ///< seconds, of a 429 or 503; 0: no header
  std::string allow;    ///< methods, of a 405
};

/// What an error of the library is to a client.
ApiError error_of(const Error& error);

/// What the exception that is being handled is to a client.
ApiError error_now();

class ApiException : public std::runtime_error {
 public:
  explicit ApiException(ApiError error)
      : std::runtime_error(error.message), error_(std::move(error)) {}
  const ApiError& error() const noexcept { return error_; }

 private:
  ApiError error_;
};

/// A function that the model may call.
struct ToolSpec {
  std::string name, description;
  Json parameters = Json::object();  ///< a JSON schema
  bool strict = false;               ///< arguments must follow the schema
};

/// A call that the model made; `arguments` is the text of a JSON object.
struct ToolCall {
  std::string id, name, arguments;
};

/// One message of a conversation. Roles: system, user, assistant, tool.
struct Message {
  std::string role;
  std::string text;
  std::vector<ToolCall> calls = {};  ///< of an assistant
  std::string tool_call_id = {};     ///< of a tool's result: which call it answers
};

/// What the text of a reply must be, enforced while sampling.
struct OutputRule {
  enum class Kind : std::uint8_t { free, json_object, json_schema, tool_required, tool_named };
  Kind kind = Kind::free;
  Json schema = nullptr;  ///< of json_schema
  std::string name = {};  ///< of json_schema: its name; of tool_named: the tool's
};

/// `GenerateOptions::max_tokens` of a job that names no limit: what the context has room for.
inline constexpr std::int64_t kNoTokenLimit = std::numeric_limits<std::int64_t>::max();

/// One prompt and the replies it wants. The host fills in `generate.end_tokens`, `stop`, `adjust`
/// and `progress`; the rest of `generate` comes from the request.
struct Job {
  std::variant<std::vector<Message>, std::string, std::vector<std::int32_t>> prompt;
  /// The last message is the assistant's and is not over: the reply goes on with it.
  bool continue_last = false;
  std::vector<ToolSpec> tools = {};
  bool parallel_calls = true;  ///< false: the reply ends after its first tool call
  std::string call_ids = {};   ///< what the ids of its tool calls begin with
  OutputRule rule = {};
  std::shared_ptr<const Grammar> grammar = {};  ///< of `rule`, once it is made
  lca::GenerateOptions generate = {};
  bool seeded = false;  ///< false: the host draws `generate.sampling.seed`. Choice i uses seed + i
  bool ignore_end = false;   ///< end tokens do not end the reply
  int n = 1;                 ///< replies
  bool echo = false;         ///< a `prompt` event comes first for every choice; no prefix is reused
  std::string session = {};  ///< name, checked; empty: none
  std::size_t body_bytes = 0;  ///< its part of the request's body
};

/// A token in text: `bytes` may be part of a character.
struct TokenText {
  std::int32_t id = 0;
  std::string bytes = {};
  std::optional<float> logprob = {};  ///< none: the first token of a prompt
};

/// The same with the likeliest tokens at that place, best first.
struct TokenDetail : TokenText {
  std::vector<TokenText> top = {};
};

/// Tokens of a job; `prompt` and `cached` are those of the prompt, the same for every choice.
struct Usage {
  std::int64_t prompt = 0;      ///< all of the prompt, cached ones included
  std::int64_t cached = 0;      ///< of these, those that were not read again
  std::int64_t completion = 0;  ///< of this choice
};

/// A piece of a tool call: the first of an `index` has id and name, the others continue its
/// arguments.
struct ToolCallPiece {
  int index = 0;
  std::string id = {}, name = {}, arguments = {};
};

/// What happens to a job, in this order: `started` once; `progress` while the prompt is read; per
/// choice `prompt` (with `echo`), any number of `piece` and `call`, and `done` as its last.
/// `failed` ends the whole job instead.
struct JobEvent {
  enum class Kind : std::uint8_t { started, progress, prompt, piece, call, done, failed };
  Kind kind = Kind::piece;
  int choice = 0;
  std::string text = {};  ///< of prompt and piece; may be empty
  std::vector<TokenDetail> tokens =
      {};                   ///< of prompt and piece, where log-probabilities were asked
  ToolCallPiece call = {};  ///< of call
  lca::StopReason reason = lca::StopReason::length;  ///< of done
  std::string stop = {};                             ///< of done by stop_string: which one
  Usage usage = {};                                  ///< of started (prompt, cached) and done
  lca::PrefillProgress prefill = {};                 ///< of progress
  double seconds_left = 0;                           ///< of progress; 0: not known yet
  std::optional<ApiError> error = {};                ///< of failed
};

}  // namespace lca::server
