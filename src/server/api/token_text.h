#pragma once
/// Tokens and their log-probabilities in replies.

#include "server/types.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lca::server {

bool utf8_valid(std::string_view bytes);
/// Characters that begin in `bytes`.
std::int64_t utf8_starts(std::string_view bytes);

/// A log-probability as JSON can say it: −infinity becomes −9999, as OpenAI writes it.
double logprob_number(float logprob);
/// Chat and responses: [{"token","logprob","bytes","top_logprobs"}].
Json token_logprobs(std::span<const TokenDetail> tokens);
/// Completions: {"tokens","token_logprobs","top_logprobs","text_offset"}; `offset` is where the
/// first begins, and moves on.
Json legacy_logprobs(std::span<const TokenDetail> tokens, std::int64_t& offset);

}  // namespace lca::server
