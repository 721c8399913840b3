// Files that users name, good and hostile; scores; words and essays.

#include "eval/ruler/prompts.h"
#include "eval/ruler/python_random.h"
#include "eval/ruler/ruler_parts.h"
#include "eval/ruler/score.h"
#include "formats/byte_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

namespace lca::test {
namespace {

using eval::ruler_score;
using eval::RulerScore;

double score_of(std::string_view reply, const std::vector<std::string>& references,
                RulerScore score = RulerScore::all) {
  return ruler_score(reply, references, score);
}

TEST(RulerScoring, CountsReferencesThatTheReplyContains) {
  EXPECT_EQ(score_of("It is 1234567.", {"1234567"}), 1);
  EXPECT_EQ(score_of("It is 123456.", {"1234567"}), 0);
  EXPECT_EQ(score_of("1, 2 and 4", {"1", "2", "3", "4"}), 0.75);
  EXPECT_EQ(score_of("", {"a", "b"}), 0);
  EXPECT_EQ(score_of("apple APPLE", {"Apple", "apple"}), 1);
}

TEST(RulerScoring, QuestionsTakeAnyReference) {
  EXPECT_EQ(score_of("in France", {"Paris", "france"}, RulerScore::part), 1);
  EXPECT_EQ(score_of("in Spain", {"Paris", "France"}, RulerScore::part), 0);
}

TEST(RulerScoring, LettersOfAnyScriptAreComparedWithoutCase) {
  EXPECT_EQ(score_of("ÀÉÎ ΑΘΗΝΑ", {"àéî", "αθηνα"}), 1);
  EXPECT_EQ(score_of("broken \xff bytes apple", {"apple"}), 1);
}

TEST(RulerScoring, AControlCharacterIsTheEndOfALine) {
  EXPECT_EQ(score_of("one\ttwo", {"one two"}), 0);
  EXPECT_EQ(score_of("one\ttwo", {"one\ntwo"}), 1);
  EXPECT_EQ(score_of("\x01 yes \x02", {"yes"}), 1);
}

TEST(RulerRandom, NumbersAreThoseOfPython) {
  eval::PythonRandom random(42);
  EXPECT_DOUBLE_EQ(random.uniform(), 0.6394267984578837);
  EXPECT_EQ(random.below(1000), 25u);
  EXPECT_EQ(random.sample(10, 3), (std::vector<std::size_t>{4, 3, 8}));
  EXPECT_EQ(random.uuid4(), "ad3c2d6d-1a3d-4fa7-bc89-60a923b8c1e9");
}

TEST(RulerWords, KeysAreInTheOrderOfPythonsSortedSet) {
  eval::WordLists lists;
  lists.nouns = {"tree", "known-face", "cat", "known", "face", "cat"};
  lists.adjectives = {"well", "well-known", "big", "bigger", "Éa", "well"};
  std::vector<std::string> wanted;
  for (const std::string& adjective : lists.adjectives) {
    for (const std::string& noun : lists.nouns) wanted.push_back(adjective + "-" + noun);
  }
  std::ranges::sort(wanted);
  wanted.erase(std::ranges::unique(wanted).begin(), wanted.end());
  const eval::KeyWords keys(lists);
  ASSERT_EQ(keys.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(keys.at(i), wanted[i]);
}

TEST(RulerWords, NoneOfTheBuiltInOnesIsAWordOfTraining) {
  const std::string source =
      read_file(std::filesystem::path(LCA_SOURCE_DIR) / "python" / "lca" / "data" / "words.py");
  const std::size_t begin = source.find("WORDS = \"\"\""),
                    end = source.find("\"\"\".split()", begin);
  ASSERT_NE(end, std::string::npos);
  std::istringstream words(source.substr(begin + 12, end - begin - 12));
  std::set<std::string> training;
  for (std::string word; words >> word;) training.insert(word);
  ASSERT_GT(training.size(), 300u);
  const eval::WordLists lists = eval::words_built_in();
  for (const auto* list : {&lists.nouns, &lists.adjectives, &lists.verbs}) {
    EXPECT_GT(list->size(), 300u);
    for (const std::string& word : *list) EXPECT_FALSE(training.contains(word)) << word;
  }
}

TEST(RulerWords, ListsComeFromAFolder) {
  const ScratchFolder folder;
  expect_error([&] { eval::words_load(folder.path()); }, {"nounlist.txt"}, ErrorKind::not_found);
  write_file(folder / "nounlist.txt", "cat\r\n\ntree  \ndog");
  write_file(folder / "adjectivelist.txt", "   \n\n");
  write_file(folder / "verblist.txt", "go\n");
  expect_error([&] { eval::words_load(folder.path()); }, {"adjectivelist.txt", "no words"});
  write_file(folder / "adjectivelist.txt", "big\n");
  const eval::WordLists lists = eval::words_load(folder.path());
  EXPECT_EQ(lists.nouns, (std::vector<std::string>{"cat", "tree", "dog"}));
  EXPECT_TRUE(lists.many.empty());
  write_file(folder / "english_words.json", R"({"0": "b", "1": "a"})");
  EXPECT_EQ(eval::words_load(folder.path()).many, (std::vector<std::string>{"b", "a"}));
  for (const char* wrong : {"[1]", R"({"0": 1})", "{", "3"}) {
    write_file(folder / "english_words.json", wrong);
    expect_error([&] { eval::words_load(folder.path()); }, {"english_words.json"});
  }
}

TEST(RulerEssay, SentencesEndWhereTheyDo) {
  const eval::Essay essay(
      "Mr. Smith\tsaid:\n\n\"Go home!\" He (see p. 5) went. No? yes. It\u00a0is "
      "J. S. Bach, e.g. now. \"Quote.\" End");
  const std::vector<std::string> wanted = {
      "Mr. Smith said: \"Go home!\"", "He (see p. 5) went.", "No? yes.",
      "It is J. S. Bach, e.g. now.",  "\"Quote.\"",          "End"};
  EXPECT_EQ(essay.sentences(essay.words()), wanted);
}

TEST(RulerEssay, WordsRepeatWhereMoreAreAskedFor) {
  const eval::Essay essay("One two. Three.");
  EXPECT_EQ(essay.sentences(5), (std::vector<std::string>{"One two.", "Three.", "One two."}));
}

TEST(RulerFiles, HostileEssaysAndQuestionsAreOneLineErrors) {
  const ScratchFolder folder;
  const auto path = folder / "file.json";
  const std::vector<std::filesystem::path> paths{path};
  expect_error([&] { eval::squad_load(path); }, {"file.json"}, ErrorKind::not_found);
  for (const std::string& text : std::vector<std::string>{
           "",
           "{",
           "[]",
           "[1, 2]",
           "null",
           "\"text\"",
           "{\"data\": 3}",
           "{\"data\": [3]}",
           "{\"data\": []}",
           "{\"data\": [{\"paragraphs\": [{\"context\": 4}]}]}",
           "{\"data\": [{\"paragraphs\": [{\"context\": \"c\", \"qas\": [{}]}]}]}",
           "{\"data\": [{\"paragraphs\": [{\"context\": \"c\", \"qas\": [{\"question\": "
           "\"q\"}]}]}]}",
           "[{\"context\": [[\"t\"]], \"question\": \"q\", \"answer\": \"a\"}]",
           "[{\"context\": [[\"t\", [1]]], \"question\": \"q\", \"answer\": \"a\"}]",
           "[{\"context\": [], \"question\": 1, \"answer\": \"a\"}]",
           "{\"text\": 5}",
           "{\"text\": \" \\n \"}",
           "1e999",
           "\x80\xff",
           std::string(100000, '[')}) {
    write_file(path, text);
    expect_error([&] { eval::squad_load(path); }, {"file.json"});
    expect_error([&] { eval::hotpotqa_load(path); }, {"file.json"});
    expect_error([&] { eval::Essay::load(paths); }, {"file.json"});
  }
  write_file(path, "{\"text\": \"Some words.\"}");
  EXPECT_EQ(eval::Essay::load(paths).words(), 2u);
}

TEST(RulerFiles, QuestionsWithoutAnAnswerAreLeftOut) {
  const ScratchFolder folder;
  write_file(folder / "squad.json", R"({"data": [{"paragraphs": [
    {"context": "b", "qas": [{"question": "q1", "is_impossible": true, "answers": []},
                             {"question": "q2", "is_impossible": false, "answers": [{"text": "x"}]}]},
    {"context": "a", "qas": [{"question": "q3", "answers": [{"text": "y"}, {"text": "z"}]}]}]}]})");
  const eval::QuestionSet set = eval::squad_load(folder / "squad.json");
  EXPECT_EQ(set.documents, (std::vector<std::string>{"a", "b"}));
  ASSERT_EQ(set.questions.size(), 2u);
  EXPECT_EQ(set.questions[0].documents, std::vector<std::size_t>{1});
  EXPECT_EQ(set.questions[0].related, std::vector<std::size_t>{0});
  EXPECT_EQ(set.questions[1].answers, (std::vector<std::string>{"y", "z"}));
}

