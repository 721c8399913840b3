#pragma once
/// RULER's thirteen tasks as data (NVIDIA/RULER scripts/synthetic.yaml and
/// scripts/data/synthetic/constants.py).

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lca::eval {

enum class RulerFamily : std::uint8_t {
  needles,
  variables,
  common_words,
  frequent_words,
  questions
};
enum class RulerHaystack : std::uint8_t { noise, essay, needles };
enum class RulerValue : std::uint8_t { words, numbers, uuids };
enum class RulerQuestions : std::uint8_t { squad, hotpotqa };
/// How a reply is scored: the share of references it contains, or whether it contains any.
enum class RulerScore : std::uint8_t { all, part };

struct RulerTask {
  std::string_view name;
  RulerFamily family = RulerFamily::needles;
  std::int64_t max_tokens = 128;
  RulerScore score = RulerScore::all;
  // Of family `needles`:
  RulerHaystack haystack = RulerHaystack::noise;
  RulerValue key = RulerValue::words;
  RulerValue value = RulerValue::numbers;
  std::size_t keys = 1, values_per_key = 1, queried = 1;
  // Of family `questions`:
  RulerQuestions questions = RulerQuestions::squad;
};

/// In RULER's order.
std::span<const RulerTask> ruler_tasks();
/// The task of that name, or null.
const RulerTask* ruler_task_find(std::string_view name);
/// All names, with commas.
std::string ruler_task_names();

}  // namespace lca::eval
