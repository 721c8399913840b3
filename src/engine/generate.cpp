#include <lca/generate.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/error.h"
#include "engine/generate_steps.h"
#include "engine/sampler.h"
#include "engine/session_state.h"

namespace lca {
namespace {

class Watch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// One call of `generate`.
class Reply {
 public:
  Reply(Session& session, const Tokenizer& tokenizer, std::span<const std::int32_t> prompt,
        const GenerateOptions& options, const std::function<bool(const GeneratePiece&)>& on_piece)
      : session_(session),
        tokenizer_(tokenizer),
        prompt_(prompt),
        options_(options),
        on_piece_(on_piece),
        sampler_(options.sampling),
        reused_(session.length()) {
    if (options.max_tokens < 0) {
      fail_input("max_tokens is {}; it must be 0 or more", options.max_tokens);
    }
    if (options.top_logprobs < 0 || options.top_logprobs > session.model().info().vocabulary) {
      fail_input("top_logprobs is {}; it takes 0 to {}", options.top_logprobs,
                 session.model().info().vocabulary);
    }
    if (prompt.empty() && session.logits().empty()) {
      fail_input("there is nothing to continue: the session has not read a prompt to its end");
    }
  }

  Generated run() {
    Generated result;
    try {
      if (!prompt_.empty()) read();
      prefill_seconds_ = watch_.seconds();
      result = reply();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::cancelled) throw;
      result = std::move(partial_);
      result.reason = StopReason::cancelled;
      if (first_seconds_ == 0) prefill_seconds_ = watch_.seconds();
    }
    result.reused_tokens = reused_;
    result.prompt_tokens = reused_ + std::ssize(prompt_);
    result.read_tokens = std::min<std::int64_t>(session_.length() - reused_, std::ssize(prompt_));
    result.logprobs = std::move(logprobs_);
    result.prompt_logprobs = std::move(prompt_logprobs_);
    result.prefill_seconds = prefill_seconds_;
    result.first_seconds = first_seconds_;
    result.decode_seconds = decode_seconds_;
    return result;
  }

 private:
  void read() {
    LogitsSink sink;
    if (options_.prompt_logprobs) {
      // The logits of a position predict the next token.
      if (!session_.logits().empty()) {
        prompt_logprobs_.push_back(
            logprobs_of(session_.logits(), prompt_[0], options_.top_logprobs));
      } else {
        prompt_logprobs_.push_back(std::nullopt);
      }
      sink = [this](std::int64_t first, std::int64_t count, const float* logits) {
        const std::int64_t vocabulary = session_.model().info().vocabulary;
        for (std::int64_t i = 0; i < count; ++i) {
          const auto next = static_cast<std::size_t>(first + i + 1 - reused_);
          if (next >= prompt_.size()) break;
          prompt_logprobs_.push_back(
              logprobs_of({logits + i * vocabulary, static_cast<std::size_t>(vocabulary)},
                          prompt_[next], options_.top_logprobs));
        }
      };
    }
    session_.prefill(prompt_, options_.progress, sink, options_.stop);
  }

  std::int32_t pick() {
    std::span<const float> logits = session_.logits();
    if (options_.adjust) {
      adjusted_.assign(logits.begin(), logits.end());
      options_.adjust(session_.tokens(), adjusted_);
      logits = adjusted_;
    }
    picked_ = sampler_.pick(logits, session_.tokens(), session_.length());
    // An end token is not taken; withheld text that is emitted now belongs to no token.
    fresh_ = std::ranges::find(options_.end_tokens, picked_) == options_.end_tokens.end();
    if (options_.logprobs) {
      candidate_ = logprobs_of(session_.logits(), picked_, options_.top_logprobs);
    }
    return picked_;
  }

  bool emit(std::string_view text) {
    const double now = watch_.seconds();
    if (first_seconds_ == 0) first_seconds_ = now;
    decode_seconds_ = now - first_seconds_;
    GeneratePiece piece;
    piece.text = text;
    partial_.text += text;
    if (std::exchange(fresh_, false)) {
      piece.ids = {&picked_, 1};
      if (options_.logprobs) {
        logprobs_.push_back(candidate_);
        piece.logprobs = &logprobs_.back();
      }
    }
    const bool go_on = !on_piece_ || on_piece_(piece);
    return go_on && !options_.stop.stop_requested();
  }

  Generated reply() {
    std::vector<std::int32_t> begun;
    if (options_.resumed) {
      begun.assign(session_.tokens().begin() + session_.prompt_end(), session_.tokens().end());
    }
    const auto decode = [this](std::int32_t token) {
      // A token that was emitted is taken even if a stop was requested meanwhile.
      session_.decode(token);
      partial_.tokens.push_back(token);
    };
    return generate_steps({.pick = [this] { return pick(); }, .decode = decode, .begun = begun},
                          tokenizer_, options_,
                          [this](std::string_view text) { return emit(text); });
  }

  Session& session_;
  const Tokenizer& tokenizer_;
  std::span<const std::int32_t> prompt_;
  const GenerateOptions& options_;
  const std::function<bool(const GeneratePiece&)>& on_piece_;
  Sampler sampler_;
  std::int64_t reused_;
  Watch watch_;
  double prefill_seconds_ = 0, first_seconds_ = 0, decode_seconds_ = 0;
  Generated partial_;  // the reply so far, for a call that ends with an error
  std::vector<float> adjusted_;
  std::int32_t picked_ = 0;
  bool fresh_ = false;  // the picked token has not been handed out
  TokenLogprobs candidate_;
  std::vector<TokenLogprobs> logprobs_;
  std::vector<std::optional<TokenLogprobs>> prompt_logprobs_;
};

}  // namespace

Generated generate(Session& session, std::span<const std::int32_t> prompt,
                   const GenerateOptions& options,
                   const std::function<bool(const GeneratePiece&)>& on_piece) {
  return guarded([&] {
    return generate_with(session, session.model().tokenizer(), prompt, options, on_piece);
  });
}

Generated generate_with(Session& session, const Tokenizer& tokenizer,
                        std::span<const std::int32_t> prompt, const GenerateOptions& options,
                        const std::function<bool(const GeneratePiece&)>& on_piece) {
  return Reply(session, tokenizer, prompt, options, on_piece).run();
}

TokenLogprobs logprobs_of(std::span<const float> logits, std::int32_t token, std::int64_t top) {
  const auto size = static_cast<std::int64_t>(logits.size());
  if (token < 0 || token >= size) fail_input("token {} is not among {} logits", token, size);
  const float highest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - highest);
  const double shift = static_cast<double>(highest) + std::log(sum);
  const auto logprob = [&](std::int32_t id) {
    return static_cast<float>(static_cast<double>(logits[static_cast<std::size_t>(id)]) - shift);
  };
  TokenLogprobs result;
  result.id = token;
  result.logprob = logprob(token);
  if (top <= 0) return result;
  std::vector<std::int32_t> order(logits.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)];
    const float y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  const auto end = order.begin() + std::min(top, size);
  std::partial_sort(order.begin(), end, order.end(), likelier);
  for (auto id = order.begin(); id != end; ++id) result.top.push_back({*id, logprob(*id)});
  return result;
}

}  // namespace lca