TEST(RulerFiles, PromptsComeBackFromAFileAsTheyWere) {
  const ScratchFolder folder;
  eval::RulerPlan plan;
  for (const eval::RulerTask& task : eval::ruler_tasks()) plan.tasks.push_back(&task);
  plan.lengths = {4096, 2048};
  plan.samples = 3;
  plan.options = {0, 42, ruler_sources(), rule_measure()};
  eval::RulerPrompts prompts(plan);
  std::string file;
  std::size_t skipped = 0;
  for (const eval::RulerPart& part : prompts.parts()) {
    if (part.samples == 0) ++skipped;
  }
  EXPECT_EQ(prompts.count(), (26 - skipped) * 3);
  EXPECT_EQ(prompts.part_of(0).length, 2048);
  for (std::size_t i = 0; i < prompts.count(); ++i) {
    file += eval::ruler_prompt_json(prompts.at(i)).dump() + "\n";
  }
  write_file(folder / "prompts.jsonl", file);
  eval::RulerPrompts read(eval::ruler_prompts_read(folder / "prompts.jsonl"), 100);
  ASSERT_EQ(read.count(), prompts.count());
  for (std::size_t i = prompts.count(); i-- > 0;) {  // in any order
    const eval::RulerPrompt one = prompts.at(i), other = read.at(i);
    EXPECT_EQ(one.sample.input, other.sample.input);
    EXPECT_EQ(one.sample.prefix, other.sample.prefix);
    EXPECT_EQ(one.sample.outputs, other.sample.outputs);
    EXPECT_EQ(std::tie(one.task, one.length, one.index, one.max_tokens, one.score),
              std::tie(other.task, other.length, other.index, other.max_tokens, other.score));
  }
  eval::RulerPrompts fewer(eval::ruler_prompts_read(folder / "prompts.jsonl"), 2);
  EXPECT_EQ(fewer.count(), prompts.count() / 3 * 2);
}

