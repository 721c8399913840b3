#include "server/app/constraint.h"

#include "core/error.h"

#include <memory>
#include <utility>

namespace lca::server {
namespace {

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

}  // namespace lca::server
