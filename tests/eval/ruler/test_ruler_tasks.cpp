// What prompts of each task hold, and how long they are.

#include "apps/tiny_model.h"
#include "eval/chat_prompt.h"
#include "eval/ruler/ruler_parts.h"
#include "support/sanitized.h"
#include "support/test_data.h"

#include <lca/chat.h>

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>

namespace lca::test {
namespace {

using eval::RulerCell;
using eval::RulerMakerOptions;
using eval::RulerSample;

RulerMakerOptions task_options(std::int64_t length, std::uint32_t seed = 42) {
  return {length, seed, ruler_sources(), rule_measure()};
}

std::vector<RulerSample> task_samples(const char* name, const RulerMakerOptions& options,
                                      std::size_t count) {
  const RulerCell cell = eval::ruler_cell(*eval::ruler_task_find(name), options);
  if (!cell.maker) {
    ADD_FAILURE() << name << " skipped: " << cell.skipped;
    return {};
  }
  std::vector<RulerSample> samples = samples_make(*cell.maker, count);
  EXPECT_EQ(samples.size(), count) << name;
  return samples;
}

std::size_t occurrences(std::string_view text, std::string_view what) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++count;
  return count;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

TEST(RulerTasks, NeedlesHoldEveryValueOnceAndAskForTheirKeys) {
  struct Case {
    const char* name;
    std::size_t needles, values;
    bool lines;
  };
  for (const Case& each :
       {Case{"niah_single_1", 1, 1, false}, Case{"niah_single_2", 1, 1, false},
        Case{"niah_single_3", 1, 1, false}, Case{"niah_multikey_1", 4, 1, false},
        Case{"niah_multikey_2", 0, 1, true}, Case{"niah_multikey_3", 0, 1, true},
        Case{"niah_multivalue", 4, 4, false}, Case{"niah_multiquery", 4, 4, false}}) {
    SCOPED_TRACE(each.name);
    for (const RulerSample& sample : task_samples(each.name, task_options(4096), 3)) {
      ASSERT_EQ(sample.outputs.size(), each.values);
      std::set<std::string> keys;
      for (const std::string& value : sample.outputs) {
        EXPECT_EQ(occurrences(sample.input, "is: " + value + "."), 1u);
        std::smatch match;
        const std::regex needle("One of the special magic \\S+ for ([^ ]+( [^ ]+)?) is: " + value);
        ASSERT_TRUE(std::regex_search(sample.input, match, needle));
        keys.insert(match[1]);
      }
      for (const std::string& key : keys) {
        EXPECT_NE(sample.prefix.find(key), std::string::npos);
        EXPECT_EQ(occurrences(sample.input.substr(sample.input.rfind('\n')), key), 1u);
      }
      const std::size_t needles = occurrences(sample.input, "One of the special magic");
      if (each.lines) {
        EXPECT_GT(needles, 50u);
      } else {
        EXPECT_EQ(needles, each.needles);
      }
      const bool one = each.values == 1;
      EXPECT_EQ(sample.input.starts_with("A special magic "), one);
      EXPECT_EQ(sample.prefix.ends_with(" is"), one);
      EXPECT_EQ(sample.prefix.ends_with(" are"), !one);
    }
  }
}

TEST(RulerTasks, ValuesHaveTheirForm) {
  const std::regex number("[1-9][0-9]{6}");
  const std::regex uuid("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}");
  for (const RulerSample& sample : task_samples("niah_multivalue", task_options(4096), 5)) {
    for (const std::string& value : sample.outputs) EXPECT_TRUE(std::regex_match(value, number));
  }
  for (const RulerSample& sample : task_samples("niah_multikey_3", task_options(4096), 5)) {
    EXPECT_TRUE(std::regex_match(sample.outputs[0], uuid));
    EXPECT_TRUE(std::regex_search(sample.prefix, uuid));
  }
}

TEST(RulerTasks, VariablesFormAChainInOrderAfterAWorkedExample) {
  for (const RulerSample& sample : task_samples("vt", task_options(4096), 5)) {
    ASSERT_EQ(sample.outputs.size(), 5u);
    const std::size_t task = sample.input.rfind("Memorize and track");
    ASSERT_GT(task, 500u);
    EXPECT_EQ(sample.input.rfind("Memorize and track", task - 1), 0u) << "the worked example";
    const std::string text = sample.input.substr(task);
    std::size_t at = 0;
    for (std::size_t i = 0; i < 5; ++i) {
      ASSERT_EQ(sample.outputs[i].size(), 5u);
      const std::string line = i == 0
                                   ? "VAR " + sample.outputs[0] + " = "
                                   : "VAR " + sample.outputs[i] + " = VAR " + sample.outputs[i - 1];
      const std::size_t found = text.find(line);
      ASSERT_NE(found, std::string::npos) << line;
      EXPECT_GE(found, at);
      at = found;
    }
    const std::string value = text.substr(text.find("VAR " + sample.outputs[0] + " = ") + 12, 5);
    EXPECT_NE(sample.prefix.find("5 variables are assigned the value " + value), std::string::npos);
    EXPECT_TRUE(sample.prefix.ends_with("they are: "));
  }
}

TEST(RulerTasks, CommonWordsComeThirtyTimesAndTheOthersThree) {
  for (const std::int64_t length : {4096, 2048}) {
    for (const RulerSample& sample : task_samples("cwe", task_options(length), 2)) {
      ASSERT_EQ(sample.outputs.size(), 10u);
      const std::string list = sample.input.substr(sample.input.rfind("Below is"));
      const std::vector<std::string> words =
          words_of(list.substr(list.find('\n') + 1, list.rfind('\n') - list.find('\n')));
      std::map<std::string, int> counts;
      for (std::size_t i = 0; i < words.size(); i += 2) {
        EXPECT_EQ(words[i], std::to_string(i / 2 + 1) + ".");
        ++counts[words[i + 1]];
      }
      for (const auto& [word, count] : counts) {
        const bool common = std::ranges::find(sample.outputs, word) != sample.outputs.end();
        EXPECT_EQ(count, length < 4096 ? (common ? 6 : 1) : (common ? 30 : 3)) << word;
      }
      EXPECT_EQ(occurrences(sample.input, "Answer: The top 10 words"), 1u) << "of the example";
    }
  }
}

TEST(RulerTasks, FrequentWordsFollowTheZetaDistribution) {
  for (const RulerSample& sample : task_samples("fwe", task_options(4096), 3)) {
    const std::size_t begin = sample.input.find("coded words. ") + 13;
    std::map<std::string, int> counts;
    int all = 0;
    for (const std::string& word :
         words_of(sample.input.substr(begin, sample.input.rfind('\n') - begin))) {
      ++counts[word];
      ++all;
    }
    ASSERT_EQ(sample.outputs.size(), 3u);
    const double first = counts["..."];
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(sample.outputs[i].size(), 6u);
      const double rank = static_cast<double>(i) + 2;
      EXPECT_NEAR(counts[sample.outputs[i]], first / (rank * rank), 1.0);
    }
    counts.erase("...");
    for (const std::string& output : sample.outputs) counts.erase(output);
    for (const auto& [word, count] : counts) EXPECT_LE(count, first / 25 + 1) << word;
    EXPECT_GT(all, 1000);
  }
}

TEST(RulerTasks, QuestionsStandBeforeAndAfterDocumentsThatHoldTheAnswer) {
  const RulerMakerOptions options = task_options(2048);
  for (const auto& [name, set] :
       {std::pair{"qa_1", options.sources.squad}, std::pair{"qa_2", options.sources.hotpotqa}}) {
    const std::vector<RulerSample> samples = task_samples(name, options, 5);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const eval::QaItem& item = set->questions[i];
      EXPECT_TRUE(samples[i].input.ends_with("Question: " + item.text));
      EXPECT_EQ(occurrences(samples[i].input, "Answer the question based on"), 2u);
      EXPECT_EQ(samples[i].outputs, item.answers);
      for (const std::size_t document : item.documents) {
        EXPECT_EQ(occurrences(samples[i].input, ":\n" + set->documents[document]), 1u);
      }
      EXPECT_NE(samples[i].input.find("Document 11:"), std::string::npos);
    }
  }
}

