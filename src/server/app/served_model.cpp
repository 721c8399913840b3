#include "server/app/served_model.h"

#include "core/error.h"
#include "core/text.h"
#include "engine/session_state.h"
#include "models/model_state.h"
#include "server/api/request_json.h"
#include "server/app/constraint.h"
#include "server/app/number_tokenizer.h"
#include "server/tools/tool_events.h"
#include "server/tools/tool_grammar.h"
#include "server/tools/tool_rule.h"

#include <lca/error.h>

#include <algorithm>
#include <utility>

namespace lca::server {
namespace {

bool message_has_tools(const Message& message) {
  return !message.calls.empty() || message.role == "tool";
}

/// Where a reply must be JSON or a call, what it may be; else what its calls may be.
Grammar job_grammar(const Job& job, ToolFormat format) {
  using Kind = OutputRule::Kind;
  switch (job.rule.kind) {
    case Kind::json_object:
      return Grammar::json_object();
    case Kind::json_schema:
      return Grammar::from_schema(job.rule.schema);
    case Kind::free:
      return tool_grammar(tool_rule_offered(format, job.tools, job.parallel_calls));
    default:
      return tool_grammar(tool_rule(format, job.tools, job.rule, job.parallel_calls));
  }
}

/// Takes from the events of a reply what was said and called.
void message_add(Message& message, std::vector<JobEvent> events) {
  for (JobEvent& event : events) {
    message.text += event.text;
    if (event.kind != JobEvent::Kind::call) continue;
    ToolCallPiece& call = event.call;
    message.calls.push_back({std::move(call.id), std::move(call.name), std::move(call.arguments)});
  }
}

bool weights_are_random(const Model& model) { return model.info().format == "random"; }

/// Sets `options.tokenizer` where the model has none.
Tokenizer tokenizer_of(const Model& model, HostOptions& options) {
  if (!options.tokenizer && weights_are_random(model)) {
    options.tokenizer = number_tokenizer(model.info().vocabulary);
  }
  return options.tokenizer ? *options.tokenizer : model.tokenizer();
}

}  // namespace

Message reply_message(ToolFormat format, const Job& job, const std::string& text) {
  ToolEvents tools(format, job, job.call_ids);
  Message message{"assistant", ""};
  JobEvent event;
  event.text = text;
  message_add(message, tools.take(std::move(event)));
  JobEvent done;
  done.kind = JobEvent::Kind::done;
  message_add(message, tools.take(std::move(done)));
  return message;
}

bool has_grammar(const Job& job) {
  return job.rule.kind != OutputRule::Kind::free || tools_are_strict(job.tools);
}

bool ServedModel::reads_text() const { return !weights_are_random(*model_); }

ServedModel::ServedModel(std::string name, std::shared_ptr<const Model> model, int threads,
                         HostOptions options)
    : name_(std::move(name)),
      model_(std::move(model)),
      tokenizer_(tokenizer_of(*model_, options)),
      settings_(settings_per_layer(*model_, options.session)),
      context_(threads) {
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (name_.empty() || std::ranges::any_of(name_, is_control)) {
    fail_input("\"{}\" is no name of a model: it takes text without control characters",
               text_printable(name_));
  }
  try {
    const ChatFormat format = options.chat ? options.chat->format() : model_->chat().format();
    tools_.emplace(tokenizer_, format, model_->state().checkpoint.chat_template());
  } catch (const Error&) {
    // A template of an unknown kind, or none: jobs with tools are refused.
  }
  options.hooks.prompt = [this](const Job& job) { return prompt(job); };
  options.hooks.adjust = [this](const Job& job, int,
                                std::int64_t prompt_tokens) -> decltype(GenerateOptions::adjust) {
    if (!job.grammar) return {};
    std::optional<ToolWatch> calls;
    if (job.rule.kind == OutputRule::Kind::free) calls.emplace(tool_format());
    return constraint_make(*job.grammar, mask(), tokenizer_, model_->end_tokens(), prompt_tokens,
                           calls);
  };
  options.hooks.reply = [this](const Job& job, const std::string& text) {
    return reply(job, text);
  };
  host_ = std::make_unique<EngineHost>(model_, context_, std::move(options));
}

const TokenMask& ServedModel::mask() const {
  std::call_once(mask_once_, [this] { mask_ = std::make_unique<TokenMask>(tokenizer_); });
  return *mask_;
}

void ServedModel::prepare(Job& job) const {
  const auto* messages = std::get_if<std::vector<Message>>(&job.prompt);
  if (!reads_text()) {
    if (!std::holds_alternative<std::vector<std::int32_t>>(job.prompt)) {
      refuse(messages == nullptr ? "prompt" : "messages",
             "model {} has random weights and no tokenizer; send a prompt of token ids to "
             "/v1/completions",
             name_);
    }
    if (job.rule.kind != OutputRule::Kind::free) {
      refuse("response_format", "model {} has random weights: it writes numbers, no JSON", name_);
    }
  }
  const bool speaks = messages != nullptr && std::ranges::any_of(*messages, message_has_tools);
  if ((!job.tools.empty() || speaks) && tool_format() == ToolFormat::none) {
    refuse("tools",
           "model {} has no format for tools that this server knows (Qwen2.5's and Llama 3.1's "
           "are); send the request without tools",
           name_);
  }
  if (!job.tools.empty() && tools_->reply_is_special()) job.generate.with_special = true;
  if (!has_grammar(job)) return;
  try {
    job.grammar = std::make_shared<const Grammar>(job_grammar(job, tool_format()));
  } catch (const Error& error) {
    const bool json = job.rule.kind == OutputRule::Kind::json_object ||
                      job.rule.kind == OutputRule::Kind::json_schema;
    refuse(json ? "response_format" : "tools", "{}", error.what());
  }
  job.ignore_end = false;  // what must end does
  mask();
}

Message ServedModel::reply(const Job& job, const std::string& text) const {
  if (job.tools.empty()) return {"assistant", text};
  return reply_message(tool_format(), job, text);
}

std::vector<std::int32_t> ServedModel::prompt(const Job& job) const {
  const auto* messages = std::get_if<std::vector<Message>>(&job.prompt);
  if (messages == nullptr) return {};
  if (job.tools.empty() && std::ranges::none_of(*messages, message_has_tools)) return {};
  return tools_->ids(*messages, job.tools, job.continue_last);
}

}  // namespace lca::server
