/// /openapi.json: the routes with what they take and give, strict enough to test against.

#include "server/api/request_json.h"
#include "server/api/routes.h"

namespace lca::server {

namespace {

// Requests. Fields that are refused or ignored are left out: docs/serving-fields.md has them.
constexpr std::string_view kRequestSchemas = R"json({
"Stop": {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 200},
                   {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 200}, "maxItems": 64},
                   {"type": "null"}]},
"Metadata": {"type": ["object", "null"], "maxProperties": 16, "additionalProperties": {"type": "string", "maxLength": 512},
             "properties": {"session": {"$ref": "#/components/schemas/SessionName"}}},
"SessionName": {"type": "string", "pattern": "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$"},
"TextPart": {"type": "object", "properties": {"type": {"const": "text"}, "text": {"type": "string"}}, "required": ["type", "text"]},
"InputPart": {"type": "object", "properties": {"type": {"enum": ["input_text", "output_text"]}, "text": {"type": "string"}}, "required": ["type", "text"]},
"Text": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/components/schemas/TextPart"}}]},
"StreamOptions": {"type": ["object", "null"], "properties": {"include_usage": {"type": "boolean"}}},
"ResponseFormat": {"anyOf": [
  {"type": "null"},
  {"type": "object", "properties": {"type": {"enum": ["text", "json_object"]}}, "required": ["type"]},
  {"type": "object", "properties": {"type": {"const": "json_schema"}, "json_schema": {"type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}, "schema": {"type": "object"}}, "required": ["name", "schema"]}},
   "required": ["type", "json_schema"]}]},
"CallOfTool": {"type": "object", "properties": {"id": {"type": "string"}, "type": {"const": "function"}, "function": {"type": "object",
  "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}}, "required": ["name", "arguments"]}}, "required": ["id", "function"]},
"ChatMessage": {"anyOf": [
  {"type": "object", "properties": {"role": {"enum": ["system", "developer", "user", "assistant"]}, "content": {"$ref": "#/components/schemas/Text"}},
   "required": ["role", "content"]},
  {"type": "object", "properties": {"role": {"const": "assistant"}, "content": {"anyOf": [{"$ref": "#/components/schemas/Text"}, {"type": "null"}]},
    "tool_calls": {"type": "array", "items": {"$ref": "#/components/schemas/CallOfTool"}, "minItems": 1}}, "required": ["role", "tool_calls"]},
  {"type": "object", "properties": {"role": {"const": "tool"}, "content": {"$ref": "#/components/schemas/Text"}, "tool_call_id": {"type": "string"}},
   "required": ["role", "content", "tool_call_id"]}]},
"ChatTool": {"type": "object", "properties": {"type": {"const": "function"}, "function": {"type": "object", "properties": {
  "name": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}, "description": {"type": "string"}, "parameters": {"type": "object"},
  "strict": {"type": ["boolean", "null"]}}, "required": ["name"]}}, "required": ["type", "function"]},
"ChatRequest": {"type": "object", "properties": {
  "model": {"type": "string"}, "messages": {"type": "array", "items": {"$ref": "#/components/schemas/ChatMessage"}, "minItems": 1},
  "max_completion_tokens": {"type": ["integer", "null"], "minimum": 1, "maximum": 2147483647}, "max_tokens": {"type": ["integer", "null"], "minimum": 1, "maximum": 2147483647},
  "n": {"type": ["integer", "null"], "minimum": 1, "maximum": 128}, "stop": {"$ref": "#/components/schemas/Stop"}, "seed": {"type": ["integer", "null"], "minimum": -9223372036854775808, "maximum": 9223372036854775807},
  "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2}, "top_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
  "top_k": {"type": ["integer", "null"], "minimum": -1, "maximum": 2147483647}, "min_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
  "repetition_penalty": {"type": ["number", "null"], "minimum": 0.01, "maximum": 100}, "ignore_eos": {"type": ["boolean", "null"]},
  "logprobs": {"type": ["boolean", "null"]}, "top_logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20},
  "stream": {"type": ["boolean", "null"]}, "stream_options": {"$ref": "#/components/schemas/StreamOptions"},
  "metadata": {"$ref": "#/components/schemas/Metadata"}, "response_format": {"$ref": "#/components/schemas/ResponseFormat"}, "continue_final_message": {"type": ["boolean", "null"]},
  "tools": {"type": "array", "items": {"$ref": "#/components/schemas/ChatTool"}}, "parallel_tool_calls": {"type": "boolean"},
  "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}]}},
  "required": ["messages"]},
"TokenIds": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2147483647}, "minItems": 1},
"CompletionsRequest": {"type": "object", "properties": {
  "model": {"type": "string"}, "prompt": {"anyOf": [{"type": "string"}, {"$ref": "#/components/schemas/TokenIds"},
    {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 1024},
    {"type": "array", "items": {"$ref": "#/components/schemas/TokenIds"}, "minItems": 1, "maxItems": 1024}]},
  "best_of": {"type": ["integer", "null"], "minimum": 1, "maximum": 128}, "echo": {"type": ["boolean", "null"]}, "ignore_eos": {"type": ["boolean", "null"]},
  "logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20}, "max_tokens": {"type": ["integer", "null"], "minimum": 0, "maximum": 2147483647},
  "metadata": {"$ref": "#/components/schemas/Metadata"}, "min_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
  "n": {"type": ["integer", "null"], "minimum": 1, "maximum": 128}, "repetition_penalty": {"type": ["number", "null"], "minimum": 0.01, "maximum": 100},
  "seed": {"type": ["integer", "null"], "minimum": -9223372036854775808, "maximum": 9223372036854775807}, "stop": {"$ref": "#/components/schemas/Stop"}, "stream": {"type": ["boolean", "null"]},
  "stream_options": {"$ref": "#/components/schemas/StreamOptions"}, "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2},
  "top_k": {"type": ["integer", "null"], "minimum": -1, "maximum": 2147483647}, "top_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1}},
  "required": ["prompt"]},
"ResponsesItem": {"anyOf": [
  {"type": "object", "properties": {"type": {"const": "message"}, "role": {"enum": ["system", "developer", "user", "assistant"]},
    "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/components/schemas/InputPart"}}]}}, "required": ["role", "content"]},
  {"type": "object", "properties": {"type": {"const": "function_call"}, "call_id": {"type": "string"}, "name": {"type": "string"},
    "arguments": {"type": "string"}}, "required": ["type", "call_id", "name", "arguments"]},
  {"type": "object", "properties": {"type": {"const": "function_call_output"}, "call_id": {"type": "string"}, "output": {"type": "string"}},
    "required": ["type", "call_id", "output"]}]},
