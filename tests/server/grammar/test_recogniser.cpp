// What grammars accept, byte by byte.

#include "server/grammar/grammar_support.h"
#include "server/grammar/schema_oracle.h"

#include <lca/error.h>

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace lca::test {
namespace {

using server::Grammar;
using server::GrammarState;

TEST(Recogniser, TakesAnyObjectInObjectModeAndNothingElse) {
  const Grammar grammar = Grammar::json_object();
  for (const char* text :
       {"{}", "{ }", " {}", R"({"a":1})", R"({"a": [1, 2.5e-3, true, null, {"b": "c"}]})",
        "{\n  \"a\": {\n    \"b\": []\n  }\n}", R"({"":""})"}) {
    EXPECT_TRUE(accepts(grammar, text)) << text;
  }
  for (const char* text :
       {"", "[]", "1", "{", R"({"a"})", R"({"a":})", R"({"a":1,})", R"({"a":01})", "{}x",
        R"({'a':1})", R"({"a":+1})", R"({"a":1.})", R"({"a":.5})", R"({"a":tru})"}) {
    EXPECT_FALSE(accepts(grammar, text)) << text;
  }
}

TEST(Recogniser, RefusesBytesAndLeavesTheStateUnchanged) {
  GrammarState state = Grammar::json_object().start();
  ASSERT_TRUE(state.advance("{\"a\""));
  EXPECT_FALSE(state.advance(":1}x"));
  EXPECT_FALSE(state.may_end());
  EXPECT_TRUE(state.advance(":1}"));
  EXPECT_TRUE(state.may_end());
  EXPECT_TRUE(state.must_end());
}

TEST(Recogniser, CopiesGoTheirOwnWays) {
  GrammarState one = Grammar::json_object().start();
  ASSERT_TRUE(one.advance("{\"a\":["));
  GrammarState other = one;
  ASSERT_TRUE(one.advance("1]}"));
  ASSERT_TRUE(other.advance("\"x\",2"));
  EXPECT_TRUE(one.must_end());
  EXPECT_FALSE(other.may_end());
  ASSERT_TRUE(other.advance("]}"));
  EXPECT_TRUE(other.must_end());
}

TEST(Recogniser, StringsAreUtf8WithWholeEscapes) {
  const Grammar grammar = schema_grammar(R"({"type":"string"})");
  for (const char* text : {R"("")", "\"é€😀\"", R"("\u00e9\n\/\\\"")", R"("\ud83d\ude00")",
                           R"("\uD7ff")", R"("\uE000")"}) {
    EXPECT_TRUE(accepts(grammar, text)) << text;
  }
  for (const char* text :
       {"\"\xff\"", "\"\xc0\xaf\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xe0\x80\x80\"",
        R"("\ud83d")", R"("\ude00")", R"("\ud83dx")", R"("\ud83d\u0041")", R"("\x41")", "\"\n\"",
        "\"\xc3\"", R"("\u12")", "\"\x01\""}) {
    EXPECT_FALSE(accepts(grammar, text)) << text;
  }
}

TEST(Recogniser, EveryTwoAndThreeByteSequenceIsJudgedAsByAParser) {
  const Grammar grammar = schema_grammar(R"({"type":"string"})");
  GrammarState quote = grammar.start();
  ASSERT_TRUE(quote.advance("\""));
  for (int first = 0x20; first < 256; ++first) {
    for (int second = 0x20; second < 256; ++second) {
      const std::string text = {static_cast<char>(first), static_cast<char>(second), '"'};
      for (const std::string& tail : {text, "\xe2" + text, "\xf0\x9f" + text}) {
        GrammarState state = quote;
        const bool taken = state.advance(tail) && state.may_end();
        ASSERT_EQ(taken, Json::accept("\"" + tail)) << first << " " << second;
      }
    }
  }
}

TEST(Recogniser, ManyAlternativesAreToldApart) {
  Json choices = Json::array();
  for (int i = 100; i < 400; ++i) choices.push_back({{"type", "array"}, {"items", {{"const", i}}}});
  const Grammar grammar = Grammar::from_schema({{"anyOf", choices}});
  for (const char* text : {"[]", "[100]", "[399, 399, 399]"}) EXPECT_TRUE(accepts(grammar, text));
  for (const char* text : {"[99", "[400", "[100,101", "[399, 399, 398"}) {
    EXPECT_FALSE(begins(grammar, text)) << text;
  }
}

TEST(Recogniser, MaxLengthCountsCharactersNotBytes) {
  const Grammar grammar = schema_grammar(R"({"type":"string","maxLength":3})");
  EXPECT_TRUE(accepts(grammar, "\"é€😀\""));
  EXPECT_TRUE(accepts(grammar, R"("\ud83d\ude00ab")"));
  EXPECT_FALSE(begins(grammar, "\"é€😀x"));
  EXPECT_FALSE(begins(grammar, "\"abc\xc3"));
  EXPECT_FALSE(begins(grammar, R"("abc\)"));
  EXPECT_TRUE(accepts(schema_grammar(R"({"type":"string","maxLength":0})"), R"("")"));
}

TEST(Recogniser, IntegersStayWithinTheirBounds) {
  for (const auto& [low, high] : {std::pair{0, 0},
                                  {-3, 12},
                                  {7, 7},
                                  {95, 1203},
                                  {-250, -17},
                                  {-1, 1},
                                  {10, 99},
                                  {-1000, 1000}}) {
    const Grammar grammar =
        Grammar::from_schema({{"type", "integer"}, {"minimum", low}, {"maximum", high}});
    for (int i = -2500; i <= 2500; ++i) {
      ASSERT_EQ(accepts(grammar, std::to_string(i)), i >= low && i <= high)
          << i << " in " << low << ".." << high;
    }
    EXPECT_FALSE(accepts(grammar, "-0"));
    EXPECT_FALSE(accepts(grammar, "00"));
    EXPECT_FALSE(accepts(grammar, "1.0"));
  }
}

TEST(Recogniser, IntegersFitInto64Bits) {
  const Grammar grammar = schema_grammar(R"({"type":"integer"})");
  for (const char* text : {"0", "-1", "-9223372036854775808", "9223372036854775807"}) {
    EXPECT_TRUE(accepts(grammar, text)) << text;
  }
  for (const char* text :
       {"9223372036854775808", "-9223372036854775809", "100000000000000000000", "-"}) {
    EXPECT_FALSE(accepts(grammar, text)) << text;
  }
  EXPECT_TRUE(accepts(schema_grammar(R"({"type":"integer","minimum":-1e30,"maximum":3})"), "-5"));
  EXPECT_FALSE(accepts(
      schema_grammar(R"({"type":"integer","minimum":4,"maximum":18446744073709551615})"), "3"));
}

TEST(Recogniser, BoundsReachToUnsigned64Bits) {
  const Grammar grammar =
      schema_grammar(R"({"type":"integer","minimum":0,"maximum":18446744073709551615})");
  EXPECT_TRUE(accepts(grammar, "18446744073709551615"));
  EXPECT_FALSE(accepts(grammar, "18446744073709551616"));
  const Grammar above = schema_grammar(R"({"type":"integer","minimum":9223372036854775808})");
  EXPECT_TRUE(accepts(above, "18446744073709551615"));
  EXPECT_FALSE(accepts(above, "9223372036854775807"));
}

TEST(Recogniser, NumbersAreFiniteInEveryParser) {
  const Grammar grammar = schema_grammar(R"({"type":"number"})");
  for (const char* text : {"0", "-0.5", "1e307", "9.99e+307", "1e-05", "12345678901234567890",
                           "1.5E10", "1e-323", "0.0001234567890123456"}) {
    EXPECT_TRUE(accepts(grammar, text)) << text;
  }
  for (const char* text :
       {"1e308", "1e400", "01", "1e", "--1", "1.e5", "NaN", "Infinity", "123456789012345678901"}) {
    EXPECT_FALSE(accepts(grammar, text)) << text;
  }
}

TEST(Recogniser, PropertiesComeInOrderAndOptionalOnesMayBeLeftOut) {
  const Grammar grammar = schema_grammar(
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"},"c":{"type":"integer"}},
          "required":["b"],"additionalProperties":false})");
  for (const char* text :
       {R"({"b":1})", R"({"a":1,"b":2})", R"({"b":1, "c":2})", R"({"a":1,"b":2,"c":3})"}) {
    EXPECT_TRUE(accepts(grammar, text)) << text;
  }
  for (const char* text : {"{}", R"({"a":1})", R"({"a":1,"c":2})", R"({"b":1,"a":2})",
                           R"({"b":1,"d":2})", R"({"b":1,"b":2})", R"({,"b":1})", R"({"b":1,})"}) {
    EXPECT_FALSE(accepts(grammar, text)) << text;
  }
}

TEST(Recogniser, AdditionalKeysAreNotThoseOfProperties) {
  const Grammar grammar = schema_grammar(
      R"({"type":"object","properties":{"ab":{"type":"integer"},"é":{"const":1}},"additionalProperties":{"type":"string"}})");
  for (const char* text : {R"({"a":"x"})", R"({"abc":"x"})", R"({"ab":1,"b":"y","c":""})",
                           R"({"":"x"})", "{\"è\":\"x\"}", R"({"a\"b":"x"})", R"({"\u0001":""})"}) {
    EXPECT_TRUE(accepts(grammar, text)) << text;
  }
  for (const char* text : {R"({"ab":"x"})", R"({"a":1})", "{\"é\":\"x\"}", R"({"\u0061b":"x"})",
                           R"({"z":"","ab":"x"})"}) {
    EXPECT_FALSE(accepts(grammar, text)) << text;
  }
}

