// Calls that nobody demands follow the schemas of strict tools, whatever the model would write.

#include "server/app/constraint.h"
#include "server/tools/tool_grammar.h"
#include "server/tools/tool_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace lca::server {
namespace {

constexpr std::int32_t kEnd = 0;

std::vector<ToolSpec> tools(bool strict) {
  const Json city = {{"type", "string"}, {"maxLength", 4}};
  return {
      {.name = "get",
       .description = "",
       .parameters = {{"type", "object"}, {"properties", {{"city", city}}}, {"required", {"city"}}},
       .strict = strict}};
}

/// A model that wants to write `wish` and, once it may not, writes what comes.
std::string written(ToolFormat format, bool strict, std::string_view wish, unsigned seed) {
  const Tokenizer tokenizer = Tokenizer::open(LCA_SOURCE_DIR "/tests/golden/tokenizers/qwen2.json");
  const TokenMask mask(tokenizer);
  const Grammar calls = tool_grammar(tool_rule_offered(format, tools(strict), false));
  auto adjust = constraint_make(calls, mask, tokenizer, {kEnd}, 0, ToolWatch(format));
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(0.0F, 1.0F);
  std::vector<std::int32_t> tokens;
  std::string text;
  while (tokens.size() < 300) {
    const std::string_view rest =
        wish.starts_with(text) ? wish.substr(text.size()) : std::string_view();
    std::vector<float> logits(static_cast<std::size_t>(tokenizer.size()));
    for (std::size_t id = 0; id < logits.size(); ++id) {
      logits[id] = uniform(random);
      const std::string_view bytes = tokenizer.bytes(static_cast<std::int32_t>(id));
      if (!bytes.empty() && rest.starts_with(bytes)) {
        logits[id] += 2.0F + static_cast<float>(bytes.size());
      }
    }
    if (rest.empty()) logits[kEnd] += 2.0F;
    adjust(tokens, logits);
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    if (best == kEnd) return text;
    tokens.push_back(static_cast<std::int32_t>(best));
    text += tokenizer.bytes(tokens.back());
  }
  return text + " [no end]";
}

std::vector<ReplyPart> read(ToolFormat format, const std::string& text) {
  ToolReader reader(format, {"get"}, "");
  std::vector<ReplyPart> parts = reader.push(text);
  for (ReplyPart& part : reader.finish()) parts.push_back(std::move(part));
  return parts;
}

/// A call with a wrong argument as a model writes it.
std::string wish_of(ToolFormat format, std::string_view before) {
  return std::string(before) +
         (format == ToolFormat::qwen25
              ? "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": 5}}\n</tool_call>"
              : "{\"name\": \"get\", \"parameters\": {\"city\": 5}}");
}

TEST(CallsConstraint, HoldsCallsOfStrictToolsToTheirSchema) {
  for (const ToolFormat format : {ToolFormat::qwen25, ToolFormat::llama31}) {
    const std::string before = format == ToolFormat::qwen25 ? "Look:\n" : "\n";
    for (unsigned seed = 0; seed < 8; ++seed) {
      const std::string text = written(format, true, wish_of(format, before), seed);
      const std::vector<ReplyPart> parts = read(format, text);
      ASSERT_FALSE(parts.empty()) << text;
      ASSERT_TRUE(parts.back().call) << text;
      const Json arguments = Json::parse(parts.back().call->arguments);
      EXPECT_TRUE(arguments.at("city").is_string()) << text;
      EXPECT_EQ(arguments.size(), 1U) << text;
    }
  }
}

TEST(CallsConstraint, LeavesOtherToolsTheirArguments) {
  for (const ToolFormat format : {ToolFormat::qwen25, ToolFormat::llama31}) {
    const std::string wish = wish_of(format, "");
    EXPECT_EQ(written(format, false, wish, 1), wish);
  }
}

TEST(CallsConstraint, LeavesTextAlone) {
  for (const ToolFormat format : {ToolFormat::qwen25, ToolFormat::llama31}) {
    const std::string wish = "If a < b <tool and [1], write {\"name\": \"get\"} or <tools>.";
    EXPECT_EQ(written(format, true, wish, 1), wish);
  }
}

TEST(CallsConstraint, RefusesListsThatWouldBeReadAsCalls) {
  const std::string text =
      written(ToolFormat::llama31, true, "[{\"name\": \"get\", \"parameters\": {}}]", 1);
  EXPECT_FALSE(text.starts_with("[")) << text;
}

TEST(CallsConstraint, ReadsAgainAfterAStepIsUndone) {
  const Tokenizer tokenizer = Tokenizer::open(LCA_SOURCE_DIR "/tests/golden/tokenizers/qwen2.json");
  const TokenMask mask(tokenizer);
  const Grammar calls = tool_grammar(tool_rule_offered(ToolFormat::qwen25, tools(true), false));
  auto adjust = constraint_make(calls, mask, tokenizer, {kEnd}, 0, ToolWatch(ToolFormat::qwen25));
  std::vector<std::int32_t> tokens = tokenizer.encode("a <tool_call>");
  std::vector<float> logits(static_cast<std::size_t>(tokenizer.size()), 0.0F);
  adjust(tokens, logits);
  EXPECT_LT(std::count(logits.begin(), logits.end(), 0.0F), 10);  // a line break has to follow
  tokens.resize(1);
  std::fill(logits.begin(), logits.end(), 0.0F);
  adjust(tokens, logits);
  EXPECT_GT(std::count(logits.begin(), logits.end(), 0.0F), tokenizer.size() / 2);
}

}  // namespace
}  // namespace lca::server