/// Tokenizers of real models, as `lca eval` measures with them.
class RulerLengths : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::filesystem::path path = tiny_.write().path();
    if (std::string(GetParam()) == "smollm2") {
      if (!smollm2_path()) GTEST_SKIP() << kNoTestData;
      if (kSanitized) GTEST_SKIP() << "slow under a sanitizer; the tiny tokenizer runs";
      path = *smollm2_path();
    }
    const Tokenizer tokenizer = Tokenizer::open(path);
    chat_.emplace(tokenizer, ChatTemplate(tokenizer, ChatFormat::chatml));
  }

  TinyModel tiny_;
  std::optional<eval::ChatPrompt> chat_;
};

TEST_P(RulerLengths, NoPromptIsLongerThanTheRuleAllowsNorMuchShorter) {
  RulerMakerOptions options = task_options(2048);
  options.measure.prompt = [&](RulerSample& sample) {
    return std::ssize(chat_->encode(sample.input, sample.prefix));
  };
  options.measure.text = [&](const std::string& text) {
    return std::ssize(chat_->tokenizer().encode(text));
  };
  for (const std::int64_t length : {2048, 6000}) {
    options.length = length;
    for (const eval::RulerTask& task : eval::ruler_tasks()) {
      SCOPED_TRACE(std::string(task.name) + " at " + std::to_string(length));
      const RulerCell cell = eval::ruler_cell(task, options);
      if (!cell.maker) {  // with few tokens in the vocabulary, documents and an example are too
                          // long
        EXPECT_STREQ(GetParam(), "tiny") << cell.skipped;
        EXPECT_TRUE(task.family == eval::RulerFamily::questions ||
                    task.family == eval::RulerFamily::variables)
            << cell.skipped;
        continue;
      }
      std::int64_t longest = 0;
      for (const RulerSample& sample : samples_make(*cell.maker, 4)) {
        EXPECT_EQ(sample.tokens, std::ssize(chat_->encode(sample.input, sample.prefix)));
        EXPECT_LE(sample.tokens + task.max_tokens, length);
        longest = std::max(longest, sample.tokens + task.max_tokens);
      }
      EXPECT_GT(longest, length / 2);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, RulerLengths, ::testing::Values("tiny", "smollm2"));

TEST(RulerTasks, TheSameSeedGivesTheSamePromptsAndAnotherOthers) {
  for (const eval::RulerTask& task : eval::ruler_tasks()) {
    const std::string name(task.name);
    const auto once = task_samples(name.c_str(), task_options(4096), 3);
    const auto again = task_samples(name.c_str(), task_options(4096), 3);
    const auto other = task_samples(name.c_str(), task_options(4096, 43), 3);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(once[i].input, again[i].input) << name;
      EXPECT_NE(once[i].input, other[i].input) << name;
    }
  }
}

TEST(RulerTasks, ACopyGoesOnWithTheSameSamples) {
  for (const eval::RulerTask& task : eval::ruler_tasks()) {
    const RulerCell cell = eval::ruler_cell(task, task_options(4096));
    ASSERT_NE(cell.maker, nullptr);
    cell.maker->next();
    const auto copy = cell.maker->copy();
    EXPECT_EQ(cell.maker->next()->input, copy->next()->input) << task.name;
  }
}

TEST(RulerTasks, WhatCannotBeMadeIsSkippedWithItsReason) {
  RulerMakerOptions options = task_options(4096);
  options.sources.essay = nullptr;
  options.sources.squad = options.sources.hotpotqa = nullptr;
  const auto why = [&](const char* name) {
    return eval::ruler_cell(*eval::ruler_task_find(name), options).skipped;
  };
  EXPECT_EQ(why("niah_single_2"), "no essays were given");
  EXPECT_EQ(why("qa_1"), "no file of SQuAD was given");
  EXPECT_EQ(why("qa_2"), "no file of HotpotQA was given");
  EXPECT_EQ(why("niah_single_1"), "");
  options.length = 150;
  for (const char* name : {"niah_single_1", "niah_multikey_3", "vt", "cwe", "fwe"}) {
    EXPECT_EQ(why(name), "no prompt fits into 150 tokens") << name;
  }
}

TEST(RulerTasks, AListThatNeedsMoreWordsThanThereAreIsSkipped) {
  RulerMakerOptions options = task_options(65536);
  eval::WordLists words = eval::words_built_in();
  options.sources.words = std::make_shared<eval::WordLists>(words);
  const RulerCell cell = eval::ruler_cell(*eval::ruler_task_find("cwe"), options);
  EXPECT_EQ(cell.maker, nullptr);
  EXPECT_NE(cell.skipped.find("words"), std::string::npos);
  options.length = 16384;
  EXPECT_NE(eval::ruler_cell(*eval::ruler_task_find("cwe"), options).maker, nullptr);
}

TEST(RulerTasks, SamplesEndWithTheQuestions) {
  const RulerMakerOptions options = task_options(4096);
  const RulerCell cell = eval::ruler_cell(*eval::ruler_task_find("qa_2"), options);
  EXPECT_EQ(samples_make(*cell.maker, 1000).size(), options.sources.hotpotqa->questions.size());
}

}  // namespace
}  // namespace lca::test