"ResponsesRequest": {"type": "object", "properties": {
  "model": {"type": "string"}, "input": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/components/schemas/ResponsesItem"}, "minItems": 1}]},
  "ignore_eos": {"type": ["boolean", "null"]}, "include": {"type": ["array", "null"], "items": {"enum": ["message.output_text.logprobs", "reasoning.encrypted_content"]}},
  "instructions": {"type": ["string", "null"]}, "max_output_tokens": {"type": ["integer", "null"], "minimum": 1, "maximum": 2147483647},
  "metadata": {"$ref": "#/components/schemas/Metadata"}, "min_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
  "parallel_tool_calls": {"type": ["boolean", "null"]}, "repetition_penalty": {"type": ["number", "null"], "minimum": 0.01, "maximum": 100},
  "seed": {"type": ["integer", "null"], "minimum": -9223372036854775808, "maximum": 9223372036854775807}, "store": {"enum": [false, null]}, "stream": {"type": ["boolean", "null"]},
  "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2}, "text": {"type": "object"},
  "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}]}, "tools": {"type": "array", "items": {"type": "object"}},
  "top_k": {"type": ["integer", "null"], "minimum": -1, "maximum": 2147483647}, "top_logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20},
  "top_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1}}, "required": ["input"]},
"ToolUse": {"type": "object", "properties": {"type": {"const": "tool_use"}, "id": {"type": "string"}, "name": {"type": "string"}, "input": {"type": "object"}},
  "required": ["type", "id", "name", "input"]},
"ToolResult": {"type": "object", "properties": {"type": {"const": "tool_result"}, "tool_use_id": {"type": "string"}, "content": {"$ref": "#/components/schemas/Text"},
  "is_error": {"type": "boolean"}}, "required": ["type", "tool_use_id"]},
"AnthropicMessage": {"anyOf": [
  {"type": "object", "properties": {"role": {"enum": ["user", "assistant", "system"]}, "content": {"$ref": "#/components/schemas/Text"}}, "required": ["role", "content"]},
  {"type": "object", "properties": {"role": {"const": "assistant"}, "content": {"type": "array", "items": {"anyOf": [{"$ref": "#/components/schemas/TextPart"},
    {"$ref": "#/components/schemas/ToolUse"}]}}}, "required": ["role", "content"]},
  {"type": "object", "properties": {"role": {"const": "user"}, "content": {"type": "array", "items": {"anyOf": [{"$ref": "#/components/schemas/TextPart"},
    {"$ref": "#/components/schemas/ToolResult"}]}}}, "required": ["role", "content"]}]},
"AnthropicTool": {"type": "object", "properties": {"name": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,128}$"}, "description": {"type": "string"},
  "input_schema": {"type": "object"}, "strict": {"type": "boolean"}}, "required": ["name", "input_schema"]},
"CountTokensRequest": {"type": "object", "properties": {
  "model": {"type": "string"}, "messages": {"type": "array", "items": {"$ref": "#/components/schemas/AnthropicMessage"}, "minItems": 1},
  "system": {"$ref": "#/components/schemas/Text"}, "output_config": {"type": "object"}, "tool_choice": {"type": "object"},
  "tools": {"type": "array", "items": {"$ref": "#/components/schemas/AnthropicTool"}}}, "required": ["messages"]},
"MessagesRequest": {"type": "object", "properties": {
  "model": {"type": "string"}, "messages": {"type": "array", "items": {"$ref": "#/components/schemas/AnthropicMessage"}, "minItems": 1},
  "max_tokens": {"type": "integer", "minimum": 1, "maximum": 2147483647}, "ignore_eos": {"type": ["boolean", "null"]}, "metadata": {"$ref": "#/components/schemas/Metadata"},
  "min_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1}, "output_config": {"type": "object"},
  "repetition_penalty": {"type": ["number", "null"], "minimum": 0.01, "maximum": 100}, "seed": {"type": ["integer", "null"], "minimum": -9223372036854775808, "maximum": 9223372036854775807},
  "stop_sequences": {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 200}, "maxItems": 64}, "stream": {"type": ["boolean", "null"]},
  "system": {"$ref": "#/components/schemas/Text"}, "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 1}, "tool_choice": {"type": "object"},
  "tools": {"type": "array", "items": {"$ref": "#/components/schemas/AnthropicTool"}}, "top_k": {"type": ["integer", "null"], "minimum": -1, "maximum": 2147483647},
  "top_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1}}, "required": ["messages", "max_tokens"]},
"TokenizeRequest": {"type": "object", "properties": {"content": {"type": "string"}, "add_special": {"type": "boolean"}, "parse_special": {"type": "boolean"},
  "with_pieces": {"type": "boolean"}}, "required": ["content"]},
"DetokenizeRequest": {"type": "object", "properties": {"tokens": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2147483647}}}, "required": ["tokens"]},
"ForkRequest": {"type": "object", "properties": {"to": {"$ref": "#/components/schemas/SessionName"}, "at_message": {"type": ["integer", "null"], "minimum": 0, "maximum": 2147483647}}, "required": ["to"]}
})json";

