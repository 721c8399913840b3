#pragma once
/// Prompts of a run in a file of JSON lines, to be read again or by others.

#include "eval/ruler/maker.h"
#include "eval/ruler/tasks.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lca::eval {

/// FNV-1a of 64 bits in hexadecimal digits: whether two texts are the same.
std::string text_hash(std::string_view text);

/// One prompt with what is needed to score the reply.
struct RulerPrompt {
  std::string task;
  std::int64_t length = 0;  ///< it was made for
  std::size_t index = 0;    ///< of the sample among those of its task and length
  std::int64_t max_tokens = 0;
  RulerScore score = RulerScore::all;
  RulerSample sample;
};

/// A line: {"task", "length", "index", "input", "answer_prefix", "outputs", "max_new_tokens",
/// "score", "tokens"}.
nlohmann::ordered_json ruler_prompt_json(const RulerPrompt& prompt);

/// Reads such lines. `max_new_tokens` and `score` may be missing for RULER's tasks, `index` counts
/// lines of the same task and length where it is. Throws Error naming the line that is wrong.
std::vector<RulerPrompt> ruler_prompts_read(const std::filesystem::path& path);

}  // namespace lca::eval
