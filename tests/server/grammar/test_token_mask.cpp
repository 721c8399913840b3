// Masks: equal to asking for every token, and texts made with them satisfy their schema.

#include "server/grammar/grammar_support.h"
#include "server/grammar/schema_oracle.h"
#include "support/test_data.h"

#include <lca/error.h>
#include <lca/tokenizer.h>

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>

namespace lca::test {
namespace {

using server::Grammar;
using server::GrammarState;
using server::TokenBits;
using server::TokenMask;

bool has(const TokenBits& bits, std::size_t id) { return (bits[id / 64] >> (id % 64) & 1U) != 0; }

std::vector<std::string> tokenizer_tokens(const Tokenizer& tokenizer) {
  std::vector<std::string> made(static_cast<std::size_t>(tokenizer.size()));
  for (std::size_t i = 0; i < made.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    if (!tokenizer.is_special(id)) made[i] = tokenizer.bytes(id);
  }
  return made;
}

void expect_equal_to_every_token(const GrammarState& state, const TokenMask& mask,
                                 const std::vector<std::string>& tokens, TokenBits& bits) {
  mask.allowed(state, bits);
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    GrammarState next = state;
    const bool fits = !tokens[id].empty() && next.advance(tokens[id]);
    ASSERT_EQ(has(bits, id), fits) << "token " << id << " '" << tokens[id] << "'";
  }
}

/// A text of random tokens that fit; empty if it does not come to an end.
struct Walk {
  std::string text;
  bool ended = false;
};

struct WalkOptions {
  int patience = 40;  ///< steps after which it closes what it can
  int most = 400;
  double check = 0.0;  ///< how often a mask is compared with every token
};

Walk walk_random(const Grammar& grammar, const TokenMask& mask,
                 const std::vector<std::string>& tokens, SchemaMaker& random,
                 const WalkOptions& options) {
  Walk walk;
  GrammarState state = grammar.start();
  TokenBits bits;
  std::vector<std::size_t> fitting;
  for (int step = 0; step < options.most; ++step) {
    if (random.chance(options.check)) {
      expect_equal_to_every_token(state, mask, tokens, bits);
      if (testing::Test::HasFatalFailure()) return walk;
    } else {
      mask.allowed(state, bits);
    }
    fitting.clear();
    std::optional<std::size_t> closing;
    for (std::size_t id = 0; id < tokens.size(); ++id) {
      if (!has(bits, id)) continue;
      fitting.push_back(id);
      const std::string& token = tokens[id];
      // A quote first: inside a string brackets fit, too.
      if (token == "\"" || (!closing && (token == "}" || token == "]"))) closing = id;
    }
    EXPECT_TRUE(!fitting.empty() || state.may_end()) << walk.text;
    EXPECT_EQ(state.must_end(), fitting.empty()) << walk.text;
    if (fitting.empty() || (state.may_end() && (step > options.patience || random.chance(0.3)))) {
      walk.ended = state.may_end();
      return walk;
    }
    std::size_t id =
        fitting[static_cast<std::size_t>(random.below(static_cast<int>(fitting.size())))];
    if (closing && (step > options.patience || random.chance(0.2))) {
      id = *closing;
    } else if (step > options.patience) {  // the shortest opens least
      for (const std::size_t other : fitting) {
        if (tokens[other].size() <= tokens[id].size()) id = other;
      }
    }
    EXPECT_TRUE(state.advance(tokens[id])) << walk.text << tokens[id];
    walk.text += tokens[id];
  }
  return walk;
}

/// Random schemas, each with a random walk; all finished texts satisfy their schema.
void expect_valid_texts(const TokenMask& mask, const std::vector<std::string>& tokens,
                        std::uint64_t seed, int schemas, const WalkOptions& options) {
  SchemaMaker maker(seed);
  int ended = 0;
  int walked = 0;
  for (int i = 0; i < schemas; ++i) {
    const Json schema = maker.schema();
    std::optional<Grammar> grammar;
    try {
      grammar = Grammar::from_schema(schema);
    } catch (const Error&) {
      continue;  // nothing satisfies it
    }
    ++walked;
    const Walk walk = walk_random(*grammar, mask, tokens, maker, options);
    ASSERT_FALSE(testing::Test::HasFailure()) << schema << "\n" << walk.text;
    if (!walk.ended) continue;
    ++ended;
    ASSERT_TRUE(Json::accept(walk.text)) << schema << "\n" << walk.text;
    ASSERT_TRUE(oracle_valid(schema, schema, Json::parse(walk.text))) << schema << "\n"
                                                                      << walk.text;
  }
  EXPECT_GT(walked, schemas / 2);
  EXPECT_GT(ended, walked * 8 / 10) << "of " << walked;
}

TEST(TokenMaskOf, SmallVocabulariesEqualsAskingForEveryToken) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const std::vector<std::string> tokens = small_vocabulary(seed);
    const TokenMask mask(views(tokens));
    expect_valid_texts(mask, tokens, seed, 150, {.patience = 25, .check = 0.5});
  }
}

TEST(TokenMaskOf, SmallVocabulariesMakesTextsOfTheSchema) {
  for (std::uint64_t seed = 10; seed <= 13; ++seed) {
    const std::vector<std::string> tokens = small_vocabulary(seed);
    const TokenMask mask(views(tokens));
    expect_valid_texts(mask, tokens, seed, 700, {});
  }
}

