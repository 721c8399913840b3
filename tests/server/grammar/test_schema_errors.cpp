// Schemas that are wrong, hostile, or ask for what is not implemented.

#include "server/grammar/grammar_support.h"
#include "server/grammar/schema_oracle.h"

#include "core/text.h"

#include <lca/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace lca::test {
namespace {

using server::Grammar;
using testing::HasSubstr;

/// The message of the error a schema gives; empty if it gives none. A message is one printable
/// line.
std::string schema_error(const Json& schema) {
  try {
    Grammar::from_schema(schema);
  } catch (const Error& error) {
    const std::string line = error.what();
    EXPECT_EQ(error.kind(), ErrorKind::bad_input) << line;
    EXPECT_EQ(text_printable(line, line.size()), line);
    EXPECT_LT(line.size(), 1200U);
    return line;
  }
  return "";
}

std::string text_error(std::string_view text) { return schema_error(Json::parse(text)); }

TEST(SchemaErrors, NameEveryKeywordThatIsNotImplementedAndItsPlace) {
  for (const char* keyword : {"pattern",
                              "format",
                              "minLength",
                              "exclusiveMinimum",
                              "exclusiveMaximum",
                              "multipleOf",
                              "uniqueItems",
                              "contains",
                              "prefixItems",
                              "additionalItems",
                              "patternProperties",
                              "propertyNames",
                              "minProperties",
                              "maxProperties",
                              "dependentRequired",
                              "allOf",
                              "oneOf",
                              "not",
                              "if",
                              "then",
                              "else",
                              "$id",
                              "$anchor",
                              "$dynamicRef",
                              "definitions",
                              "unevaluatedProperties",
                              "nonsense",
                              "Type",
                              ""}) {
    const std::string at_root = schema_error(Json{{keyword, 1}});
    EXPECT_THAT(at_root, HasSubstr("'" + std::string(keyword) + "' at # "));
    for (const Json& inner : {Json{{keyword, true}}}) {
      EXPECT_THAT(schema_error(Json{{"properties", {{"a/b", {{"items", inner}}}}}}),
                  HasSubstr("'" + std::string(keyword) + "' at #/properties/a~1b/items "));
      EXPECT_THAT(schema_error(Json{{"type", "string"}, {"additionalProperties", inner}}),
                  HasSubstr("at #/additionalProperties "));
      EXPECT_THAT(schema_error(Json{{"enum", {1}}, {"items", inner}}), HasSubstr("at #/items "));
      EXPECT_THAT(schema_error(Json{{"anyOf", {true, inner}}}), HasSubstr("at #/anyOf/1 "));
      EXPECT_THAT(schema_error(Json{{"anyOf", {true, inner}}, {"type", "null"}}),
                  HasSubstr("at #/anyOf/1 "));
      EXPECT_THAT(schema_error(Json{{"$defs", {{"unused", inner}}}}),
                  HasSubstr("at #/$defs/unused "));
    }
  }
}

TEST(SchemaErrors, AnnotationsHaveNoEffect) {
  const Json schema = Json::parse(
      R"({"$schema":"x","title":"t","description":"d","default":3,"examples":[1],"$comment":"c",
      "deprecated":true,"readOnly":true,"writeOnly":false,"type":"integer"})");
  EXPECT_TRUE(accepts(Grammar::from_schema(schema), "7"));
}

TEST(SchemaErrors, SayWhatAKeywordsValueMustBe) {
  for (const char* text : {R"({"type":"text"})",
                           R"({"type":3})",
                           R"({"type":[3]})",
                           R"({"properties":[]})",
                           R"({"properties":{"a":1}})",
                           R"({"required":"a"})",
                           R"({"required":[1]})",
                           R"({"enum":1})",
                           R"({"minItems":-1})",
                           R"({"maxItems":"3"})",
                           R"({"maxItems":1.5})",
                           R"({"maxLength":null})",
                           R"({"type":"integer","minimum":"1"})",
                           R"({"type":"integer","minimum":1.5})",
                           R"({"type":"number","minimum":1})",
                           R"({"maximum":1})",
                           R"({"anyOf":{}})",
                           R"({"anyOf":[]})",
                           R"({"anyOf":[1]})",
                           R"({"$ref":1})",
                           R"({"$ref":"http://x"})",
                           R"({"$ref":"#/$defs/none"})",
                           R"({"$ref":"#/"})",
                           R"({"$defs":1})",
                           R"({"items":[true]})",
                           R"({"additionalProperties":1})",
                           "1",
                           "null",
                           "[]",
                           R"({"required":["a"],"type":"object","additionalProperties":false})"}) {
    EXPECT_NE(text_error(text), "") << text;
  }
}

