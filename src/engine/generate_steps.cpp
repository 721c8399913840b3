#include "engine/generate_steps.h"
#include "core/error.h"

#include <algorithm>

namespace lca {

std::string_view stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::end_token:
      return "end_token";
    case StopReason::stop_string:
      return "stop_string";
    case StopReason::length:
      return "length";
    case StopReason::cancelled:
      break;
  }
  return "cancelled";
}

Generated generate_steps(const GenerateSteps& steps, const Tokenizer& tokenizer,
                         const GenerateOptions& options,
                         const std::function<bool(std::string_view)>& on_text) {
  if (options.max_tokens < 0) {
    fail_input("max_tokens is {}; it must be 0 or more", options.max_tokens);
  }
  Generated result;
  StreamDecoder decoder(tokenizer, options.with_special);
  StopFilter filter(options.stops);
  // A model's vocabulary may be padded beyond its tokenizer's: such ids have no text.
  const auto decoded = [&](std::int32_t token) {
    return token < tokenizer.size() ? decoder.push(token) : std::string();
  };
  for (const std::int32_t token : steps.begun) {
    filter.push(decoded(token));
    // What follows a stop string is a new reply.
    if (filter.stopped()) filter = StopFilter(options.stops);
  }
  const auto show = [&](std::string_view text) {
    result.text += text;
    return !on_text || on_text(text);
  };

  while (static_cast<std::int64_t>(result.tokens.size()) < options.max_tokens) {
    const std::int32_t token = steps.pick();
    if (std::ranges::find(options.end_tokens, token) != options.end_tokens.end()) {
      result.reason = StopReason::end_token;
      break;
    }
    result.tokens.push_back(token);
    const bool go_on = show(filter.push(decoded(token)));
    steps.decode(token);
    if (filter.stopped()) {
      result.reason = StopReason::stop_string;
      break;
    }
    if (!go_on) {
      result.reason = StopReason::cancelled;
      break;
    }
  }

  if (result.reason == StopReason::end_token ||
      (result.reason == StopReason::length && !options.open)) {
    // Nothing more comes: emit withheld text (part of a character, or of a possible stop string).
    std::string rest = filter.push(decoder.finish());
    if (filter.stopped()) result.reason = StopReason::stop_string;
    rest += filter.finish();
    if (!rest.empty()) show(rest);
  }
  return result;
}

}  // namespace lca
