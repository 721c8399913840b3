#include "formats/byte_files.h"
#include "server/tools/tool_grammar.h"
#include "server/tools/tool_reader.h"

#include <gtest/gtest.h>

namespace lca::server {
namespace {

using test::expect_error;

const std::vector<ToolSpec> kTools = {
    {.name = "stop", .description = ""},
    {.name = "get_weather",
     .description = "",
     .parameters = Json::parse(R"({"type": "object", "required": ["city"], "properties": {
         "city": {"$ref": "#/$defs/city"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
         "$defs": {"city": {"type": "string", "maxLength": 9}}})")}};

Grammar grammar(ToolFormat format, const std::string& name = {}, bool is_parallel = true) {
  OutputRule rule;
  rule.kind = name.empty() ? OutputRule::Kind::tool_required : OutputRule::Kind::tool_named;
  rule.name = name;
  return tool_grammar(tool_rule(format, kTools, rule, is_parallel));
}

/// "whole", "part" (more must follow) or "no".
std::string judged(const Grammar& grammar, std::string_view text) {
  GrammarState state = grammar.start();
  if (!state.advance(text)) return "no";
  return state.may_end() ? "whole" : "part";
}

const std::string kParis =
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";
const std::string kStop = "<tool_call>\n{\"name\": \"stop\", \"arguments\": {}}\n</tool_call>";

TEST(ToolGrammars, DemandACall) {
  const Grammar qwen = grammar(ToolFormat::qwen25);
  EXPECT_EQ(judged(qwen, ""), "part");
  EXPECT_EQ(judged(qwen, "Hello"), "no");
  EXPECT_EQ(judged(qwen, kParis), "whole");
  EXPECT_EQ(judged(qwen, kStop), "whole");
  EXPECT_EQ(judged(qwen, kParis.substr(0, kParis.size() - 1)), "part");
  EXPECT_EQ(judged(qwen, "<tool_call>\n{\"name\": \"other"), "no");
  EXPECT_EQ(judged(qwen, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}"), "no");
  EXPECT_EQ(judged(qwen, "<tool_call>\n{\"name\": \"stop\", \"arguments\": {\"a\""), "no");
  const Grammar llama = grammar(ToolFormat::llama31);
  EXPECT_EQ(judged(llama,
                   R"({"name": "get_weather", "parameters": {"city": "Oslo", "unit": "celsius"}})"),
            "whole");
  EXPECT_EQ(judged(llama, R"({"name": "get_weather", "parameters": {"city": "more than nine")"),
            "no");
  EXPECT_EQ(judged(llama, "Sure"), "no");
}

TEST(ToolGrammars, AllowSeveralCallsWhereTheFormatHasThem) {
  EXPECT_EQ(judged(grammar(ToolFormat::qwen25), kParis + "\n" + kStop + "\n" + kParis), "whole");
  EXPECT_EQ(judged(grammar(ToolFormat::qwen25), kParis + kStop), "no");
  EXPECT_EQ(judged(grammar(ToolFormat::qwen25), kParis + "\nDone"), "no");
  EXPECT_EQ(judged(grammar(ToolFormat::qwen25, "", false), kParis + "\n"), "no");
  std::string most = kStop;
  for (int i = 1; i < 16; ++i) most += "\n" + kStop;
  EXPECT_EQ(judged(grammar(ToolFormat::qwen25), most), "whole");
  EXPECT_EQ(judged(grammar(ToolFormat::qwen25), most + "\n"), "no");
}

TEST(ToolGrammars, OfANamedToolAllowNoOther) {
  EXPECT_EQ(judged(grammar(ToolFormat::qwen25, "stop"), kStop), "whole");
  EXPECT_EQ(judged(grammar(ToolFormat::qwen25, "stop"), kStop + "\n"), "no");
  EXPECT_EQ(judged(grammar(ToolFormat::qwen25, "stop"), kParis), "no");
}

/// Follows the grammar with random bytes wherever it leaves a choice.
TEST(ToolGrammars, RepliesOfThemAreReadAsCalls) {
  for (const ToolFormat format : {ToolFormat::qwen25, ToolFormat::llama31}) {
    for (unsigned seed = 0; seed < 30; ++seed) {
      const Grammar rule = grammar(format);
      GrammarState state = rule.start();
      std::string text;
      unsigned random = seed * 7919 + 1;
      while (!state.must_end() && text.size() < 20000) {
        if (state.may_end() && seed % 3 == 0) break;
        std::vector<char> next;
        for (int c = 1; c < 128; ++c) {
          GrammarState tried = state;
          const char byte = static_cast<char>(c);
          if (tried.advance({&byte, 1})) next.push_back(byte);
        }
        ASSERT_FALSE(next.empty()) << text;
        random = random * 1664525U + 1013904223U;
        const char byte = next[(random >> 16) % next.size()];
        ASSERT_TRUE(state.advance({&byte, 1}));
        text += byte;
      }
      ASSERT_TRUE(state.may_end()) << text;
      ToolReader reader(format, {"stop", "get_weather"}, "");
      std::vector<ReplyPart> parts = reader.push(text);
      for (ReplyPart& part : reader.finish()) parts.push_back(std::move(part));
      for (const ReplyPart& part : parts) {
        ASSERT_TRUE(part.call) << text;
        EXPECT_TRUE(Json::parse(part.call->arguments).is_object());
      }
      EXPECT_GE(parts.size(), 1U);
    }
  }
}

TEST(ToolGrammars, OfSchemasThatAreTooLargeTogetherAreNotMade) {
  const auto rule_of = [](const Json& property) {
    ToolRule rule;
    for (int i = 0; i < 6; ++i) {
      rule.calls.push_back({.name = "g" + std::to_string(i),
                            .before = "x",
                            .arguments = {{"type", "object"}, {"properties", {{"p", property}}}},
                            .after = "y"});
    }
    return rule;
  };
  const std::string text(std::size_t{180} << 10, 'x');
  expect_error([&] { tool_grammar(rule_of({{"description", text}})); }, {"too large together"});
  const Json values = Json::array({text.substr(0, 60'000)});
  expect_error([&] { tool_grammar(rule_of({{"enum", values}})); }, {"too large together"});
  EXPECT_NO_THROW(tool_grammar(rule_of({{"description", text.substr(0, 1000)}})));
}

TEST(ToolGrammars, NameTheToolWhoseSchemaCannotBeEnforced) {
  ToolRule rule;
  rule.calls.push_back({.name = "g",
                        .before = "x",
                        .arguments = {{"type", "object"}, {"patternProperties", Json::object()}},
                        .after = "y"});
  expect_error([&] { tool_grammar(rule); }, {"tool g", "patternProperties"});
}

}  // namespace
}  // namespace lca::server
