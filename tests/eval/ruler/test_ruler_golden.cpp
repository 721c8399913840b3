// Prompts are, byte for byte, those of RULER's own scripts (tests/golden/make_ruler.py).

#include "eval/ruler/ruler_parts.h"

#include <gtest/gtest.h>

#include <fstream>

namespace lca::test {
namespace {

TEST(RulerGolden, PromptsAreThoseOfRulersOwnScripts) {
  std::ifstream file(ruler_golden("prompts.json"));
  const auto cases = nlohmann::json::parse(file);
  ASSERT_GT(cases.size(), 20u);
  eval::RulerMakerOptions options{0, 0, ruler_sources(), rule_measure()};
  for (const auto& each : cases) {
    const auto name = each["task"].get<std::string>();
    options.length = each["length"];
    options.seed = each["seed"];
    SCOPED_TRACE(name + " at " + std::to_string(options.length));
    const eval::RulerCell cell = eval::ruler_cell(*eval::ruler_task_find(name), options);
    ASSERT_NE(cell.maker, nullptr) << cell.skipped;
    for (const auto& wanted : each["samples"]) {
      const auto sample = cell.maker->next();
      ASSERT_TRUE(sample);
      EXPECT_EQ(eval::text_hash(sample->input), wanted["input"]);
      EXPECT_EQ(eval::text_hash(sample->prefix), wanted["prefix"]);
      std::string outputs;
      for (const std::string& output : sample->outputs) {
        outputs += (outputs.empty() ? "" : "\n") + output;
      }
      EXPECT_EQ(eval::text_hash(outputs), wanted["outputs"]);
      EXPECT_EQ(sample->tokens, wanted["tokens"]);
    }
  }
}

}  // namespace
}  // namespace lca::test
