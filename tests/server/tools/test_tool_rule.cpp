#include "formats/byte_files.h"
#include "server/tools/tool_rule.h"
#include "tool_cases.h"

#include <gtest/gtest.h>

namespace lca::server {
namespace {

using test::expect_error;
using RuleKind = OutputRule::Kind;

const OutputRule kRequired = {.kind = RuleKind::tool_required};
const ToolSpec kPlain = {.name = "f", .description = ""};
const ToolSpec kWeather = {
    .name = "get_weather",
    .description = "",
    .parameters = Json::parse(R"({"type": "object", "properties": {"city": {"$ref": "#/$defs/c"}},
                                  "required": ["city"], "$defs": {"c": {"type": "string"}}})")};

TEST(ToolRules, SayWhatStandsAroundTheArguments) {
  const ToolRule qwen =
      tool_rule(ToolFormat::qwen25, std::vector{kPlain, kWeather}, kRequired, true);
  ASSERT_EQ(qwen.calls.size(), 2U);
  EXPECT_EQ(qwen.calls[1].name, "get_weather");
  EXPECT_EQ(qwen.calls[1].before, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": ");
  EXPECT_EQ(qwen.calls[1].after, "}\n</tool_call>");
  EXPECT_EQ(qwen.separator, "\n");
  EXPECT_GT(qwen.most_calls, 1U);
  const ToolRule llama = tool_rule(ToolFormat::llama31, std::vector{kWeather}, kRequired, true);
  EXPECT_EQ(llama.calls[0].before, "{\"name\": \"get_weather\", \"parameters\": ");
  EXPECT_EQ(llama.calls[0].after, "}");
  EXPECT_EQ(llama.most_calls, 1U);
}

/// What is enforced is what the template writes for the same call.
TEST(ToolRules, AreTheTextOfTheGoldenCalls) {
  for (const test::ToolStyleCases& style : test::tool_style_cases()) {
    int seen = 0;
    for (const test::ToolCase& sample : style.cases) {
      if (sample.name != "parallel calls" && sample.name != "a call and its result") continue;
      const ToolRule rule =
          tool_rule(tool_format_detect(style.chat_template), sample.tools, kRequired, true);
      std::string text;
      for (const ToolCall& call : sample.messages[sample.messages.size() - 2].calls) {
        text += rule.calls[0].before + R"({"city": "Paris, France", "unit": "celsius"})" +
                rule.calls[0].after;
        (void)call;
      }
      if (sample.name == "a call and its result") {
        EXPECT_NE(sample.text.find(text), std::string::npos) << style.name << ": " << text;
        ++seen;
      } else if (rule.most_calls > 1) {
        EXPECT_NE(sample.text.find(rule.calls[0].after + rule.separator + rule.calls[0].before),
                  std::string::npos);
        ++seen;
      }
    }
    EXPECT_GE(seen, 1) << style.name;
  }
}

TEST(ToolRules, OfANamedToolHaveOneCallToIt) {
  const ToolRule rule = tool_rule(ToolFormat::qwen25, std::vector{kPlain, kWeather},
                                  {.kind = RuleKind::tool_named, .name = "f"}, true);
  ASSERT_EQ(rule.calls.size(), 1U);
  EXPECT_EQ(rule.calls[0].name, "f");
  EXPECT_EQ(rule.most_calls, 1U);
  EXPECT_EQ(tool_rule(ToolFormat::qwen25, std::vector{kPlain}, kRequired, false).most_calls, 1U);
}

TEST(ToolRules, OfOfferedToolsHoldStrictOnesAlone) {
  ToolSpec strict = kWeather;
  strict.strict = true;
  const std::vector both = {kWeather, strict};
  EXPECT_FALSE(tools_are_strict(std::vector{kPlain, kWeather}));
  EXPECT_TRUE(tools_are_strict(both));
  const ToolRule rule = tool_rule_offered(ToolFormat::qwen25, both, true);
  EXPECT_EQ(rule.calls.at(0).arguments, Json({{"type", "object"}}));
  EXPECT_TRUE(rule.calls.at(1).arguments.contains("properties"));
  EXPECT_GT(rule.most_calls, 1U);
  EXPECT_EQ(tool_rule_offered(ToolFormat::qwen25, both, false).most_calls, 1U);
}

TEST(ToolRules, MakeTheArgumentsAnObject) {
  const auto schema = [](const char* parameters) {
    ToolSpec tool = kPlain;
    tool.parameters = Json::parse(parameters);
    return tool_rule(ToolFormat::qwen25, std::vector{tool}, kRequired, true).calls[0].arguments;
  };
  const Json none = {
      {"type", "object"}, {"properties", Json::object()}, {"additionalProperties", false}};
  EXPECT_EQ(schema("null"), none);
  EXPECT_EQ(schema("{}"), none);
  EXPECT_EQ(schema(R"({"type": "object"})"), Json::parse(R"({"type": "object"})"));
  EXPECT_EQ(schema(R"({"properties": {"a": {}}})"),
            Json::parse(R"({"properties": {"a": {}}, "type": "object",
                            "additionalProperties": false})"));
  EXPECT_EQ(schema(R"({"type": "object", "properties": {}, "additionalProperties": true})"),
            Json::parse(R"({"type": "object", "properties": {}, "additionalProperties": true})"));
  EXPECT_EQ(schema(R"({"anyOf": [{}], "properties": {}})"),
            Json::parse(R"({"anyOf": [{}], "properties": {}, "type": "object"})"));
  for (const char* wrong : {"[]", "1", "\"object\"", "true", R"({"type": "string"})",
                            R"({"type": ["object", "null"]})"}) {
    expect_error([&] { schema(wrong); }, {"parameters of the tool f", "of type object"});
  }
}

TEST(ToolRules, ThatNoReplyCanFollowAreRefused) {
  const std::vector<ToolSpec> tools = {kPlain};
  const auto make = [&](ToolFormat format, std::vector<ToolSpec> given, OutputRule rule) {
    return [=] { tool_rule(format, given, rule, true); };
  };
  expect_error(make(ToolFormat::none, tools, kRequired), {"Qwen2.5's or Llama 3.1's"});
  expect_error(make(ToolFormat::qwen25, {}, kRequired), {"there are no tools"});
  expect_error(make(ToolFormat::qwen25, tools, {.kind = RuleKind::tool_named, .name = "g"}),
               {"names g", "not among the tools"});
  expect_error(make(ToolFormat::qwen25, tools, {}), {"needs none"}, ErrorKind::internal);
}

}  // namespace
}  // namespace lca::server