TEST(RulerFiles, HostilePromptsAreErrorsThatNameTheLine) {
  const ScratchFolder folder;
  const auto path = folder / "prompts.jsonl";
  const std::string good =
      R"({"task": "vt", "length": 100, "input": "a", "answer_prefix": "b", "outputs": ["c"]})";
  for (const char* wrong :
       {"{", "[]", "{}", R"({"task": "vt", "length": 0, "input": "a", "outputs": ["c"]})",
        R"({"task": "vt", "length": 1e9, "input": "a", "outputs": ["c"]})",
        R"({"task": "vt", "length": 100, "outputs": ["c"]})",
        R"({"task": "vt", "length": 100, "input": "a", "outputs": []})",
        R"({"task": "vt", "length": 100, "input": "a", "outputs": [1]})",
        R"({"task": "vt", "length": 100, "input": "a", "outputs": [""]})",
        R"({"task": "vt", "length": 100, "input": "a", "outputs": ["c"], "score": "most"})",
        R"({"task": "mine", "length": 100, "input": "a", "outputs": ["c"]})",
        R"({"task": "vt", "length": 100, "input": "a", "outputs": ["c"], "index": 0})",
        R"({"task": "vt", "length": 100, "input": "a", "outputs": ["c"], "index": -1})"}) {
    write_file(path, good + "\n" + wrong + "\n");
    expect_error([&] { eval::ruler_prompts_read(path); }, {"prompts.jsonl", "line 2"});
  }
  write_file(path, "\n \n");
  expect_error([&] { eval::ruler_prompts_read(path); }, {"no prompts"});
  write_file(path, good + "\n\n" + good);
  const auto prompts = eval::ruler_prompts_read(path);
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_EQ(prompts[1].index, 1u);
  EXPECT_EQ(prompts[1].max_tokens, 30);
}

}  // namespace
}  // namespace lca::test