TEST(Recogniser, ArraysHaveAsManyItemsAsAsked) {
  for (int least = 0; least < 4; ++least) {
    for (int most = least; most < 6; ++most) {
      const Grammar grammar = Grammar::from_schema({{"type", "array"},
                                                    {"items", {{"type", "boolean"}}},
                                                    {"minItems", least},
                                                    {"maxItems", most}});
      for (int count = 0; count < 8; ++count) {
        EXPECT_EQ(
            accepts(grammar, Json(std::vector<bool>(static_cast<std::size_t>(count), true)).dump()),
            count >= least && count <= most);
      }
    }
  }
  EXPECT_FALSE(begins(schema_grammar(R"({"type":"array","maxItems":1})"), "[1,"));
  EXPECT_TRUE(accepts(schema_grammar(R"({"type":"array","minItems":2})"), "[1,2,3,4]"));
  EXPECT_FALSE(accepts(schema_grammar(R"({"type":"array","items":false})"), "[1]"));
  EXPECT_TRUE(accepts(schema_grammar(R"({"type":"array","items":false})"), "[]"));
}

TEST(Recogniser, EnumTakesValuesOfAnyKind) {
  const Grammar grammar =
      schema_grammar(R"({"enum":["a","ab",1,12,null,true,[1,{"x":2}],{"k":[]},-2.5]})");
  for (const char* text : {R"("a")", R"("ab")", "1", "12", "null", "true", R"([1,{"x":2}])",
                           R"([1, {"x": 2}])", R"({"k":[]})", "-2.5"}) {
    EXPECT_TRUE(accepts(grammar, text)) << text;
  }
  for (const char* text : {R"("abc")", "2", "123", "false", R"([1])", R"({"k":[1]})"}) {
    EXPECT_FALSE(accepts(grammar, text)) << text;
  }
}