TEST(SchemaErrors, NothingSatisfiesIsAnError) {
  for (const char* text :
       {"false", R"({"enum":[]})", R"({"type":"string","enum":[1]})",
        R"({"type":"array","minItems":2,"maxItems":1})",
        R"({"type":"integer","minimum":3,"maximum":2})", R"({"type":"integer","minimum":1e25})",
        R"({"$ref":"#"})",
        R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})",
        R"({"anyOf":[{"$ref":"#"},{"$ref":"#"}]})",
        R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})",
        R"({"type":"array","items":{"$ref":"#"},"minItems":1})", R"({"type":[]})",
        R"({"const":1,"enum":[2]})",
        R"({"$ref":"#/$defs/s","type":"null","$defs":{"s":{"type":"string"}}})"}) {
    EXPECT_THAT(text_error(text), HasSubstr("no finite value")) << text;
  }
  EXPECT_THAT(text_error(R"({"type":"object","properties":{"a":{"enum":[]}},"required":["a"]})"),
              HasSubstr("#/properties/a"));
}

TEST(SchemaErrors, WhatNothingSatisfiesIsLeftOutWhereItIsOptional) {
  const Grammar grammar = schema_grammar(
      R"({"type":"object","properties":{"a":false,"b":{"type":"null"}},"additionalProperties":false})");
  EXPECT_FALSE(begins(grammar, "{\"a"));
  EXPECT_TRUE(accepts(grammar, R"({"b":null})"));
  const Grammar tree = schema_grammar(R"({"type":"array","items":{"$ref":"#"}})");
  EXPECT_TRUE(accepts(tree, "[[],[[]]]"));
}

/// Runs in bounded time: a schema is judged within a second even where tests are slow.
void expect_quick(const Json& schema, bool refused) {
  const auto start = std::chrono::steady_clock::now();
  const std::string message = schema_error(schema);
  EXPECT_EQ(!message.empty(), refused) << message;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(SchemaErrors, HostileSchemasEndInALineAndSoon) {
  Json deep = Json::object();
  for (int i = 0; i < 1000; ++i) deep = Json{{"items", std::move(deep)}};
  expect_quick(deep, true);
  Json deep_value = 1;
  for (int i = 0; i < 1000; ++i) deep_value = Json::array({std::move(deep_value)});
  expect_quick(Json{{"const", deep_value}}, true);

  Json large = Json::array();
  for (int i = 0; i < 40'000; ++i) large.push_back("value " + std::to_string(i * 7919));
  expect_quick(Json{{"enum", large}}, false);
  for (int i = 0; i < 70'000; ++i) large.push_back(i);
  expect_quick(Json{{"enum", large}}, true);
  expect_quick(Json{{"const", std::string(3'000'000, 'x')}}, true);
  expect_quick(Json{{"properties", {{std::string(3'000'000, 'x'), true}}}}, true);

  Json many = Json::array();
  for (int i = 0; i < 5000; ++i) many.push_back(Json{{"maxLength", i}});
  expect_quick(Json{{"anyOf", many}}, true);
  // Each alternative copies what stands beside anyOf.
  expect_quick(Json{{"anyOf", Json(std::vector<Json>(900, Json{{"type", "array"}}))},
                    {"enum", Json(std::vector<int>(90'000, 1))}},
               true);
  // Lists that are combined a thousand times and have one value in common.
  const auto values = [](int from, int count) {
    Json list = Json::array();
    for (int i = from; i < from + count; ++i) {
      list.push_back(i % 2 == 0 ? Json(i) : Json("value " + std::to_string(i)));
    }
    return list;
  };
  expect_quick(Json{{"enum", values(0, 5'000)},
                    {"anyOf", Json(std::vector<Json>(1000, Json{{"enum", values(4'999, 60)}}))}},
               false);

  // A reference that is combined with itself again and again.
  expect_quick(Json::parse(R"({"$ref":"#","type":"string"})"), true);
  expect_quick(Json::parse(R"({"anyOf":[{"$ref":"#"},{"$ref":"#"}],"type":"string"})"), true);

  // A chain of definitions, each of which needs the next twice.
  Json chain = Json{{"$ref", "#/$defs/d0"}, {"$defs", Json::object()}};
  for (int i = 0; i < 1000; ++i) {
    const Json next{{"$ref", "#/$defs/d" + std::to_string(i + 1)}};
    chain["$defs"]["d" + std::to_string(i)] = Json{
        {"type", "object"}, {"properties", {{"a", next}, {"b", next}}}, {"required", {"a", "b"}}};
  }
  chain["$defs"]["d1000"] = true;
  expect_quick(chain, true);
}

TEST(SchemaErrors, TextIsCountedTooAndEachTimeItIsCopied) {
  const auto text = [](std::size_t bytes) { return std::string(bytes, 'x'); };
  for (const Json& schema :
       {Json{{"const", text(2'000'000)}}, Json{{"description", text(2'000'000)}},
        Json{{"properties", {{text(2'000'000), true}}}},
        Json{{"enum", {text(600'000), text(600'000)}}}}) {
    EXPECT_THAT(schema_error(schema), HasSubstr("bytes together"));
  }
  EXPECT_EQ(schema_error({{"type", "null"}, {"description", text(1'000'000)}}), "");
  // Each alternative copies the text beside anyOf.
  const Json choices(std::vector<Json>(900, Json{{"type", "string"}}));
  EXPECT_THAT(schema_error({{"enum", {text(100'000)}}, {"anyOf", choices}}),
              HasSubstr("too large once"));
}

TEST(SchemaErrors, WhatIsReadToCombineListsIsBounded) {
  Json values = Json::array();
  for (int i = 0; i < 90'000; ++i) values.push_back(i);
  const Json choices(std::vector<Json>(900, Json{{"enum", {0}}}));
  EXPECT_THAT(schema_error({{"enum", values}, {"anyOf", choices}}), HasSubstr("too large once"));
}

TEST(SchemaErrors, LongListsOfValuesAreCombined) {
  Json first = Json::array(), second = Json::array();
  for (int i = 0; i < 500; ++i) {
    first.push_back(i);
    first.push_back({{"k", {i, i + 1}}});
    second.push_back(500.0 - i);
    second.push_back({{"k", {i + 1, i + 2}}});
  }
  const Grammar grammar =
      Grammar::from_schema(Json{{"enum", first}, {"anyOf", {Json{{"enum", second}}}}});
  for (const char* in : {"1", "499", R"({"k":[1,2]})", R"({"k":[499,500]})"}) {
    EXPECT_TRUE(accepts(grammar, in)) << in;
  }
  for (const char* out : {"0", "500", R"({"k":[0,1]})", R"({"k":[500,501]})", R"({"k":[2,1]})"}) {
    EXPECT_FALSE(accepts(grammar, out)) << out;
  }
}

TEST(SchemaErrors, LargeCountsCostNothing) {
  expect_quick(
      Json::parse(
          R"({"type":"array","maxItems":4000000000,"minItems":3000000000,"items":{"type":"string","maxLength":99999999999}})"),
      false);
  const Grammar grammar = schema_grammar(R"({"type":"string","maxLength":1000000})");
  EXPECT_LT(grammar.states(), Grammar::json_value().states() + 10);
}

TEST(SchemaErrors, TextThatIsNotUtf8IsRefused) {
  EXPECT_THAT(schema_error(Json{{"const", "\xff"}}), HasSubstr("UTF-8"));
  EXPECT_THAT(schema_error(Json{{"properties", {{"\xff", true}}}}), HasSubstr("UTF-8"));
}

}  // namespace
}  // namespace lca::test
