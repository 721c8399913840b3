#include "server/app/constraint.h"

#include "core/error.h"
#include "server/tools/tool_watch.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

namespace lca::server {
namespace {

constexpr float kRefused = -std::numeric_limits<float>::infinity();

class Constraint {
 public:
  Constraint(const Grammar& grammar, const TokenMask& mask, const Tokenizer& tokenizer,
             std::vector<std::int32_t> end_tokens, std::size_t begin)
      : grammar_(grammar),
        state_(grammar.start()),
        mask_(mask),
        tokenizer_(tokenizer),
        end_tokens_(std::move(end_tokens)),
        begin_(begin),
        taken_(begin) {}

  void operator()(std::span<const std::int32_t> tokens, std::span<float> logits) {
    if (tokens.size() < taken_) {  // a step was undone: what it took is read again
      state_ = grammar_.start();
      taken_ = begin_;
    }
    for (; taken_ < tokens.size(); ++taken_) {
      if (!state_.advance(tokenizer_.bytes(tokens[taken_]))) {
        fail_internal("token {} of a reply is not of its grammar", tokens[taken_]);
      }
    }
    if (mask_.apply(state_, logits, end_tokens_) == 0) {
      fail_input("the model's vocabulary cannot spell what the reply's format demands");
    }
  }

 private:
  Grammar grammar_;
  GrammarState state_;
  const TokenMask& mask_;
  Tokenizer tokenizer_;
  std::vector<std::int32_t> end_tokens_;
  std::size_t begin_, taken_;
};

/// Watches for a call, and is a `Constraint` from there on.
class CallsConstraint {
 public:
  CallsConstraint(ToolFormat format, const Grammar& calls, const TokenMask& mask,
                  const Tokenizer& tokenizer, std::vector<std::int32_t> end_tokens,
                  std::size_t begin)
      : calls_(calls),
        mask_(mask),
        tokenizer_(tokenizer),
        end_tokens_(std::move(end_tokens)),
        first_(format),
        watch_(format),
        begin_(begin),
        taken_(begin) {}

  void operator()(std::span<const std::int32_t> tokens, std::span<float> logits) {
    if (tokens.size() < taken_) {  // a step was undone: what it took is read again
      state_.reset();
      watch_ = first_;
      taken_ = begin_;
    }
    for (; taken_ < tokens.size(); ++taken_) take(tokens[taken_]);
    if (!state_) {
      refuse_wrong_calls(logits);
    } else if (mask_.apply(*state_, logits, end_tokens_) == 0) {
      fail_input("the model's vocabulary cannot spell what the tool's schema demands");
    }
  }

 private:
  enum class Beginning : std::uint8_t { none, right, wrong };

  void take(std::int32_t token) {
    const std::string_view bytes = tokenizer_.bytes(token);
    const bool fits =
        state_ ? state_->advance(bytes) : beginning(watch_, bytes, &state_) != Beginning::wrong;
    if (!fits) fail_internal("token {} of a reply is not of its grammar", token);
  }

  /// What more bytes make of the reply. A call that begins is left in `state`.
  Beginning beginning(ToolWatch& watch, std::string_view bytes,
                      std::optional<GrammarState>* state) const {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (!watch.feed(bytes[i])) continue;
      GrammarState made = calls_.start();
      if (!made.advance(watch.written()) || !made.advance(bytes.substr(i + 1))) {
        return Beginning::wrong;
      }
      if (state != nullptr) *state = std::move(made);
      return Beginning::right;
    }
    return Beginning::none;
  }

  /// Few tokens hold a whole tag; those are looked up once. Where a call is near all are tried.
  void refuse_wrong_calls(std::span<float> logits) {
    const auto count = std::min<std::size_t>(
        logits.size(), static_cast<std::size_t>(std::max<std::int64_t>(0, tokenizer_.size())));
    const auto judge = [&](std::size_t id, ToolWatch watch) {
      return beginning(watch, tokenizer_.bytes(static_cast<std::int32_t>(id)), nullptr);
    };
    if (watch_.is_near()) {
      for (std::size_t id = 0; id < count; ++id) {
        if (judge(id, watch_) == Beginning::wrong) logits[id] = kRefused;
      }
      return;
    }
    if (!wrong_) {
      wrong_.emplace();
      for (std::size_t id = 0; id < count; ++id) {
        if (judge(id, watch_) == Beginning::wrong) wrong_->push_back(id);
      }
    }
    for (const std::size_t id : *wrong_) logits[id] = kRefused;
  }

  Grammar calls_;
  const TokenMask& mask_;
  Tokenizer tokenizer_;
  std::vector<std::int32_t> end_tokens_;
  const ToolWatch first_;
  ToolWatch watch_;
  std::optional<GrammarState> state_;              // of the calls, once there is one
  std::optional<std::vector<std::size_t>> wrong_;  // tokens that begin a wrong call, far from one
  std::size_t begin_, taken_;
};

}  // namespace

decltype(GenerateOptions::adjust) constraint_make(const Grammar& grammar, const TokenMask& mask,
                                                  const Tokenizer& tokenizer,
                                                  std::vector<std::int32_t> end_tokens,
                                                  std::int64_t prompt_tokens) {
  auto made = std::make_shared<Constraint>(grammar, mask, tokenizer, std::move(end_tokens),
                                           static_cast<std::size_t>(prompt_tokens));
  return [made](std::span<const std::int32_t> tokens, std::span<float> logits) {
    (*made)(tokens, logits);
  };
}

decltype(GenerateOptions::adjust) calls_constraint_make(ToolFormat format, const Grammar& calls,
                                                        const TokenMask& mask,
                                                        const Tokenizer& tokenizer,
                                                        std::vector<std::int32_t> end_tokens,
                                                        std::int64_t prompt_tokens) {
  auto made =
      std::make_shared<CallsConstraint>(format, calls, mask, tokenizer, std::move(end_tokens),
                                        static_cast<std::size_t>(prompt_tokens));
  return [made](std::span<const std::int32_t> tokens, std::span<float> logits) {
    (*made)(tokens, logits);
  };
}

}  // namespace lca::server
