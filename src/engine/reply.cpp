#include "engine/reply.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace lca {
namespace {

bool ends_reply(const GenerateOptions& options, std::int32_t token) {
  return std::ranges::find(options.end_tokens, token) != options.end_tokens.end();
}

}  // namespace

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

// --- text ---------------------------------------------------------------------------------------

ReplyText::ReplyText(const Tokenizer& tokenizer, const GenerateOptions& options,
                     std::function<bool(std::string_view)> show)
    : tokenizer_(tokenizer),
      options_(options),
      show_(std::move(show)),
      decoder_(tokenizer, options.with_special),
      filter_(options.stops) {
  if (options.max_tokens < 0) {
    fail_input("max_tokens is {}; it must be 0 or more", options.max_tokens);
  }
}

/// A model's vocabulary may be padded beyond its tokenizer's: such ids have no text.
std::string ReplyText::decoded(std::int32_t token) {
  return token < tokenizer_.size() ? decoder_.push(token) : std::string();
}

bool ReplyText::emit(std::string_view piece) {
  text += piece;
  return !show_ || show_(piece);
}

void ReplyText::resume(std::span<const std::int32_t> begun) {
  for (const std::int32_t token : begun) {
    filter_.push(decoded(token));
    // What follows a stop string is a new reply.
    if (filter_.stopped()) filter_ = StopFilter(options_.stops);
  }
}

bool ReplyText::wants_token() const { return !ended_ && std::ssize(tokens) < options_.max_tokens; }

bool ReplyText::push(std::int32_t token) {
  if (ends_reply(options_, token)) {
    reason = StopReason::end_token;
    ended_ = true;
    return false;
  }
  token_ = token;
  const bool go_on = emit(filter_.push(decoded(token)));
  if (filter_.stopped()) {
    reason = StopReason::stop_string;
    ended_ = true;
  } else if (!go_on) {
    cancel();
  }
  return true;
}

bool ReplyText::is_last() const { return ended_ || std::ssize(tokens) + 1 >= options_.max_tokens; }

void ReplyText::taken() { tokens.push_back(token_); }

void ReplyText::cancel() {
  reason = StopReason::cancelled;
  ended_ = true;
}

void ReplyText::finish() {
  const bool closed = reason == StopReason::length && !options_.open;
  if (reason != StopReason::end_token && !closed) return;
  // Nothing more comes: emit withheld text (part of a character, or of a possible stop string).
  std::string rest = filter_.push(decoder_.finish());
  if (filter_.stopped()) reason = StopReason::stop_string;
  rest += filter_.finish();
  if (!rest.empty()) emit(rest);
}

// --- of a session -------------------------------------------------------------------------------

void Reply::check(const GenerateOptions& options, std::int64_t vocabulary) {
  options.sampling.validate();
  if (options.max_tokens < 0) {
    fail_input("max_tokens is {}; it must be 0 or more", options.max_tokens);
  }
  if (options.top_logprobs < 0 || options.top_logprobs > vocabulary) {
    fail_input("top_logprobs is {}; it takes 0 to {}", options.top_logprobs, vocabulary);
  }
  StopFilter checked(options.stops);
}

Reply::Reply(Session& session, const Tokenizer& tokenizer, std::span<const std::int32_t> prompt,
             const GenerateOptions& options, const OnPiece& on_piece)
    : session_(session),
      prompt_(prompt),
      options_(options),
      on_piece_(on_piece),
      sampler_(options.sampling),
      text_(tokenizer, options, [this](std::string_view text) { return show(text); }),
      reused_(session.length()) {
  check(options, session.model().info().vocabulary);
  if (prompt.empty() && session.logits().empty()) {
    fail_input("there is nothing to continue: the session has not read a prompt to its end");
  }
}

double Reply::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
}

LogitsSink Reply::prompt_sink() {
  if (!options_.prompt_logprobs) return {};
  // The logits of a position predict the next token.
  if (prompt_logprobs_.empty()) {
    prompt_logprobs_.emplace_back();
    if (!session_.logits().empty()) {
      prompt_logprobs_[0] = logprobs_of(session_.logits(), prompt_[0], options_.top_logprobs);
    }
  }
  return [this](std::int64_t first, std::int64_t count, const float* logits) {
    const auto vocabulary = static_cast<std::size_t>(session_.model().info().vocabulary);
    const auto next = static_cast<std::size_t>(first + 1 - reused_);
    prompt_logprobs_.resize(next);  // a step that was rolled back had come further
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      if (next + i >= prompt_.size()) break;
      prompt_logprobs_.emplace_back(logprobs_of({logits + i * vocabulary, vocabulary},
                                                prompt_[next + i], options_.top_logprobs));
    }
  };
}

void Reply::prompt_read() {
  prefill_seconds_ = seconds();
  if (options_.resumed) {
    text_.resume(
        std::span(session_.tokens()).subspan(static_cast<std::size_t>(session_.prompt_end())));
  }
}

bool Reply::is_greedy() const {
  const Sampling& sampling = options_.sampling;
  return sampling.temperature == 0 && sampling.repetition_penalty == 1 && !options_.adjust &&
         !options_.logprobs;
}

std::int32_t Reply::choose() {
  std::span<const float> logits = session_.logits();
  if (options_.adjust) {
    adjusted_.assign(logits.begin(), logits.end());
    options_.adjust(session_.tokens(), adjusted_);
    logits = adjusted_;
  }
  const std::int32_t token = sampler_.pick(logits, session_.tokens(), session_.length());
  if (options_.logprobs) {
    candidate_ = logprobs_of(session_.logits(), token, options_.top_logprobs);
  }
  return token;
}

bool Reply::push(std::int32_t token) {
  token_ = token;
  // An end token is not taken; withheld text that is emitted then belongs to no token.
  fresh_ = !ends_reply(options_, token);
  return text_.push(token);
}

bool Reply::show(std::string_view text) {
  const double now = seconds();
  if (first_seconds_ == 0) first_seconds_ = now;
  decode_seconds_ = now - first_seconds_;
  GeneratePiece piece;
  piece.text = text;
  if (std::exchange(fresh_, false)) {
    piece.ids = {&token_, 1};
    if (options_.logprobs) {
      logprobs_.push_back(candidate_);
      piece.logprobs = &logprobs_.back();
    }
  }
  const bool go_on = !on_piece_ || on_piece_(piece);
  return go_on && !options_.stop.stop_requested();
}

Generated Reply::finish() {
  text_.finish();
  return partial();
}

Generated Reply::cancelled() {
  text_.cancel();
  return partial();
}

Generated Reply::partial() {
  Generated result;
  result.text = std::move(text_.text);
  result.tokens = std::move(text_.tokens);
  result.reason = text_.reason;
  result.reused_tokens = reused_;
  result.prompt_tokens = reused_ + std::ssize(prompt_);
  result.read_tokens = std::min<std::int64_t>(session_.length() - reused_, std::ssize(prompt_));
  result.logprobs = std::move(logprobs_);
  result.prompt_logprobs = std::move(prompt_logprobs_);
  // Where reading stopped half way, the logits had come one token further.
  if (std::ssize(result.prompt_logprobs) > result.read_tokens) {
    result.prompt_logprobs.resize(static_cast<std::size_t>(result.read_tokens));
  }
  result.prefill_seconds = prefill_seconds_ ? *prefill_seconds_ : seconds();
  result.first_seconds = first_seconds_;
  result.decode_seconds = decode_seconds_;
  return result;
}

}  // namespace lca