TEST(Recogniser, EnumBesideOtherKeywordsKeepsWhatSatisfiesThem) {
  const Grammar grammar = schema_grammar(
      R"({"type":["string","integer"],"enum":["a","éé","abc",1,5,2.5,null],"maxLength":2,"maximum":3})");
  EXPECT_TRUE(accepts(grammar, "\"éé\""));
  EXPECT_TRUE(accepts(grammar, "1"));
  for (const char* text : {R"("abc")", "5", "2.5", "null"})
    EXPECT_FALSE(accepts(grammar, text)) << text;
}

TEST(Recogniser, RecursionGoesThroughReferences) {
  const Grammar grammar = schema_grammar(
      R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},
          "next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v","next"],"additionalProperties":false}}})");
  EXPECT_TRUE(accepts(grammar, R"({"v":1,"next":{"v":2,"next":{"v":3,"next":null}}})"));
  EXPECT_FALSE(accepts(grammar, R"({"v":1,"next":{"v":2}})"));
  EXPECT_FALSE(accepts(grammar, R"({"v":1,"next":1})"));
}

TEST(Recogniser, KeywordsBesideAReferenceHoldToo) {
  const Grammar grammar = schema_grammar(
      R"({"$ref":"#/$defs/s","maxLength":2,"$defs":{"s":{"type":"string","maxLength":5}}})");
  EXPECT_TRUE(accepts(grammar, R"("ab")"));
  EXPECT_FALSE(begins(grammar, R"("abc)"));
  const Grammar either = schema_grammar(
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"anyOf":[{"required":["a"]},{"required":["b"]}],"additionalProperties":false})");
  EXPECT_TRUE(accepts(either, R"({"a":1})"));
  EXPECT_TRUE(accepts(either, R"({"b":1})"));
  EXPECT_FALSE(accepts(either, "{}"));
}

TEST(Recogniser, ItIsNeverCaughtBelowTheDeepestNesting) {
  // At the limit only what can still be closed may be opened.
  const Grammar grammar = schema_grammar(
      R"({"$ref":"#/$defs/t","$defs":{"t":{"type":"object","properties":{"t":{"$ref":"#/$defs/t"},"s":{"$ref":"#/$defs/l"}},"additionalProperties":false},
          "l":{"type":"array","items":{"$ref":"#/$defs/t"},"minItems":1,"maxItems":1}}})");
  GrammarState state = grammar.start();
  int depth = 0;
  while (state.advance(R"({"t":)")) ASSERT_LT(++depth, 100'000);
  EXPECT_GT(depth, 100);
  ASSERT_TRUE(state.advance("{}")) << depth;
  for (int i = 0; i < depth; ++i) ASSERT_TRUE(state.advance("}"));
  EXPECT_TRUE(state.must_end());
  GrammarState any = Grammar::json_value().start();
  std::string close;
  while (any.advance("[")) close += "]";
  EXPECT_GT(close.size(), 100U);
  EXPECT_TRUE(any.advance(close) && any.must_end());
}

