#include <lca/generate.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "engine/reply.h"

namespace lca {

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
  Reply reply(session, tokenizer, prompt, options, on_piece);
  try {
    if (!prompt.empty()) {
      session.prefill(prompt, options.progress, reply.prompt_sink(), options.stop);
    }
    reply.prompt_read();
    while (reply.wants_token()) {
      const std::int32_t token = reply.choose();
      if (!reply.push(token)) break;
      // A token that was emitted is taken even if a stop was requested meanwhile.
      session.decode(token);
      reply.taken();
    }
    return reply.finish();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::cancelled) throw;
    return reply.cancelled();
  }
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