constexpr std::string_view kReplySchemas = R"json({
"Error": {"type": "object", "properties": {"error": {"type": "object", "properties": {"message": {"type": "string"}, "type": {"type": "string"},
  "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}}, "required": ["message", "type", "param", "code"], "additionalProperties": false}},
  "required": ["error"], "additionalProperties": false},
"AnthropicError": {"type": "object", "properties": {"type": {"const": "error"}, "error": {"type": "object", "properties": {"type": {"type": "string"},
  "message": {"type": "string"}}, "required": ["type", "message"], "additionalProperties": false}}, "required": ["type", "error"], "additionalProperties": false},
"AnyError": {"anyOf": [{"$ref": "#/components/schemas/Error"}, {"$ref": "#/components/schemas/AnthropicError"}]},
"Usage": {"type": "object", "properties": {"prompt_tokens": {"type": "integer", "minimum": 0}, "completion_tokens": {"type": "integer", "minimum": 0},
  "total_tokens": {"type": "integer", "minimum": 0}, "prompt_tokens_details": {"type": "object", "properties": {"cached_tokens": {"type": "integer", "minimum": 0}},
  "required": ["cached_tokens"]}}, "required": ["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"], "additionalProperties": false},
"ToolCall": {"type": "object", "properties": {"id": {"type": "string"}, "type": {"const": "function"}, "function": {"type": "object",
  "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}}, "required": ["name", "arguments"]}}, "required": ["id", "type", "function"]},
"ChatReply": {"type": "object", "properties": {"id": {"type": "string"}, "object": {"const": "chat.completion"}, "created": {"type": "integer"}, "model": {"type": "string"},
  "choices": {"type": "array", "minItems": 1, "items": {"type": "object", "properties": {"index": {"type": "integer"}, "message": {"type": "object",
    "properties": {"role": {"const": "assistant"}, "content": {"type": ["string", "null"]}, "refusal": {"type": "null"},
    "tool_calls": {"type": "array", "items": {"$ref": "#/components/schemas/ToolCall"}}}, "required": ["role", "content"], "additionalProperties": false},
    "logprobs": {"type": ["object", "null"]}, "finish_reason": {"enum": ["stop", "length", "tool_calls"]}},
    "required": ["index", "message", "logprobs", "finish_reason"], "additionalProperties": false}},
  "usage": {"$ref": "#/components/schemas/Usage"}}, "required": ["id", "object", "created", "model", "choices", "usage"], "additionalProperties": false},
"CompletionsReply": {"type": "object", "properties": {"id": {"type": "string"}, "object": {"const": "text_completion"}, "created": {"type": "integer"}, "model": {"type": "string"},
  "choices": {"type": "array", "minItems": 1, "items": {"type": "object", "properties": {"text": {"type": "string"}, "index": {"type": "integer"},
    "logprobs": {"type": ["object", "null"]}, "finish_reason": {"enum": ["stop", "length"]}}, "required": ["text", "index", "logprobs", "finish_reason"], "additionalProperties": false}},
  "usage": {"$ref": "#/components/schemas/Usage"}}, "required": ["id", "object", "created", "model", "choices", "usage"], "additionalProperties": false},
"ResponsesReply": {"type": "object", "properties": {"id": {"type": "string"}, "object": {"const": "response"}, "created_at": {"type": "integer"},
  "status": {"enum": ["completed", "incomplete"]}, "model": {"type": "string"}, "output": {"type": "array", "items": {"type": "object",
    "properties": {"type": {"enum": ["message", "function_call"]}, "id": {"type": "string"}, "status": {"enum": ["completed", "incomplete"]}}, "required": ["type", "id", "status"]}},
  "usage": {"type": "object", "properties": {"input_tokens": {"type": "integer"}, "output_tokens": {"type": "integer"}, "total_tokens": {"type": "integer"}},
    "required": ["input_tokens", "output_tokens", "total_tokens"]}}, "required": ["id", "object", "created_at", "status", "model", "output", "usage"]},
"MessagesReply": {"type": "object", "properties": {"id": {"type": "string"}, "type": {"const": "message"}, "role": {"const": "assistant"}, "model": {"type": "string"},
  "content": {"type": "array", "items": {"type": "object", "properties": {"type": {"enum": ["text", "tool_use"]}}, "required": ["type"]}},
  "stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]}, "stop_sequence": {"type": ["string", "null"]},
  "usage": {"type": "object", "properties": {"input_tokens": {"type": "integer"}, "output_tokens": {"type": "integer"}, "cache_read_input_tokens": {"type": "integer"},
    "cache_creation_input_tokens": {"type": "integer"}}, "required": ["input_tokens", "output_tokens"], "additionalProperties": false}},
  "required": ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"], "additionalProperties": false},
"CountTokensReply": {"type": "object", "properties": {"input_tokens": {"type": "integer", "minimum": 0}}, "required": ["input_tokens"], "additionalProperties": false},
"Models": {"type": "object", "properties": {"data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}}, "required": ["data"]},
"Model": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
"TokenizeReply": {"type": "object", "properties": {"tokens": {"type": "array", "items": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "object",
  "properties": {"id": {"type": "integer", "minimum": 0}, "piece": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}}]}},
  "required": ["id", "piece"], "additionalProperties": false}]}}}, "required": ["tokens"], "additionalProperties": false},
"DetokenizeReply": {"type": "object", "properties": {"content": {"type": "string"}}, "required": ["content"], "additionalProperties": false},
"Session": {"type": "object", "properties": {"name": {"$ref": "#/components/schemas/SessionName"}, "tokens": {"type": "integer", "minimum": 0}, "bytes": {"type": "integer", "minimum": 0},
  "saved": {}}, "required": ["name", "tokens", "bytes", "saved"]},
"Sessions": {"type": "object", "properties": {"data": {"type": "array", "items": {"$ref": "#/components/schemas/Session"}}}, "required": ["data"]},
"Cache": {"type": "object", "properties": {"tokens": {"type": "integer", "minimum": 0}, "groups": {}, "window": {}, "sink": {}, "shared_bytes": {"type": "integer", "minimum": 0},
  "bytes": {"type": "integer", "minimum": 0}, "dense_bytes": {"type": "integer", "minimum": 0}},
  "required": ["tokens", "groups", "window", "sink", "shared_bytes", "bytes", "dense_bytes"]},
"Object": {"type": "object"}
})json";