TEST(TokenMaskOf, GoldenTokenizersMakesTextsOfTheSchema) {
  for (const char* name : {"llama3", "qwen2", "sentencepiece"}) {
    SCOPED_TRACE(name);
    const std::filesystem::path folder =
        std::filesystem::path(LCA_SOURCE_DIR) / "tests/golden/tokenizers";
    const Tokenizer tokenizer = Tokenizer::open(folder / (std::string(name) + ".json"));
    const std::vector<std::string> tokens = tokenizer_tokens(tokenizer);
    const TokenMask mask(tokenizer);
    expect_valid_texts(mask, tokens, 5, 150, {.check = 0.2});
  }
}

TEST(TokenMaskOf, SmolLM2EqualsAskingForEveryTokenAndMakesTextsOfTheSchema) {
  const auto path = smollm2_path();
  if (!path) GTEST_SKIP() << kNoTestData;
  const Tokenizer tokenizer = Tokenizer::open(*path);
  const std::vector<std::string> tokens = tokenizer_tokens(tokenizer);
  const TokenMask mask(tokenizer);
  expect_valid_texts(mask, tokens, 77, 80, {.patience = 25, .most = 200, .check = 0.02});
}

TEST(TokenMaskOf, ManyStringsAtOnceEqualsAskingForEveryToken) {
  Json choices = Json::array();
  for (int i = 0; i < 300; ++i) {
    choices.push_back(Json{
        {"type", "array"}, {"items", {{"type", "string"}, {"maxLength", i}}}, {"maxItems", i}});
    choices.push_back(Json{{"type", "object"}, {"properties", {{"a" + std::to_string(i), true}}}});
  }
  const Grammar grammar = Grammar::from_schema(Json{{"anyOf", choices}});
  const std::vector<std::string> tokens = small_vocabulary(8);
  const TokenMask mask(views(tokens));
  TokenBits bits;
  for (const char* text :
       {"", "[", "[\"", "[\"aé", "{", "{\"", "{\"a", "{\"a1", "{\"a12\"", "{\"b\":[\""}) {
    SCOPED_TRACE(text);
    GrammarState state = grammar.start();
    ASSERT_TRUE(state.advance(text));
    expect_equal_to_every_token(state, mask, tokens, bits);
  }
}

TEST(TokenMaskOf, AnObjectMakesAnyObject) {
  const std::vector<std::string> tokens = small_vocabulary(4);
  const TokenMask mask(views(tokens));
  SchemaMaker random(3);
  int ended = 0;
  for (int i = 0; i < 200; ++i) {
    const Walk walk = walk_random(Grammar::json_object(), mask, tokens, random, {.check = 0.1});
    ASSERT_FALSE(HasFailure());
    if (!walk.ended) continue;
    ++ended;
    ASSERT_TRUE(Json::accept(walk.text)) << walk.text;
    ASSERT_TRUE(Json::parse(walk.text).is_object());
  }
  EXPECT_GT(ended, 180);
}

TEST(TokenMaskApplied, LeavesWhatFitsAndTheEndOnlyOfAWholeText) {
  const std::vector<std::string> tokens = {"{", "}", "x", "", "{}"};
  const TokenMask mask(views(tokens));
  const std::vector<std::int32_t> ends = {3, 9, -1};
  GrammarState state = schema_grammar(R"({"type":"object","additionalProperties":false})").start();
  std::vector<float> logits(8, 1.0F);  // more than the vocabulary has
  EXPECT_EQ(mask.apply(state, logits, ends), 2U);
  for (std::size_t i = 0; i < logits.size(); ++i)
    EXPECT_EQ(std::isinf(logits[i]), i != 0 && i != 4) << i;
  ASSERT_TRUE(state.advance("{}"));
  logits.assign(8, 1.0F);
  EXPECT_EQ(mask.apply(state, logits, ends), 1U);
  for (std::size_t i = 0; i < logits.size(); ++i) EXPECT_EQ(std::isinf(logits[i]), i != 3) << i;
}

TEST(TokenMaskApplied, SaysWhereTheVocabularyCannotGoOn) {
  const std::vector<std::string> tokens = {"{", "x"};
  const TokenMask mask(views(tokens));
  GrammarState state = schema_grammar(R"({"type":"object","additionalProperties":false})").start();
  ASSERT_TRUE(state.advance("{"));
  std::vector<float> logits(2, 1.0F);
  EXPECT_EQ(mask.apply(state, logits, {}), 0U);
}

TEST(ThreadsTokenMask, ManyThreadsShareOneAndItsKeptMasks) {
  const std::vector<std::string> tokens = small_vocabulary(5);
  const TokenMask mask(views(tokens));
  const Grammar grammar =
      schema_grammar(R"({"type":"array","items":{"type":"string","maxLength":300}})");
  GrammarState state = grammar.start();
  ASSERT_TRUE(state.advance("[\""));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, own = state]() mutable {
      TokenBits bits;
      for (int i = 0; i < 300; ++i) {
        mask.allowed(own, bits);
        EXPECT_TRUE(has(bits, 'a'));
        EXPECT_TRUE(own.advance("a"));
      }
      mask.allowed(own, bits);
      EXPECT_FALSE(has(bits, 'a'));
      EXPECT_TRUE(has(bits, '"'));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace lca::test
