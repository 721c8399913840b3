#pragma once
/// What the parsers of several protocols share.

#include "server/api/request.h"
#include "server/api/request_json.h"

#include <string>
#include <string_view>
#include <vector>

namespace lca::server {

/// Most replies of a request, and of one prompt.
inline constexpr std::int64_t kMostChoices = 1024;
inline constexpr std::int64_t kMostN = 128;
/// Most of the likeliest tokens that come with each.
inline constexpr std::int64_t kMostTopLogprobs = 20;
/// Most stop strings, and bytes of one.
inline constexpr std::size_t kMostStops = 64;
inline constexpr std::size_t kMostStopBytes = 1024;

/// What all requests for text begin with: fields that are refused, the model, streaming.
ApiRequest request_begin(const Fields& body, Protocol protocol, std::string_view object);
/// temperature, top_p, top_k, min_p, repetition_penalty, seed, ignore_eos.
void parse_sampling(const Fields& body, double most_temperature, Job& job);
/// A string or a list of strings; empty ones are refused.
std::vector<std::string> parse_stops(const Fields& body, std::string_view name);
/// The session's name from `metadata.session` or the header; empty: none.
std::string parse_session(const Fields& body, std::string_view routing_key);
/// A string, or a list of parts of the types in `kinds`, each with a text.
std::string parse_text_parts(const Json& content, const std::string& path,
                             const std::vector<std::string_view>& kinds);
/// A token id.
std::int32_t parse_token(const Json& value, const std::string& path);
/// A tool's or schema's name: letters, digits, `_`, `-`; at most 64 (128: Anthropic's tools).
std::string parse_name(const Fields& fields, std::size_t most = 64);
/// The arguments of a tool call: the text of an object, within the limits of `json_read`.
std::string parse_arguments(const Fields& call);
/// A JSON schema: an object.
Json parse_schema(const Fields& fields, std::string_view name);

/// Adds a tool; refuses a name that comes twice.
void tools_add(std::vector<ToolSpec>& tools, ToolSpec tool, const std::string& path);
enum class ToolMode : std::uint8_t { automatic, none, required, named };
/// Applies a tool choice to the job, which has its tools and output rule already.
void tools_choose(Job& job, ToolMode mode, const std::string& name);
/// tool_choice of OpenAI's protocols; in responses a named tool is {"type","name"}, in chat
/// {"type","function":{"name"}}.
void parse_openai_tool_choice(const Fields& body, bool nested, Job& job);

}  // namespace lca::server
