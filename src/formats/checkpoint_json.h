#pragma once
/// What a checkpoint needs of the small JSON files beside its weights.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lca {

/// `eos_token_id` of generation_config.json: one id, a list, or none. Throws Error beginning with
/// `where`.
std::vector<std::int32_t> end_tokens_from_json(std::string_view text, std::string_view where);

/// `chat_template` of tokenizer_config.json: a text, or of several the one called "default"; empty
/// where there is none. Throws Error beginning with `where`.
std::string chat_template_from_json(std::string_view text, std::string_view where);

}  // namespace lca
