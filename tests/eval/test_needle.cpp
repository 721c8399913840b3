// Needles: the words they are made of, where they lie in the text, and the prompts around them.

#include "apps/tiny_model.h"
#include "attention/layout.h"
#include "engine/byte_tokenizer.h"
#include "eval/key_words.h"
#include "eval/needle.h"
#include "formats/byte_files.h"
#include "support/small_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

namespace lca::test {
namespace {

using eval::ChatPrompt;
using eval::Draw;
using eval::Haystack;
using eval::HaystackFact;
using eval::HaystackPiece;
using eval::NeedleCase;
using eval::NeedleOptions;
using eval::NeedlePrompt;
using eval::NeedleTask;
using eval::Place;
using eval::Question;

/// A text whose sentences all differ, some with quotes, over several lines.
std::string story(int sentences, const std::string& who) {
  std::string text;
  for (int i = 0; i < sentences; ++i) {
    text += "In year " + std::to_string(i) + " " + who + " went out";
    text += i % 3 == 0 ? " and said \"so it is.\"" : i % 3 == 1 ? ", but why?" : ".";
    text += i % 5 == 4 ? "\n\n" : " ";
  }
  return text;
}

/// A tokenizer with merges and ChatML.
const Tokenizer& words_tokenizer() {
  static TinyModel tiny;
  static const Tokenizer tokenizer = Tokenizer::open(tiny.write().path());
  return tokenizer;
}

const Tokenizer& bytes_tokenizer() {
  static const Tokenizer tokenizer =
      byte_tokenizer({"<|im_start|>", "<|im_end|>"}, "<|im_start|>", "<|im_end|>");
  return tokenizer;
}

ChatPrompt prompt_of(const Tokenizer& tokenizer) {
  return {tokenizer, ChatTemplate(tokenizer, ChatFormat::chatml)};
}

TEST(KeyWords, AreNotThoseOfTheTrainingData) {
  const std::string source = read_file(std::string(LCA_SOURCE_DIR) + "/python/lca/data/words.py");
  ASSERT_FALSE(source.empty());
  const auto block = [&](const std::string& name, const std::string& end) {
    const std::size_t from = source.find("\n" + name + " = ");
    EXPECT_NE(from, std::string::npos) << name;
    return source.substr(from, source.find(end, from) - from);
  };
  std::set<std::string> training;
  for (std::string text : {block("WORDS", ".split()"), block("COMMON_FIRST", ".split()"),
                           block("COMMON_SECOND", ".split()"), block("ITEMS", ".split()")}) {
    std::ranges::replace_if(
        text, [](char c) { return c == '"' || c == '\\' || c == '='; }, ' ');
    std::istringstream words(text);
    for (std::string word; words >> word;) training.insert(word);
  }
  EXPECT_GT(training.size(), 300u);
  std::set<std::string_view> seen;
  for (const auto& list : {eval::key_adjectives(), eval::key_nouns()}) {
    for (const std::string_view word : list) {
      EXPECT_TRUE(seen.insert(word).second) << word << " is there twice";
      EXPECT_FALSE(training.contains(std::string(word))) << word;
    }
  }
}

TEST(Haystack, WhiteSpaceBecomesSingleSpaces) {
  EXPECT_EQ(eval::text_squeezed(" a\n\n b\t\r\nc  "), "a b c");
  EXPECT_EQ(eval::text_squeezed(" \n"), "");
}

TEST(Haystack, PiecesAreTextWithFactsBetweenSentences) {
  const std::string text = story(300, "Ada");
  const std::string squeezed = eval::text_squeezed(text);
  for (const Tokenizer* tokenizer : {&words_tokenizer(), &bytes_tokenizer()}) {
    const ChatPrompt prompt = prompt_of(*tokenizer);
    const Haystack hay(prompt, std::vector<std::string>{text});
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      Draw draw({seed});
      const auto tokens = static_cast<std::int64_t>(450 + draw.below(700));
      const double depth = static_cast<double>(seed % 11) / 10;
      const std::vector<HaystackFact> facts = {{depth, "FACT one."}, {draw.unit(), "FACT two."}};
      const HaystackPiece piece = hay.piece(tokens, facts, seed, draw);
      ASSERT_LE(std::ssize(piece.ids), tokens);
      ASSERT_GT(std::ssize(piece.ids), tokens - 110);
      std::string whole = tokenizer->decode(piece.ids);
      // Each fact is where the piece says, whole.
      for (std::size_t i = 0; i < facts.size(); ++i) {
        const std::span<const std::int32_t> ids(piece.ids);
        const std::string own = tokenizer->decode(
            ids.subspan(static_cast<std::size_t>(piece.begins[i]),
                        static_cast<std::size_t>(piece.ends[i] - piece.begins[i])));
        EXPECT_EQ(own, (piece.begins[i] == 0 ? "" : " ") + facts[i].sentence);
      }
      // Without the facts it is a part of the text, from a sentence's beginning to one's end.
      for (const HaystackFact& fact : facts) {
        std::size_t at = whole.find(fact.sentence);
        ASSERT_NE(at, std::string::npos);
        if (at > 0) {
          EXPECT_TRUE(whole[at - 1] == ' ' && std::string(".?\"").find(whole[at - 2]) != whole.npos)
              << whole.substr(at - 20, 40);
          --at;
          whole.erase(at, fact.sentence.size() + 1);
        } else {
          whole.erase(0, fact.sentence.size() + 1);
        }
      }
      EXPECT_NE(squeezed.find(whole), std::string::npos) << whole;
      EXPECT_TRUE(whole.starts_with("In year ")) << whole.substr(0, 30);
      EXPECT_TRUE(std::string(".?\"").find(whole.back()) != whole.npos) << whole;
      // The share of haystack tokens before the fact.
      std::int64_t before = piece.begins[0];
      if (piece.begins[1] < piece.begins[0]) before -= piece.ends[1] - piece.begins[1];
      EXPECT_NEAR(static_cast<double>(before), depth * static_cast<double>(piece.own), 40);
      if (depth == 0) {
        EXPECT_EQ(before, 0);
      }
      if (depth == 1) {
        EXPECT_NEAR(static_cast<double>(before), static_cast<double>(piece.own), 3);
      }
    }
  }
}

TEST(Haystack, SplicedIdsAreThoseOfTheTextEncodedAtOnce) {
  const ChatPrompt prompt = prompt_of(words_tokenizer());
  const Haystack hay(prompt, std::vector<std::string>{story(200, "Ada")});
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Draw draw({seed});
    const std::vector<HaystackFact> facts = {{draw.unit(), "One of them is: 1234567."}};
    const HaystackPiece piece = hay.piece(400, facts, 0, draw);
    EXPECT_EQ(piece.ids, words_tokenizer().encode(words_tokenizer().decode(piece.ids)));
  }
}

