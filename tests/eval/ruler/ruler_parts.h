#pragma once
/// What the tests of RULER's tasks share: texts, and a rule that counts tokens.

#include "eval/ruler/maker.h"
#include "eval/ruler/prompts_file.h"

#include <nlohmann/json.hpp>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lca::test {

/// The rule of tests/golden/make_ruler.py: a run of letters, or any other visible character.
inline std::int64_t rule_tokens(std::string_view text) {
  std::int64_t count = 0;
  bool inside = false;
  for (const char c : text) {
    const bool letter = std::isalpha(static_cast<unsigned char>(c)) != 0;
    if (letter ? !inside : std::isspace(static_cast<unsigned char>(c)) == 0) ++count;
    inside = letter;
  }
  return count;
}

inline eval::RulerMeasure rule_measure() {
  return {[](eval::RulerSample& sample) { return rule_tokens(sample.input + sample.prefix); },
          [](const std::string& text) { return rule_tokens(text); }};
}

inline std::filesystem::path ruler_golden(std::string_view name) {
  return std::filesystem::path(LCA_SOURCE_DIR) / "tests" / "golden" / "ruler" / name;
}

/// Built-in words, and the small texts of tests/golden/ruler.
inline eval::RulerSources ruler_sources() {
  eval::WordLists words = eval::words_built_in();
  for (std::size_t i = 0; i < 4; ++i) {
    for (const std::string& noun : words.nouns) words.many.push_back(noun + words.adjectives[i]);
  }
  eval::RulerSources sources;
  sources.words = std::make_shared<eval::WordLists>(std::move(words));
  sources.keys = std::make_shared<eval::KeyWords>(*sources.words);
  const std::vector<std::filesystem::path> essays{ruler_golden("PaulGrahamEssays.json")};
  sources.essay = std::make_shared<eval::Essay>(eval::Essay::load(essays));
  sources.squad = std::make_shared<eval::QuestionSet>(eval::squad_load(ruler_golden("squad.json")));
  sources.hotpotqa =
      std::make_shared<eval::QuestionSet>(eval::hotpotqa_load(ruler_golden("hotpotqa.json")));
  return sources;
}

inline std::vector<eval::RulerSample> samples_make(eval::RulerMaker& maker, std::size_t count) {
  std::vector<eval::RulerSample> samples;
  while (samples.size() < count) {
    auto sample = maker.next();
    if (!sample) break;
    samples.push_back(std::move(*sample));
  }
  return samples;
}

}  // namespace lca::test