struct RouteShape {
  Route route;
  std::string_view id, summary, request, reply;  ///< names of schemas; empty: none
  bool streams = false;
};

constexpr RouteShape kShapes[] = {
    {Route::chat, "chat", "Reply to a conversation", "ChatRequest", "ChatReply", true},
    {Route::completions, "completions", "Continue texts or token ids", "CompletionsRequest",
     "CompletionsReply", true},
    {Route::responses, "responses", "Reply to items, without state", "ResponsesRequest",
     "ResponsesReply", true},
    {Route::messages, "messages", "Reply to a conversation", "MessagesRequest", "MessagesReply",
     true},
    {Route::count_tokens, "countTokens", "Count a conversation's tokens", "CountTokensRequest",
     "CountTokensReply"},
    {Route::models, "models", "The model that is served", "", "Models"},
    {Route::model, "model", "One model", "", "Model"},
    {Route::tokenize, "tokenize", "Text to token ids", "TokenizeRequest", "TokenizeReply"},
    {Route::detokenize, "detokenize", "Token ids to text", "DetokenizeRequest", "DetokenizeReply"},
    {Route::sessions, "sessions", "Sessions on disk", "", "Sessions"},
    {Route::session_fork, "forkSession", "Copy a session", "ForkRequest", "Object"},
    {Route::session_delete, "deleteSession", "Delete a session", "", "Object"},
    {Route::cache, "cache", "The cache of a session", "", "Cache"},
    {Route::health, "health", "Whether requests are taken", "", "Object"},
    {Route::metrics, "metrics", "Counters for Prometheus", "", ""},
    {Route::openapi, "openapi", "This document", "", "Object"},
    {Route::server_info, "serverInfo", "Settings of the server", "", "Object"},
    {Route::model_info, "modelInfo", "Settings of the model", "", "Object"},
    {Route::page_config, "pageConfig", "What the page needs to know", "", "Object"},
    {Route::session_messages, "sessionMessages", "The conversation of a session", "", "Object"},
};