TEST(Haystack, TextsAreUsedInTurnAndFollowOneAnother) {
  const ChatPrompt prompt = prompt_of(bytes_tokenizer());
  const std::vector<std::string> texts = {story(100, "Ada"), story(100, "Bob"), story(3, "Cid")};
  const Haystack hay(prompt, texts);
  EXPECT_EQ(hay.texts(), 3u);
  for (std::uint64_t i = 0; i < 12; ++i) {
    Draw draw({i});
    const std::string text = bytes_tokenizer().decode(hay.piece(300, {}, i, draw).ids);
    const std::string who = i % 3 == 0 ? "Ada" : i % 3 == 1 ? "Bob" : "Cid";
    EXPECT_NE(text.find(who), std::string::npos) << i << " " << text;
    if (i % 3 < 2) {
      EXPECT_EQ(text.find(i % 3 == 0 ? "Bob" : "Ada"), std::string::npos) << text;
    } else {
      EXPECT_NE(text.find("Ada"), std::string::npos) << text;  // the third is short
    }
  }
}

TEST(Haystack, TextWithoutSentencesIsCutBetweenWords) {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "word" + std::to_string(i) + " ";
  const ChatPrompt prompt = prompt_of(bytes_tokenizer());
  const Haystack hay(prompt, std::vector<std::string>{text});
  Draw draw({1});
  const std::vector<HaystackFact> facts = {{0.5, "FACT."}};
  const HaystackPiece piece = hay.piece(3000, facts, 0, draw);
  const std::string whole = bytes_tokenizer().decode(piece.ids);
  const std::size_t at = whole.find(" FACT. word");
  ASSERT_NE(at, std::string::npos) << whole;
  EXPECT_NEAR(static_cast<double>(at), 1500, 20);
}

