// A run: prompts made ahead in another thread, scores, and what a results file had.

#include "apps/tiny_model.h"
#include "eval/ruler/ruler_parts.h"
#include "eval/ruler/run.h"

#include <gtest/gtest.h>

namespace lca::test {
namespace {

struct RulerRunBench {
  RulerRunBench() {
    plan.tasks = {eval::ruler_task_find("niah_multivalue"), eval::ruler_task_find("qa_2"),
                  eval::ruler_task_find("fwe")};
    plan.lengths = {2048, 4096};
    plan.samples = 4;
    plan.options = {0, 42, ruler_sources(), rule_measure()};
    const Tokenizer tokenizer = Tokenizer::open(tiny.write().path());
    chat.emplace(tokenizer, ChatTemplate(tokenizer, ChatFormat::chatml));
  }

  TinyModel tiny;
  eval::RulerPlan plan;
  std::optional<eval::ChatPrompt> chat;
};

eval::EvalReply reply_of(std::string text) {
  eval::EvalReply reply;
  reply.text = std::move(text);
  return reply;
}

TEST(ThreadsRulerRun, PromptsMadeAheadAreThoseMadeOneByOne) {
  RulerRunBench bench;
  eval::RulerPrompts prompts(bench.plan), alone(bench.plan);
  eval::RulerRun run(prompts, *bench.chat);
  ASSERT_EQ(run.left().size(), 24u);
  for (const std::size_t index : run.left()) {
    const eval::EvalPrompt made = run.make(index);
    const eval::RulerPrompt wanted = alone.at(index);
    EXPECT_EQ(made.ids, bench.chat->encode(wanted.sample.input, wanted.sample.prefix));
    EXPECT_EQ(made.max_tokens, wanted.max_tokens);
    // The first reference of each: all of one, any of several in qa.
    run.done(index, reply_of("It is " + wanted.sample.outputs[0]));
  }
  EXPECT_TRUE(run.left().empty());
  for (const eval::RulerRow& row : run.scores().rows()) {
    EXPECT_EQ(row.samples, 4u);
    EXPECT_NEAR(row.score, row.task == "qa_2" ? 100 : row.task == "fwe" ? 100.0 / 3 : 25, 1e-9);
  }
  const std::vector<eval::RulerMean> means = run.scores().means();
  ASSERT_EQ(means.size(), 2u);
  EXPECT_NEAR(means[0].score, (100 + 100.0 / 3 + 25) / 3, 1e-9);
}

TEST(ThreadsRulerRun, PromptsCanBeAskedForInAnyOrderAndLeftUnanswered) {
  RulerRunBench bench;
  eval::RulerPrompts prompts(bench.plan), alone(bench.plan);
  eval::RulerRun run(prompts, *bench.chat);
  for (const std::size_t index : {5u, 2u, 23u, 0u, 6u}) {
    const eval::RulerPrompt wanted = alone.at(index);
    EXPECT_EQ(run.make(index).ids, bench.chat->encode(wanted.sample.input, wanted.sample.prefix));
  }
  run.done(23, reply_of("nothing"));
  EXPECT_EQ(run.left().size(), 23u);
  EXPECT_EQ(run.scores().rows().back().samples, 1u);
  EXPECT_EQ(run.scores().rows().front().skipped, "interrupted");
}

}  // namespace
}  // namespace lca::test
