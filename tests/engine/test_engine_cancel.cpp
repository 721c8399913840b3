// Requests that are cancelled, and steps that are stopped.

#include <gtest/gtest.h>

#include "engine/engine_bench.h"

namespace lca::test {
namespace {

TEST(EngineCancel, ARequestEndsCancelledInWhateverStateItIs) {
  EngineBench bench("llama", {.most_sessions = 2, .step_tokens = 2 + 16});
  const Wish wish = bench.wish(40, 20);
  const Generated expected = bench.alone(wish);
  std::vector<Outcome> outcomes(4);
  std::vector<RequestId> ids;
  for (Outcome& outcome : outcomes) ids.push_back(bench.submit(wish, outcome));
  bench.engine.step();
  // 0 reads, 1 is taken up or waits, 2 waits, 3 waits.
  EXPECT_TRUE(bench.engine.cancel(ids[3]));
  EXPECT_TRUE(bench.engine.cancel(ids[0]));
  EXPECT_EQ(outcomes[0].ends, 0) << "callbacks come from step";
  bench.engine.step();
  for (const std::size_t i : {0u, 3u}) {
    ASSERT_EQ(outcomes[i].ends, 1);
    const Generated& reply = outcomes[i].result->generated;
    EXPECT_EQ(reply.reason, StopReason::cancelled);
    EXPECT_TRUE(reply.tokens.empty());
    EXPECT_EQ(reply.prompt_tokens, 40);
    EXPECT_EQ(reply.read_tokens, i == 0 ? 16 : 0);
    EXPECT_FALSE(bench.engine.cancel(ids[i])) << "it is over";
  }
  while (outcomes[1].ids.size() < 5) ASSERT_TRUE(bench.engine.step());
  EXPECT_TRUE(bench.engine.cancel(ids[1]));
  bench.engine.step();
  ASSERT_EQ(outcomes[1].ends, 1);
  EXPECT_EQ(outcomes[1].result->generated.reason, StopReason::cancelled);
  EXPECT_EQ(outcomes[1].result->generated.tokens, outcomes[1].ids);
  bench.run_all();
  expect_same(outcomes[2], expected, "the one that was left");
}

TEST(EngineCancel, ARequestsOwnStopAndItsCallbacksCancelItToo) {
  EngineBench bench;
  std::vector<Outcome> outcomes(4);
  std::stop_source stop;
  Wish stopped = bench.wish(20, 30);
  stopped.generate.stop = stop.get_token();
  bench.submit(stopped, outcomes[0]);
  RequestCallbacks refusing = outcomes[1].callbacks();
  refusing.piece = [&](const GeneratePiece& piece) {
    outcomes[1].text += piece.text;
    outcomes[1].ids.insert(outcomes[1].ids.end(), piece.ids.begin(), piece.ids.end());
    return outcomes[1].ids.size() < 4;
  };
  bench.engine.submit(bench.request(bench.wish(20, 30)), refusing);
  Wish unread = bench.wish(60, 30);
  std::vector<std::int64_t> seen;
  unread.generate.progress = [&](PrefillProgress at) {
    EXPECT_EQ(at.total, 60);
    seen.push_back(at.done);
    return at.done < 32;
  };
  bench.submit(unread, outcomes[2]);
  RequestCallbacks cancelling = outcomes[3].callbacks();
  RequestId last = 0;
  cancelling.piece = [&](const GeneratePiece&) {
    EXPECT_TRUE(bench.engine.cancel(last)) << "from inside its own callback";
    return true;
  };
  last = bench.engine.submit(bench.request(bench.wish(20, 30)), cancelling);
  for (int i = 0; i < 4; ++i) bench.engine.step();
  stop.request_stop();
  bench.run_all();
  for (const Outcome& outcome : outcomes) {
    ASSERT_EQ(outcome.ends, 1);
    ASSERT_FALSE(outcome.error.has_value());
    EXPECT_EQ(outcome.result->generated.reason, StopReason::cancelled);
  }
  EXPECT_EQ(outcomes[1].result->generated.tokens.size(), 4u);
  EXPECT_EQ(outcomes[1].ids, outcomes[1].result->generated.tokens);
  EXPECT_EQ(seen, (std::vector<std::int64_t>{0, 16, 32}));
  EXPECT_EQ(outcomes[2].result->generated.read_tokens, 32);
  EXPECT_LE(outcomes[3].result->generated.tokens.size(), 2u);
}

TEST(EngineCancel, AStopOfTheStepLosesNothing) {
  EngineBench bench;
  std::vector<Wish> wishes = {bench.wish(20, 10), bench.wish(50, 10, 3), bench.wish(60, 10, 5)};
  wishes[2].settings = {prompt_settings()};
  std::vector<Outcome> outcomes(3);
  for (std::size_t i = 0; i < 3; ++i) bench.submit(wishes[i], outcomes[i]);
  std::stop_source stop;
  stop.request_stop();
  for (bool left = true; left;) {
    const std::int64_t steps = bench.engine.counts().steps;
    left = bench.engine.step(stop.get_token());
    EXPECT_TRUE(left);
    EXPECT_EQ(bench.engine.counts().steps, steps) << "it was undone";
    left = bench.engine.step();
  }
  for (std::size_t i = 0; i < 3; ++i) {
    expect_same(outcomes[i], bench.alone(wishes[i]), std::to_string(i));
  }
}

TEST(EngineCancel, APromptOfItsOwnStopsInsideItsStepWhenItIsCancelled) {
  EngineBench bench;
  const Wish other = bench.wish(20, 10);
  Outcome beside;
  Outcome outcome;
  bench.submit(other, beside);
  Wish wish = bench.wish(60, 10);
  wish.settings = {prompt_settings()};
  RequestId id = 0;
  std::int64_t reached = 0;
  wish.generate.progress = [&](PrefillProgress at) {
    reached = at.done;
    if (at.done > 20) bench.engine.cancel(id);
    return true;
  };
  id = bench.submit(wish, outcome);
  bench.run_all();
  ASSERT_EQ(outcome.ends, 1);
  EXPECT_EQ(outcome.result->generated.reason, StopReason::cancelled);
  EXPECT_EQ(outcome.result->generated.read_tokens, 0);
  EXPECT_LT(reached, 60);
  expect_same(beside, bench.alone(other), "beside it");
}

}  // namespace
}  // namespace lca::test
