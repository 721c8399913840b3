#pragma once
/// A grammar as a hook of the sampler.

#include "server/grammar/grammar.h"
#include "server/grammar/token_mask.h"
#include "server/tools/tool_watch.h"

#include <lca/generate.h>
#include <lca/tokenizer.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace lca::server {

/// For GenerateOptions::adjust: tokens that the grammar does not allow get −infinity; `end_tokens`
/// do until the text is whole. The reply begins after `prompt_tokens` tokens of the session. With
/// `calls` it may be anything until a call begins, and is of the grammar from there to its end. The
/// mask must outlive it. It throws Error where the vocabulary cannot spell what must follow.
decltype(GenerateOptions::adjust) constraint_make(const Grammar& grammar, const TokenMask& mask,
                                                  const Tokenizer& tokenizer,
                                                  std::vector<std::int32_t> end_tokens,
                                                  std::int64_t prompt_tokens,
                                                  std::optional<ToolWatch> calls = {});

}  // namespace lca::server
