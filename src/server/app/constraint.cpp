#include "server/app/constraint.h"

#include "core/error.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>

namespace lca::server {
namespace {

constexpr float kRefused = -std::numeric_limits<float>::infinity();

class Constraint {
 public:
  Constraint(const Grammar& grammar, const TokenMask& mask, const Tokenizer& tokenizer,
             std::vector<std::int32_t> end_tokens, std::size_t begin,
             std::optional<ToolWatch> calls)
      : grammar_(grammar),
        mask_(mask),
        tokenizer_(tokenizer),
        end_tokens_(std::move(end_tokens)),
        calls_(calls),
        begin_(begin) {
    restart();
  }

  void operator()(std::span<const std::int32_t> tokens, std::span<float> logits) {
    if (tokens.size() < taken_) restart();  // a step was undone: what it took is read again
    for (; taken_ < tokens.size(); ++taken_) {
      const std::string_view bytes = tokenizer_.bytes(tokens[taken_]);
      const bool fits =
          state_ ? state_->advance(bytes) : beginning(*watch_, bytes, &state_) != Beginning::wrong;
      if (!fits) fail_internal("token {} of a reply is not of its grammar", tokens[taken_]);
    }
    if (!state_) {
      refuse_wrong_calls(logits);
    } else if (mask_.apply(*state_, logits, end_tokens_) == 0) {
      fail_input("the model's vocabulary cannot spell what the reply's format demands");
    }
  }

 private:
  enum class Beginning : std::uint8_t { none, right, wrong };

  void restart() {
    watch_ = calls_;
    state_.reset();
    if (!watch_) state_ = grammar_.start();
    taken_ = begin_;
  }

  /// What more bytes make of a reply without a call. A call that begins is left in `state`.
  Beginning beginning(ToolWatch& watch, std::string_view bytes,
                      std::optional<GrammarState>* state) const {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (!watch.feed(bytes[i])) continue;
      GrammarState made = grammar_.start();
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
    const auto is_wrong = [&](std::size_t id) {
      ToolWatch watch = *watch_;
      const std::string_view bytes = tokenizer_.bytes(static_cast<std::int32_t>(id));
      return beginning(watch, bytes, nullptr) == Beginning::wrong;
    };
    if (watch_->is_near()) {
      for (std::size_t id = 0; id < count; ++id) {
        if (is_wrong(id)) logits[id] = kRefused;
      }
      return;
    }
    if (!wrong_) {
      wrong_.emplace();
      for (std::size_t id = 0; id < count; ++id) {
        if (is_wrong(id)) wrong_->push_back(id);
      }
    }
    for (const std::size_t id : *wrong_) logits[id] = kRefused;
  }

  Grammar grammar_;
  const TokenMask& mask_;
  Tokenizer tokenizer_;
  std::vector<std::int32_t> end_tokens_;
  std::optional<ToolWatch> calls_;                 // at the reply's beginning
  std::optional<ToolWatch> watch_;                 // now
  std::optional<GrammarState> state_;              // once the grammar holds
  std::optional<std::vector<std::size_t>> wrong_;  // tokens that begin a wrong call, far from one
  std::size_t begin_, taken_ = 0;
};

}  // namespace

decltype(GenerateOptions::adjust) constraint_make(const Grammar& grammar, const TokenMask& mask,
                                                  const Tokenizer& tokenizer,
                                                  std::vector<std::int32_t> end_tokens,
                                                  std::int64_t prompt_tokens,
                                                  std::optional<ToolWatch> calls) {
  auto made = std::make_shared<Constraint>(grammar, mask, tokenizer, std::move(end_tokens),
                                           static_cast<std::size_t>(prompt_tokens), calls);
  return [made](std::span<const std::int32_t> tokens, std::span<float> logits) {
    (*made)(tokens, logits);
  };
}

}  // namespace lca::server
