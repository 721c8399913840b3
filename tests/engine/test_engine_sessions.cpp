// Requests that bring a session along and get it back; threads.

#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "engine/engine_bench.h"

namespace lca::test {
namespace {

TEST(EngineSessions, AKeptSessionStandsWhereGenerateLeavesIt) {
  EngineBench bench;
  for (const Settings& settings : {small_settings(), prompt_settings(), dense_settings()}) {
    for (const bool greedy : {false, true}) {
      Wish wish = bench.wish(40, 12);
      wish.settings = {settings};
      if (greedy) wish.generate.sampling = {};
      Session twin = bench.session({settings}, EngineBench::kChunk);
      const Generated expected = generate_with(twin, tokenizer(), wish.prompt, wish.generate);
      Outcome outcome;
      Request request = bench.request(wish);
      request.keep_session = true;
      bench.engine.submit(std::move(request), outcome.callbacks());
      bench.run_all();
      expect_same(outcome, expected, "kept");
      ASSERT_TRUE(outcome.result->session.has_value());
      Session& session = *outcome.result->session;
      EXPECT_EQ(image(session), image(twin));
      EXPECT_EQ(session.prompt_end(), twin.prompt_end());
    }
  }
}

TEST(EngineSessions, AConversationContinuesInTheEngineAsInGenerate) {
  EngineBench bench;
  const auto all = bench.tokens(90);
  Session twin = bench.session({small_settings()}, EngineBench::kChunk);
  GenerateOptions options{.sampling = drawn(3), .max_tokens = 9};
  std::optional<Session> session;
  for (std::size_t turn = 0; turn < 4; ++turn) {
    // The third turn has no prompt: the reply goes on from the last logits.
    const auto prompt =
        turn == 2 ? std::span<const std::int32_t>() : std::span(all).subspan(20 * turn, 20 + turn);
    options.resumed = turn == 2;
    options.open = turn == 1;
    const Generated expected = generate_with(twin, tokenizer(), prompt, options);
    Request request;
    request.prompt.assign(prompt.begin(), prompt.end());
    request.options = {{small_settings()}, EngineBench::kChunk};
    request.session = std::move(session);
    request.keep_session = true;
    request.generate = options;
    Outcome outcome;
    bench.engine.submit(std::move(request), outcome.callbacks());
    bench.run_all();
    expect_same(outcome, expected, "turn " + std::to_string(turn));
    session = std::move(outcome.result->session);
    ASSERT_TRUE(session.has_value());
    EXPECT_EQ(logits_of(*session), logits_of(twin));
  }
}

TEST(EngineSessions, APromptThatSharesABeginningWithTheSessionIsReadFromThere) {
  EngineBench bench;
  const auto all = bench.tokens(70);
  Session twin = bench.session({small_settings()}, EngineBench::kChunk);
  twin.prefill(std::span(all).first(50));
  twin.mark();
  twin.prefill(bench.tokens(5, 99));
  Session held = twin.fork(twin.length());
  const std::int64_t kept = twin.keep_prefix(all);
  EXPECT_EQ(kept, 50);
  const Generated expected =
      generate_with(twin, tokenizer(), std::span(all).subspan(50), {.max_tokens = 6});
  Request request;
  request.prompt = all;
  request.session = std::move(held);
  request.keep_prefix = request.keep_session = true;
  request.generate.max_tokens = 6;
  Outcome outcome;
  bench.engine.submit(std::move(request), outcome.callbacks());
  bench.run_all();
  expect_same(outcome, expected, "kept prefix");
  EXPECT_EQ(outcome.result->generated.reused_tokens, 50);
  EXPECT_EQ(outcome.result->session->tokens(), twin.tokens());
  EXPECT_EQ(outcome.result->session->marks(), (std::vector<std::int64_t>{50}));
}

TEST(EngineSessions, APromptThatIsInTheSessionAlreadyIsNotRead) {
  EngineBench bench;
  const auto prompt = bench.tokens(30);
  Session held = bench.session({small_settings()}, EngineBench::kChunk);
  held.prefill(prompt);
  Wish wish = bench.wish(30, 5);
  Request request = bench.request(wish);
  request.session = std::move(held);
  request.keep_prefix = true;
  Outcome outcome;
  bench.engine.submit(std::move(request), outcome.callbacks());
  bench.run_all();
  ASSERT_EQ(outcome.ends, 1);
  EXPECT_EQ(outcome.result->generated.text, bench.alone(wish).text);
  EXPECT_EQ(outcome.result->generated.read_tokens, 0);
  EXPECT_EQ(outcome.result->generated.reused_tokens, 30);
  EXPECT_FALSE(outcome.result->session.has_value()) << "not asked for";
}

TEST(EngineSessions, ACancelledRequestHandsBackASessionThatTookItsTokens) {
  EngineBench bench;
  const Wish wish = bench.wish(20, 50);
  Request request = bench.request(wish);
  request.keep_session = true;
  Outcome outcome;
  const RequestId id = bench.engine.submit(std::move(request), outcome.callbacks());
  while (outcome.ids.size() < 6) ASSERT_TRUE(bench.engine.step());
  bench.engine.cancel(id);
  bench.run_all();
  ASSERT_EQ(outcome.ends, 1);
  EXPECT_EQ(outcome.result->generated.reason, StopReason::cancelled);
  EXPECT_EQ(outcome.result->generated.tokens, outcome.ids);
  EXPECT_EQ(outcome.result->session->tokens(), joined(wish.prompt, outcome.ids));
  EXPECT_FALSE(outcome.result->session->logits().empty());
}

TEST(EngineSessions, ALongChunkIsCutToWhatAStepHoldsAndTheSessionKeepsItsOwn) {
  EngineBench bench("llama", {.most_sessions = 4, .step_tokens = 4 + 10});
  Wish wish = bench.wish(45, 4);
  Request request = bench.request(wish);
  request.options.chunk = 1000;
  request.keep_session = true;
  Outcome outcome;
  bench.engine.submit(std::move(request), outcome.callbacks());
  while (bench.engine.step()) EXPECT_LE(bench.engine.counts().step_prefilled, 10);
  Session twin = bench.session(wish.settings, 10);
  expect_same(outcome, generate_with(twin, tokenizer(), wish.prompt, wish.generate), "cut");
}

TEST(EngineSessions, ALongRequestOfAnotherContextJoins) {
  EngineBench bench;
  Context other(1);
  Session held(bench.model, other, {{small_settings()}, EngineBench::kChunk});
  held.prefill(bench.tokens(30));
  Request request = bench.request(bench.wish(12, 5, 9));
  request.session = std::move(held);
  Outcome outcome;
  Outcome beside;
  bench.submit(bench.wish(20, 8), beside);
  bench.engine.submit(std::move(request), outcome.callbacks());
  bench.run_all();
  Session twin = bench.session({small_settings()}, EngineBench::kChunk);
  twin.prefill(bench.tokens(30));
  const Wish wish = bench.wish(12, 5, 9);
  expect_same(outcome, generate_with(twin, tokenizer(), wish.prompt, wish.generate), "joined");
}

// --- threads ------------------------------------------------------------------------------------

TEST(ThreadsEngine, TwoThreadsSubmitAndCancelWhileOneRuns) {
  EngineBench bench("llama", {.most_sessions = 4, .step_tokens = 4 + 16});
  constexpr std::size_t kEach = 12;
  std::vector<Wish> wishes;
  std::vector<Generated> expected;
  for (std::uint32_t i = 0; i < 2 * kEach; ++i) {
    wishes.push_back(bench.wish(5 + i, 4 + i % 3, i));
    expected.push_back(bench.alone(wishes.back()));
  }
  std::vector<Outcome> outcomes(2 * kEach);
  std::vector<char> cancelled(2 * kEach);
  std::latch all(2 * kEach);
  std::jthread runner([&](const std::stop_token& stop) { bench.engine.run(stop); });
  const auto submit = [&](std::size_t first) {
    for (std::size_t i = first; i < first + kEach; ++i) {
      RequestCallbacks callbacks = outcomes[i].callbacks();
      callbacks.finished = [&, i](RequestResult made) {
        ++outcomes[i].ends;
        outcomes[i].result = std::move(made);
        all.count_down();
      };
      const RequestId id = bench.engine.submit(bench.request(wishes[i]), callbacks);
      if (i % 5 == 0) cancelled[i] = bench.engine.cancel(id) ? 1 : 0;
      EXPECT_GE(bench.engine.counts().memory_limit, 1u);
      expect_error([&] { bench.engine.step(); }, {"stepping already"}, ErrorKind::busy);
    }
  };
  while (!bench.engine.state().stepping.test()) std::this_thread::yield();
  std::thread one([&] { submit(0); });
  std::thread two([&] { submit(kEach); });
  one.join();
  two.join();
  all.wait();
  runner.request_stop();
  runner.join();
  for (std::size_t i = 0; i < 2 * kEach; ++i) {
    if (cancelled[i] != 0) {
      EXPECT_EQ(outcomes[i].ends, 1);
    } else {
      expect_same(outcomes[i], expected[i], std::to_string(i));
    }
  }
  EXPECT_FALSE(bench.engine.step());
}

}  // namespace
}  // namespace lca::test