TEST(Recogniser, AmbiguousNestingDoesNotMultiplyItsPlaces) {
  // Each bracket could be either alternative: told apart, there would be 2^60 ways.
  const Grammar grammar = schema_grammar(
      R"({"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"type":"array","items":{"$ref":"#/$defs/a"},"maxItems":5},
          {"type":"array","items":{"$ref":"#/$defs/a"},"maxItems":6}]}}})");
  GrammarState state = grammar.start();
  for (int i = 0; i < 60; ++i) {
    ASSERT_TRUE(state.advance("["));
    ASSERT_LT(state.places().size(), 20U);
  }
  EXPECT_TRUE(state.advance(std::string(60, ']')) && state.must_end());
  EXPECT_TRUE(accepts(grammar, "[[],[],[],[],[],[]]"));
  EXPECT_FALSE(accepts(grammar, "[[],[],[],[],[],[],[]]"));
}

TEST(Recogniser, WhiteSpaceCannotGoOnForEver) {
  const Grammar grammar = Grammar::json_object();
  EXPECT_FALSE(begins(grammar, "{  "));
  EXPECT_FALSE(begins(grammar, "{\n\n"));
  EXPECT_FALSE(begins(grammar, "{\n" + std::string(41, ' ')));
  EXPECT_TRUE(begins(grammar, "{\n" + std::string(40, ' ')));
  EXPECT_FALSE(begins(grammar, "{} "));
}

TEST(Recogniser, AReplyBeginsWithItsValue) {
  for (const Grammar& grammar : {Grammar::json_object(), Grammar::json_value(),
                                 Grammar::from_schema({{"type", "object"}})}) {
    EXPECT_TRUE(begins(grammar, "{"));
    EXPECT_TRUE(begins(grammar, " {"));
    EXPECT_FALSE(begins(grammar, "  "));
    EXPECT_FALSE(begins(grammar, "\n"));
    EXPECT_FALSE(begins(grammar, " \n"));
  }
}

TEST(Recogniser, LiteralsSequencesChoicesAndRepetitionsCombine) {
  const Grammar call = Grammar::sequence(std::array{
      Grammar::literal("<tool_call>\n{\"name\": \"f\", \"arguments\": "),
      schema_grammar(R"({"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]})"),
      Grammar::literal("}\n</tool_call>")});
  const Grammar calls = Grammar::repeat(call, Grammar::literal("\n"), 2);
  const std::string one =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1, \"y\": \"x\"}}\n</tool_call>";
  EXPECT_TRUE(accepts(call, one));
  EXPECT_TRUE(accepts(calls, one));
  EXPECT_TRUE(accepts(calls, one + "\n" + one));
  EXPECT_FALSE(begins(calls, one + "\n" + one + "\n"));
  EXPECT_FALSE(accepts(calls, one + "\n"));
  EXPECT_FALSE(begins(call, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1, \"x\""));
  const Grammar either =
      Grammar::choice(std::array{Grammar::literal("ab"), Grammar::literal("ac"), calls});
  EXPECT_TRUE(accepts(either, "ac"));
  EXPECT_TRUE(accepts(either, one));
  EXPECT_FALSE(accepts(either, "ad"));
  EXPECT_THROW(Grammar::literal(""), Error);
  EXPECT_THROW(Grammar::sequence({}), Error);
}

TEST(Recogniser, TakesRandomValidValuesAndNoInvalidOne) {
  SchemaMaker maker(18);
  int valid = 0;
  int invalid = 0;
  for (int i = 0; i < 4000; ++i) {
    const Json schema = maker.schema();
    std::optional<Grammar> grammar;
    try {
      grammar = Grammar::from_schema(schema);
    } catch (const Error&) {
      // Then nothing satisfies it.
      const auto value = maker.value(schema, schema);
      ASSERT_FALSE(value && oracle_valid(schema, schema, *value)) << schema << "\n" << *value;
      continue;
    }
    for (int k = 0; k < 4; ++k) {
      const auto value = maker.value(schema, schema);
      if (!value || !oracle_valid(schema, schema, *value)) continue;
      ++valid;
      ASSERT_TRUE(accepts(*grammar, value->dump())) << schema << "\n" << *value;
      ASSERT_TRUE(accepts(*grammar, value->dump(2))) << schema << "\n" << *value;
      const Json other = maker.changed(*value);
      const bool taken = accepts(*grammar, other.dump());
      const bool right = oracle_valid(schema, schema, other);
      if (!right) ++invalid;
      ASSERT_TRUE(!taken || right) << schema << "\n" << other;
    }
  }
  EXPECT_GT(valid, 4000);
  EXPECT_GT(invalid, 1000);
}

}  // namespace
}  // namespace lca::test