TEST(Haystack, TooLittleTextIsAnError) {
  const ChatPrompt prompt = prompt_of(bytes_tokenizer());
  expect_error([&] { Haystack(prompt, std::vector<std::string>{"Too short."}); }, {"11 tokens"});
  expect_error([&] { Haystack(prompt, std::vector<std::string>{" ", "\n"}); }, {"0 tokens"});
  const Haystack hay(prompt, {});
  EXPECT_TRUE(hay.is_built_in());
  Draw draw({1});
  const std::vector<HaystackFact> facts = {{0.5, "A fact of some length."}};
  expect_error([&] { hay.piece(20, facts, 0, draw); }, {"20 tokens"});
}

TEST(NeedlePlace, FollowsTheIndexLaw) {
  std::vector<Settings> all;
  for (const MethodKind method : {MethodKind::lca, MethodKind::dense, MethodKind::window}) {
    all.push_back(small_settings(method));
  }
  for (const Settings& settings : all) {
    const Layout layout(settings);
    for (std::int64_t n = 1; n < 50; ++n) {
      const std::int64_t gone = settings.sink + layout.dropped(n);
      for (std::int64_t begin = 0; begin < n; ++begin) {
        for (std::int64_t end = begin + 1; end <= n; ++end) {
          const auto is_gone = [&](std::int64_t i) { return i >= settings.sink && i < gone; };
          std::int64_t lost = 0;
          for (std::int64_t i = begin; i < end; ++i) lost += is_gone(i);
          const Place expected = lost == 0          ? Place::inside
                                 : is_gone(end - 1) ? Place::outside
                                                    : Place::straddling;
          EXPECT_EQ(eval::place_of({&settings, 1}, begin, end, n), expected)
              << n << " " << begin << " " << end;
        }
      }
    }
  }
  // Layers that differ: the needle is outside where no layer sees it.
  const std::vector<Settings> mixed = {small_settings(), small_settings(MethodKind::dense)};
  EXPECT_EQ(eval::place_of(mixed, 4, 8, 40), Place::straddling);
  EXPECT_EQ(eval::place_of(mixed, 36, 39, 40), Place::inside);
}

NeedleOptions small_options() {
  NeedleOptions options;
  options.lengths = {700, 1000};
  options.keys = {1, 4};
  options.depths = {0, 0.5, 1};
  options.questions = {Question::last, Question::first};
  options.samples = 3;
  options.seed = 11;
  return options;
}

TEST(NeedleTask, HasEveryCaseOnceAndAllCombinationsEarly) {
  const NeedleTask task(words_tokenizer(), ChatTemplate(words_tokenizer(), ChatFormat::chatml), {},
                        small_options());
  ASSERT_EQ(task.count(), 2u * 2 * 3 * 2 * 3);
  std::set<std::tuple<std::int64_t, std::int64_t, double, Question, std::int64_t>> seen;
  for (std::size_t i = 0; i < task.count(); ++i) {
    const NeedleCase one = task.at(i);
    EXPECT_EQ(one.sample, static_cast<std::int64_t>(i / 24));
    seen.emplace(one.length, one.keys, one.depth, one.question, one.sample);
  }
  EXPECT_EQ(seen.size(), task.count());
}

TEST(NeedleTask, PromptsHaveRulersWordingAndFillTheLength) {
  const std::vector<std::string> texts = {story(300, "Ada"), story(300, "Bob")};
  const NeedleTask task(words_tokenizer(), ChatTemplate(words_tokenizer(), ChatFormat::chatml),
                        texts, small_options());
  std::set<std::string> values;
  for (std::size_t i = 0; i < task.count(); ++i) {
    const NeedleCase one = task.at(i);
    const NeedlePrompt prompt = task.make(one);
    EXPECT_LE(std::ssize(prompt.ids) + eval::kNeedleReply, one.length);
    EXPECT_GE(std::ssize(prompt.ids) + eval::kNeedleReply, one.length - 110);
    const std::string text = words_tokenizer().decode(prompt.ids, true);
    const std::string question =
        "What is the special magic number for " + prompt.key + " mentioned in the provided text?";
    const std::string task_text =
        "A special magic number is hidden within the following text. Make sure to memorize it. I "
        "will quiz you about the number afterwards.\n";
    const std::string prefix = "<|im_end|>\n<|im_start|>assistant\n The special magic number for " +
                               prompt.key + " mentioned in the provided text is";
    if (one.question == Question::last) {
      EXPECT_TRUE(text.starts_with("<|im_start|>user\n" + task_text)) << text;
      EXPECT_TRUE(text.ends_with("\n" + question + prefix)) << text;
    } else {
      EXPECT_TRUE(text.starts_with("<|im_start|>user\n" + question + "\n" + task_text)) << text;
      EXPECT_TRUE(text.ends_with(prefix)) << text;
    }
    const std::string needle =
        "One of the special magic numbers for " + prompt.key + " is: " + prompt.value + ".";
    const std::span<const std::int32_t> ids(prompt.ids);
    const std::string found =
        words_tokenizer().decode(ids.subspan(static_cast<std::size_t>(prompt.begin),
                                             static_cast<std::size_t>(prompt.end - prompt.begin)));
    EXPECT_EQ(found,
              (one.depth == 0 && one.keys == 1 ? "" : found.substr(0, found[0] == ' ')) + needle);
    std::size_t needles = 0;
    for (std::size_t at = 0; (at = text.find("One of the special", at)) != text.npos; ++at)
      ++needles;
    EXPECT_EQ(needles, static_cast<std::size_t>(one.keys));
    EXPECT_EQ(prompt.value.size(), 7u);
    EXPECT_NE(prompt.value[0], '0');
    values.insert(prompt.value);
    const NeedlePrompt again = task.make(one);
    EXPECT_EQ(again.ids, prompt.ids);
  }
  EXPECT_GT(values.size(), task.count() / 2 - 2);  // the question's place changes nothing else
}

