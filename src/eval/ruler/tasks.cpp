#include "eval/ruler/tasks.h"

#include <algorithm>
#include <array>

namespace lca::eval {
namespace {

constexpr auto kNoise = RulerHaystack::noise;
constexpr auto kEssay = RulerHaystack::essay;
constexpr auto kNeedleLines = RulerHaystack::needles;

constexpr RulerTask needle_task(std::string_view name, RulerHaystack haystack, RulerValue key,
                                RulerValue value, std::size_t keys = 1, std::size_t values = 1,
                                std::size_t queried = 1) {
  return {
      name, RulerFamily::needles, 128, RulerScore::all, haystack, key, value, keys, values, queried,
      {}};
}

constexpr RulerTask word_task(std::string_view name, RulerFamily family, std::int64_t max_tokens) {
  RulerTask task;
  task.name = name;
  task.family = family;
  task.max_tokens = max_tokens;
  return task;
}

constexpr RulerTask question_task(std::string_view name, RulerQuestions questions) {
  RulerTask task = word_task(name, RulerFamily::questions, 32);
  task.score = RulerScore::part;
  task.questions = questions;
  return task;
}

constexpr auto kWords = RulerValue::words;
constexpr auto kNumbers = RulerValue::numbers;
constexpr auto kUuids = RulerValue::uuids;

constexpr std::array kRulerTasks{
    needle_task("niah_single_1", kNoise, kWords, kNumbers),
    needle_task("niah_single_2", kEssay, kWords, kNumbers),
    needle_task("niah_single_3", kEssay, kWords, kUuids),
    needle_task("niah_multikey_1", kEssay, kWords, kNumbers, 4),
    needle_task("niah_multikey_2", kNeedleLines, kWords, kNumbers),
    needle_task("niah_multikey_3", kNeedleLines, kUuids, kUuids),
    needle_task("niah_multivalue", kEssay, kWords, kNumbers, 1, 4),
    needle_task("niah_multiquery", kEssay, kWords, kNumbers, 4, 1, 4),
    word_task("vt", RulerFamily::variables, 30),
    word_task("cwe", RulerFamily::common_words, 120),
    word_task("fwe", RulerFamily::frequent_words, 50),
    question_task("qa_1", RulerQuestions::squad),
    question_task("qa_2", RulerQuestions::hotpotqa),
};

}  // namespace

std::span<const RulerTask> ruler_tasks() { return kRulerTasks; }

const RulerTask* ruler_task_find(std::string_view name) {
  const auto found = std::ranges::find(kRulerTasks, name, &RulerTask::name);
  return found == kRulerTasks.end() ? nullptr : &*found;
}

std::string ruler_task_names() {
  std::string names;
  for (const RulerTask& task : kRulerTasks) {
    names.append(names.empty() ? "" : ", ").append(task.name);
  }
  return names;
}

}  // namespace lca::eval
