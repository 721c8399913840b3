#include "server/api/fields.h"

#include <array>

namespace lca::server {

namespace {

constexpr FieldUse kYes = FieldUse::honoured;
constexpr FieldUse kSkip = FieldUse::ignored;
constexpr FieldUse kNo = FieldUse::refused;

// Fields as of the Python packages openai 3.49 and anthropic 2.8, and those which older releases
// send. A refused field may have the value that says nothing (`allowed`); null always may.
constexpr FieldRule kRules[] = {
    // --- POST /v1/chat/completions
    {"chat", "messages", kYes, "(required)", ""},
    {"chat", "model", kYes, "(the one served)", ""},
    {"chat", "audio", kNo, "null", "[]"},
    {"chat", "continue_final_message", kYes, "false", ""},
    {"chat", "frequency_penalty", kNo, "0", "[0]"},
    {"chat", "function_call", kNo, "null", R"(["none","auto"])"},
    {"chat", "functions", kNo, "[]", "[[]]"},
    {"chat", "ignore_eos", kYes, "false", ""},
    {"chat", "logit_bias", kNo, "{}", "[{}]"},
    {"chat", "logprobs", kYes, "false", ""},
    {"chat", "max_completion_tokens", kYes, "(what the context holds)", ""},
    {"chat", "max_tokens", kYes, "(max_completion_tokens)", ""},
    {"chat", "metadata", kYes, "{}", ""},
    {"chat", "min_p", kYes, "0", ""},
    {"chat", "modalities", kNo, R"(["text"])", R"([["text"]])"},
    {"chat", "moderation", kNo, "null", "[]"},
    {"chat", "n", kYes, "1", ""},
    {"chat", "parallel_tool_calls", kYes, "true", ""},
    {"chat", "prediction", kSkip, "null", ""},
    {"chat", "presence_penalty", kNo, "0", "[0]"},
    {"chat", "prompt_cache_key", kSkip, "null", ""},
    {"chat", "prompt_cache_options", kSkip, "null", ""},
    {"chat", "prompt_cache_retention", kSkip, "null", ""},
    {"chat", "reasoning_effort", kNo, "\"medium\"", R"(["medium","none"])"},
    {"chat", "repetition_penalty", kYes, "1", ""},
    {"chat", "response_format", kYes, R"({"type":"text"})", ""},
    {"chat", "safety_identifier", kSkip, "null", ""},
    {"chat", "seed", kYes, "(drawn)", ""},
    {"chat", "service_tier", kSkip, "\"auto\"", ""},
    {"chat", "stop", kYes, "[]", ""},
    {"chat", "store", kSkip, "false", ""},
    {"chat", "stream", kYes, "false", ""},
    {"chat", "stream_options", kYes, "null", ""},
    {"chat", "temperature", kYes, "1", ""},
    {"chat", "tool_choice", kYes, "\"auto\"", ""},
    {"chat", "tools", kYes, "[]", ""},
    {"chat", "top_k", kYes, "0", ""},
    {"chat", "top_logprobs", kYes, "0", ""},
    {"chat", "top_p", kYes, "1", ""},
    {"chat", "user", kSkip, "null", ""},
    {"chat", "verbosity", kNo, "\"medium\"", R"(["medium"])"},
    {"chat", "web_search_options", kNo, "null", "[]"},
    {"chat.messages[]", "role", kYes, "(required)", ""},
    {"chat.messages[]", "content", kYes, "(required)", ""},
    {"chat.messages[]", "name", kNo, "null", "[]"},
    {"chat.messages[]", "tool_call_id", kYes, "(required of role tool)", ""},
    {"chat.messages[]", "tool_calls", kYes, "[]", ""},
    {"chat.messages[]", "audio", kNo, "null", "[]"},
    {"chat.messages[]", "function_call", kNo, "null", "[]"},
    {"chat.messages[]", "refusal", kNo, "null", R"([""])"},
    {"chat.stream_options", "include_usage", kYes, "false", ""},
    {"chat.stream_options", "include_obfuscation", kSkip, "true", ""},
    {"chat.tools[].function", "name", kYes, "(required)", ""},
    {"chat.tools[].function", "description", kYes, "\"\"", ""},
    {"chat.tools[].function", "parameters", kYes, "(no arguments)", ""},
    {"chat.tools[].function", "strict", kYes, "(false)", ""},
    {"chat.response_format.json_schema", "name", kYes, "(required)", ""},
    {"chat.response_format.json_schema", "schema", kYes, "(required)", ""},
    {"chat.response_format.json_schema", "description", kSkip, "null", ""},
    {"chat.response_format.json_schema", "strict", kSkip, "(always true)", ""},

    // --- POST /v1/completions
    {"completions", "prompt", kYes, "(required)", ""},
    {"completions", "model", kYes, "(the one served)", ""},
    {"completions", "best_of", kYes, "(n; nothing else)", ""},
    {"completions", "echo", kYes, "false", ""},
    {"completions", "frequency_penalty", kNo, "0", "[0]"},
    {"completions", "ignore_eos", kYes, "false", ""},
    {"completions", "logit_bias", kNo, "{}", "[{}]"},
    {"completions", "logprobs", kYes, "null", ""},
    {"completions", "max_tokens", kYes, "16", ""},
    {"completions", "metadata", kYes, "{}", ""},
    {"completions", "min_p", kYes, "0", ""},
    {"completions", "n", kYes, "1", ""},
    {"completions", "presence_penalty", kNo, "0", "[0]"},
    {"completions", "repetition_penalty", kYes, "1", ""},
    {"completions", "seed", kYes, "(drawn)", ""},
    {"completions", "stop", kYes, "[]", ""},
    {"completions", "stream", kYes, "false", ""},
    {"completions", "stream_options", kYes, "null", ""},
    {"completions", "suffix", kNo, "null", R"([""])"},
    {"completions", "temperature", kYes, "1", ""},
    {"completions", "top_k", kYes, "0", ""},
    {"completions", "top_p", kYes, "1", ""},
    {"completions", "user", kSkip, "null", ""},
    {"completions.stream_options", "include_usage", kYes, "false", ""},
    {"completions.stream_options", "include_obfuscation", kSkip, "true", ""},

    // --- POST /v1/responses
    {"responses", "input", kYes, "(required)", ""},
    {"responses", "model", kYes, "(the one served)", ""},
    {"responses", "access_programs", kNo, "null", "[]"},
    {"responses", "background", kNo, "false", "[false]"},
    {"responses", "context_management", kNo, "[]", "[[]]"},
    {"responses", "conversation", kNo, "null", "[]"},
    {"responses", "ignore_eos", kYes, "false", ""},
    {"responses", "image", kNo, "null", "[]"},
    {"responses", "include", kYes, "[]", ""},
    {"responses", "instructions", kYes, "null", ""},
    {"responses", "max_output_tokens", kYes, "(what the context holds)", ""},
    {"responses", "max_tool_calls", kSkip, "null", ""},
    {"responses", "metadata", kYes, "{}", ""},
    {"responses", "min_p", kYes, "0", ""},
    {"responses", "moderation", kNo, "null", "[]"},
    {"responses", "parallel_tool_calls", kYes, "true", ""},
    {"responses", "previous_response_id", kNo, "null", "[]"},
    {"responses", "prompt", kNo, "null", "[]"},
    {"responses", "prompt_cache_key", kSkip, "null", ""},
    {"responses", "prompt_cache_options", kSkip, "null", ""},
    {"responses", "prompt_cache_retention", kSkip, "null", ""},
    {"responses", "reasoning", kNo, "null",
     R"([{},{"effort":null},{"effort":"none"},{"effort":"medium"}])"},
    {"responses", "repetition_penalty", kYes, "1", ""},
    {"responses", "safety_identifier", kSkip, "null", ""},
    {"responses", "seed", kYes, "(drawn)", ""},
    {"responses", "service_tier", kSkip, "\"auto\"", ""},
    {"responses", "store", kNo, "false", "[false]"},
    {"responses", "stream", kYes, "false", ""},
    {"responses", "stream_options", kSkip, "null", ""},
    {"responses", "temperature", kYes, "1", ""},
    {"responses", "text", kYes, R"({"format":{"type":"text"}})", ""},
    {"responses", "tool_choice", kYes, "\"auto\"", ""},
    {"responses", "tools", kYes, "[]", ""},
    {"responses", "top_k", kYes, "0", ""},
    {"responses", "top_logprobs", kYes, "0", ""},
    {"responses", "top_p", kYes, "1", ""},
    {"responses", "truncation", kNo, "\"disabled\"", R"(["disabled"])"},
    {"responses", "user", kSkip, "null", ""},
    {"responses.text", "format", kYes, R"({"type":"text"})", ""},
    {"responses.text", "verbosity", kNo, "\"medium\"", R"(["medium"])"},
    {"responses.text.format", "name", kYes, "(required)", ""},
    {"responses.text.format", "schema", kYes, "(required)", ""},
    {"responses.text.format", "description", kSkip, "null", ""},
    {"responses.text.format", "strict", kSkip, "(always true)", ""},
    {"responses.tools[]", "name", kYes, "(required)", ""},
    {"responses.tools[]", "description", kYes, "\"\"", ""},
    {"responses.tools[]", "parameters", kYes, "(no arguments)", ""},
    {"responses.tools[]", "strict", kYes, "(false)", ""},
    {"responses.tools[]", "defer_loading", kNo, "false", "[false]"},

    // --- POST /v1/messages
    {"messages", "messages", kYes, "(required)", ""},
    {"messages", "max_tokens", kYes, "(required)", ""},
    {"messages", "model", kYes, "(the one served)", ""},
    {"messages", "cache_control", kSkip, "null", ""},
    {"messages", "container", kNo, "null", "[]"},
    {"messages", "context_management", kNo, "null", R"([{},{"edits":[]}])"},
    {"messages", "diagnostics", kSkip, "null", ""},
    {"messages", "ignore_eos", kYes, "false", ""},
    {"messages", "inference_geo", kSkip, "null", ""},
    {"messages", "mcp_servers", kNo, "[]", "[[]]"},
    {"messages", "metadata", kYes, "{}", ""},
    {"messages", "min_p", kYes, "0", ""},
    {"messages", "output_config", kYes, "{}", ""},
    {"messages", "repetition_penalty", kYes, "1", ""},
    {"messages", "seed", kYes, "(drawn)", ""},
    {"messages", "service_tier", kSkip, "\"auto\"", ""},
    {"messages", "speed", kSkip, "\"standard\"", ""},
    {"messages", "stop_sequences", kYes, "[]", ""},
    {"messages", "stream", kYes, "false", ""},
    {"messages", "system", kYes, "null", ""},
    {"messages", "temperature", kYes, "1", ""},
    {"messages", "thinking", kNo, R"({"type":"disabled"})", R"([{"type":"disabled"}])"},
    {"messages", "tool_choice", kYes, R"({"type":"auto"})", ""},
    {"messages", "tools", kYes, "[]", ""},
    {"messages", "top_k", kYes, "0", ""},
    {"messages", "top_p", kYes, "1", ""},
    {"messages", "user_profile_id", kSkip, "null", ""},
    {"messages", "workspace_id", kSkip, "null", ""},
    {"messages.output_config", "effort", kNo, "\"high\"", R"(["high"])"},
    {"messages.output_config", "format", kYes, "null", ""},
    {"messages.tools[]", "name", kYes, "(required)", ""},
    {"messages.tools[]", "description", kYes, "\"\"", ""},
    {"messages.tools[]", "input_schema", kYes, "(required)", ""},
    {"messages.tools[]", "strict", kYes, "(false)", ""},
    {"messages.tools[]", "allowed_callers", kNo, R"(["direct"])", R"([["direct"]])"},
    {"messages.tools[]", "cache_control", kSkip, "null", ""},
    {"messages.tools[]", "defer_loading", kNo, "false", "[false]"},
    {"messages.tools[]", "eager_input_streaming", kSkip, "null", ""},
    {"messages.tools[]", "input_examples", kNo, "[]", "[[]]"},

    // --- POST /v1/messages/count_tokens
    {"count_tokens", "messages", kYes, "(required)", ""},
    {"count_tokens", "model", kYes, "(the one served)", ""},
    {"count_tokens", "cache_control", kSkip, "null", ""},
    {"count_tokens", "context_management", kNo, "null", R"([{},{"edits":[]}])"},
    {"count_tokens", "mcp_servers", kNo, "[]", "[[]]"},
    {"count_tokens", "output_config", kYes, "{}", ""},
    {"count_tokens", "speed", kSkip, "\"standard\"", ""},
    {"count_tokens", "system", kYes, "null", ""},
    {"count_tokens", "thinking", kNo, R"({"type":"disabled"})", R"([{"type":"disabled"}])"},
    {"count_tokens", "tool_choice", kYes, R"({"type":"auto"})", ""},
    {"count_tokens", "tools", kYes, "[]", ""},
    {"count_tokens", "user_profile_id", kSkip, "null", ""},
    {"count_tokens", "workspace_id", kSkip, "null", ""},

    // --- ours
    {"tokenize", "content", kYes, "(required)", ""},
    {"tokenize", "add_special", kYes, "false", ""},
    {"tokenize", "parse_special", kYes, "true", ""},
    {"tokenize", "with_pieces", kYes, "false", ""},
    {"detokenize", "tokens", kYes, "(required)", ""},
};

bool value_is_allowed(const Json& value, std::string_view allowed) {
  const Json list = Json::parse(allowed);
  for (const Json& each : list) {
    if (value == each) return true;  // 0 and 0.0 are equal
  }
  return false;
}

struct FieldPage {
  std::string_view object, title;
};

constexpr FieldPage kPages[] = {
    {"chat", "POST /v1/chat/completions"},
    {"completions", "POST /v1/completions"},
    {"responses", "POST /v1/responses"},
    {"messages", "POST /v1/messages"},
    {"count_tokens", "POST /v1/messages/count_tokens"},
    {"tokenize", "POST /tokenize"},
    {"detokenize", "POST /detokenize"},
};

std::string allowed_words(const FieldRule& rule) {
  if (rule.use != FieldUse::refused) return "";
  std::string words;
  for (const Json& each : Json::parse(rule.allowed)) {
    words += fmt::format("{}`{}`", words.empty() ? " unless " : ", ", each.dump());
  }
  return words.empty() ? " unless null" : words;
}

}  // namespace

std::span<const FieldRule> field_rules() { return kRules; }

void fields_check(std::string_view object, const Fields& fields) {
  for (const FieldRule& rule : kRules) {
    if (rule.use != FieldUse::refused || rule.object != object) continue;
    const Json* value = fields.find(rule.name);
    if (value == nullptr || value_is_allowed(*value, rule.allowed)) continue;
    const std::string path = fields.path(rule.name);
    refuse(path, "{} is not supported by this server{}", path,
           rule.allowed == "[]"
               ? std::string("; leave it out")
               : fmt::format("; leave it out or send its default, {}", rule.fallback));
  }
}

std::string fields_markdown() {
  std::string text =
      "# Fields of requests\n\n"
      "Made from the table in `src/server/api/fields.cpp`, which the server itself uses. *Ignored* "
      "fields have no\neffect on text. *Refused* ones are answered with 400 that names them; null "
      "is always allowed. Fields that are\nnot listed are ignored.\n";
  for (const FieldPage& page : kPages) {
    text += fmt::format("\n## {}\n\n| field | use | default |\n| --- | --- | --- |\n", page.title);
    for (const FieldRule& rule : kRules) {
      const bool inside =
          rule.object.starts_with(page.object) &&
          (rule.object.size() == page.object.size() || rule.object[page.object.size()] == '.');
      if (!inside) continue;
      std::string name(rule.object.substr(page.object.size()));
      name =
          name.empty() ? std::string(rule.name) : fmt::format("{}.{}", name.substr(1), rule.name);
      constexpr std::string_view kUses[] = {"honoured", "ignored", "refused"};
      const bool words = rule.fallback.starts_with('(');
      const std::string fallback =
          words ? std::string(rule.fallback.substr(1, rule.fallback.size() - 2))
                : fmt::format("`{}`", rule.fallback);
      text += fmt::format("| `{}` | {}{} | {} |\n", name, kUses[static_cast<int>(rule.use)],
                          allowed_words(rule), fallback);
    }
  }
  return text;
}

}  // namespace lca::server