TEST(NeedleTask, SeedsAndSamplesDifferAndOtherOptionsDoNotMatter) {
  const ChatTemplate chat(words_tokenizer(), ChatFormat::chatml);
  const std::vector<std::string> texts = {story(300, "Ada")};
  NeedleOptions options = small_options();
  const NeedleTask task(words_tokenizer(), chat, texts, options);
  const NeedleCase one{1000, 4, 0.5, Question::last, 1};
  options.depths = {0.5};
  options.samples = 50;
  options.lengths = {1000};
  EXPECT_EQ(NeedleTask(words_tokenizer(), chat, texts, options).make(one).ids, task.make(one).ids);
  options.seed = 12;
  EXPECT_NE(NeedleTask(words_tokenizer(), chat, texts, options).make(one).value,
            task.make(one).value);
  NeedleCase other = one;
  other.sample = 2;
  EXPECT_NE(task.make(other).value, task.make(one).value);
  other = one;
  other.question = Question::first;
  EXPECT_EQ(task.make(other).value, task.make(one).value);
  options.prefix = false;
  const NeedlePrompt bare = NeedleTask(words_tokenizer(), chat, texts, options).make(one);
  EXPECT_TRUE(words_tokenizer().decode(bare.ids, true).ends_with("assistant\n"));
}

TEST(NeedleTask, OptionsOutOfRangeAreErrors) {
  const ChatTemplate chat(words_tokenizer(), ChatFormat::chatml);
  const auto refused = [&](const std::function<void(NeedleOptions&)>& change,
                           const std::string& part) {
    NeedleOptions options = small_options();
    change(options);
    expect_error([&] { NeedleTask(words_tokenizer(), chat, {}, options); }, {part});
  };
  refused([](NeedleOptions& o) { o.lengths = {}; }, "at least one");
  refused([](NeedleOptions& o) { o.lengths = {0}; }, "length is 0");
  refused([](NeedleOptions& o) { o.keys = {65}; }, "keys are 65");
  refused([](NeedleOptions& o) { o.depths = {1.5}; }, "depth is 1.5");
  refused([](NeedleOptions& o) { o.depths = {std::nan("")}; }, "depth is nan");
  refused([](NeedleOptions& o) { o.samples = 0; }, "samples are 0");
  const NeedleTask task(words_tokenizer(), chat, {}, small_options());
  expect_error([&] { task.make({60, 1, 0.5, Question::last, 0}); }, {"too short"});
}

TEST(NeedleTable, CountsByPlaceAndSortsRows) {
  eval::NeedleTable table;
  table.add({8, 1, 0.5, Question::last, 0}, Place::outside, true);
  table.add({4, 1, 0.5, Question::last, 0}, Place::inside, true);
  table.add({8, 1, 0.5, Question::last, 1}, Place::outside, false);
  table.add({8, 1, 0.5, Question::last, 2}, Place::straddling, true);
  const auto& rows = table.rows();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].length, 4);
  EXPECT_EQ(rows[1].place, Place::straddling);
  EXPECT_EQ(rows[2].hits, 1);
  EXPECT_EQ(rows[2].samples, 2);
  EXPECT_TRUE(eval::needle_hit(" is 1234567.", "1234567"));
  EXPECT_FALSE(eval::needle_hit(" is 123 4567.", "1234567"));
}

}  // namespace
}  // namespace lca::test