Json schema_ref(std::string_view name) {
  Json value;
  value["$ref"] = fmt::format("#/components/schemas/{}", name);
  return value;
}

Json json_content(std::string_view name) {
  Json value;
  value["application/json"]["schema"] = schema_ref(name);
  return value;
}

Json operation(const RouteEntry& entry, const RouteShape& shape) {
  Json value;
  value["operationId"] = shape.id;
  value["summary"] = shape.summary;
  if (entry.path.find('{') != std::string_view::npos) {
    Json parameter;
    parameter["name"] = "name";
    parameter["in"] = "path";
    parameter["required"] = true;
    if (shape.route == Route::model) {
      parameter["schema"]["type"] = "string";
      parameter["schema"]["minLength"] = 1;
    } else {
      parameter["schema"] = schema_ref("SessionName");
    }
    value["parameters"] = Json::array();
    value["parameters"].push_back(std::move(parameter));
  }
  if (!shape.request.empty()) {
    value["requestBody"]["required"] = true;
    value["requestBody"]["content"] = json_content(shape.request);
  }
  Json& answers = value["responses"];
  answers["200"]["description"] = "done";
  if (shape.reply.empty()) {
    answers["200"]["content"]["text/plain"]["schema"]["type"] = "string";
  } else {
    answers["200"]["content"] = json_content(shape.reply);
  }
  if (shape.streams) {
    // Before OpenAPI 3.2 it is each event that the schema describes.
    Json& event = answers["200"]["content"]["text/event-stream"]["schema"];
    event["type"] = "object";
    event["properties"]["event"]["type"] = "string";
    event["properties"]["data"]["type"] = "string";
    event["required"] = Json::array({"data"});
  }
  const std::string_view error = shape.route == Route::models || shape.route == Route::model
                                     ? "AnyError"
                                 : entry.dialect == Dialect::anthropic ? "AnthropicError"
                                                                       : "Error";
  constexpr std::pair<const char*, const char*> kErrors[] = {
      {"400", "a field is wrong or not supported"},
      {"401", "the key is wrong"},
      {"403", "foreign Host or Origin"},
      {"404", "not there"},
      {"405", "another method is meant"},
      {"408", "the request came too slowly"},
      {"409", "the session is in use, or its file cannot be used"},
      {"413", "the body is too long"},
      {"429", "too many requests wait; see Retry-After"},
      {"431", "the headers are too long"},
      {"503", "loading, about to stop, or short of memory"}};
  for (const auto& [status, words] : kErrors) {
    answers[status]["description"] = words;
    answers[status]["content"] = json_content(error);
  }
  return value;
}

}  // namespace

std::string openapi_body() {
  Json document;
  document["openapi"] = "3.1.0";
  document["info"]["title"] = "lca serve";
  document["info"]["version"] = "1";
  document["security"] = Json::parse(R"([{}, {"bearer": []}, {"key": []}])");
  for (const RouteEntry& entry : route_table()) {
    for (const RouteShape& shape : kShapes) {
      if (shape.route != entry.route) continue;
      std::string method(entry.method);
      for (char& c : method) c = static_cast<char>(c + ('a' - 'A'));
      document["paths"][std::string(entry.path)][method] = operation(entry, shape);
    }
  }
  Json schemas = Json::parse(kRequestSchemas);
  schemas.update(Json::parse(kReplySchemas));
  document["components"]["schemas"] = std::move(schemas);
  document["components"]["securitySchemes"] = Json::parse(
      R"({"bearer": {"type": "http", "scheme": "bearer"},
          "key": {"type": "apiKey", "in": "header", "name": "x-api-key"}})");
  return json_text(document);
}

}  // namespace lca::server
