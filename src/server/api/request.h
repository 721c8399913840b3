#pragma once
/// Requests of the text routes: from JSON to jobs. Pure functions; what is wrong is an
/// ApiException.

#include "server/types.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lca::server {

/// The protocol that a reply is written in.
enum class Protocol : std::uint8_t { chat, completions, responses, messages };

/// A request for text. Choice c of job j is choice j · n + c of the reply.
struct ApiRequest {
  Protocol protocol = Protocol::chat;
  std::vector<Job> jobs;
  std::string model = {};  ///< as asked for; may be empty
  bool stream = false;
  bool include_usage = false;  ///< of a stream: OpenAI's usage chunk
  Json shown = nullptr;        ///< of responses: the settings that the reply repeats
};

/// `routing_key` is the value of the header X-SMG-Routing-Key, or empty: it names the session where
/// `metadata.session` does not.
ApiRequest parse_chat(const Json& body, std::string_view routing_key = {});
ApiRequest parse_completions(const Json& body, std::string_view routing_key = {});
ApiRequest parse_responses(const Json& body, std::string_view routing_key = {});
ApiRequest parse_messages(const Json& body, std::string_view routing_key = {});

/// POST /v1/messages/count_tokens: a job whose prompt is to be counted.
struct CountRequest {
  Job job;
  std::string model = {};
};
CountRequest parse_count_tokens(const Json& body);

/// POST /tokenize.
struct TokenizeRequest {
  std::string content;
  bool add_special = false;   ///< the tokens a text begins with
  bool parse_special = true;  ///< special tokens that the text spells are such
  bool with_pieces = false;   ///< ids with their text
};
TokenizeRequest parse_tokenize(const Json& body);
/// POST /detokenize.
std::vector<std::int32_t> parse_detokenize(const Json& body);

/// POST /v1/sessions/{name}/fork.
struct ForkRequest {
  std::string to;
  std::int64_t at_message = -1;  ///< messages that are kept; −1: all
};
ForkRequest parse_fork(const Json& body);

/// Throws ApiException (404) where a request asks for another model than the one that is served;
/// only strict servers call this. No name is the one served.
void model_check(std::string_view asked, std::string_view served);

/// [A-Za-z0-9_-][A-Za-z0-9._-]{0,63}.
bool session_name_valid(std::string_view name);

}  // namespace lca::server
