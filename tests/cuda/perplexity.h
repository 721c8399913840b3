#pragma once
/// How well a model reads a text.

#include <lca/session.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "support/random.h"

namespace lca::test {

/// What representatives of 8 bits may change in the perplexity.
constexpr double kQuantisedChange = 5e-3;

/// −log p of a token after a row of logits.
inline double surprise(const float* row, std::int64_t vocabulary, std::int32_t token) {
  const float highest = *std::max_element(row, row + vocabulary);
  double sum = 0;
  for (std::int64_t c = 0; c < vocabulary; ++c) sum += std::exp(row[c] - highest);
  return highest + std::log(sum) - row[token];
}

/// Mean negative log-likelihood: a prompt in chunks, then tokens one by one.
inline double tokens_nll(const std::shared_ptr<const Model>& model,
                         std::span<const std::int32_t> tokens, const Settings& settings,
                         std::size_t prompt, std::int64_t chunk) {
  Context context;
  Session session(model, context, {.settings = {settings}, .chunk = chunk});
  const std::int64_t vocabulary = model->info().vocabulary;
  double total = 0;
  session.prefill(tokens.first(prompt), {},
                  [&](std::int64_t first, std::int64_t count, const float* rows) {
                    for (std::int64_t i = 0; i < count; ++i) {
                      total += surprise(rows + i * vocabulary, vocabulary,
                                        tokens[static_cast<std::size_t>(first + i + 1)]);
                    }
                  });
  for (std::size_t at = prompt; at + 1 < tokens.size(); ++at) {
    session.decode(tokens[at]);
    total += surprise(session.logits().data(), vocabulary, tokens[at + 1]);
  }
  return total / static_cast<double>(tokens.size() - 1);
}

/// By how much the perplexity of a text changes from one model to another: three quarters of it in
/// chunks, the rest token by token.
inline double nll_change(const std::shared_ptr<const Model>& from,
                         const std::shared_ptr<const Model>& to,
                         std::span<const std::int32_t> tokens, const Settings& settings) {
  const std::size_t prompt = tokens.size() * 3 / 4;
  constexpr std::int64_t kChunk = 256;
  return std::exp(tokens_nll(to, tokens, settings, prompt, kChunk) -
                  tokens_nll(from, tokens, settings, prompt, kChunk)) -
         1;
}

/// A text that the model itself writes, each token drawn by its probability.
inline std::vector<std::int32_t> text_drawn(const std::shared_ptr<const Model>& model,
                                            const Settings& settings, std::size_t length,
                                            Random& random) {
  Context context;
  Session session(model, context, {.settings = {settings}});
  std::vector<std::int32_t> tokens = {1};
  session.prefill(tokens);
  while (tokens.size() < length) {
    const std::span<const float> logits = session.logits();
    const float highest = std::ranges::max(logits);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit - highest);
    double at = random.unit() * sum;
    std::int32_t token = 0;
    while (static_cast<std::size_t>(token) + 1 < logits.size() &&
           (at -= std::exp(logits[static_cast<std::size_t>(token)] - highest)) > 0) {
      ++token;
    }
    tokens.push_back(token);
    session.decode(token);
  }
  return tokens;
}

}  // namespace lca::test
