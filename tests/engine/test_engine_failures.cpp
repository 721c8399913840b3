// Memory and errors in the engine: what waits, what is refused, and who fails.

#include <gtest/gtest.h>

#include <stdexcept>

#include "engine/engine_bench.h"
#include "support/allocation_count.h"

namespace lca::test {
namespace {

/// The memory that a request needs in an engine of these options.
RequestNeed need_of(const Wish& wish, const EngineOptions& options) {
  EngineBench measured("llama", options);
  Outcome outcome;
  measured.submit(wish, outcome);
  measured.engine.step();
  return measured.engine.state().admitted.front().need;
}

TEST(EngineMemory, WhatDoesNotFitWaitsUntilMemoryIsFree) {
  const EngineOptions plenty{.most_sessions = 8, .step_tokens = 8 + 16};
  EngineBench probe("llama", plenty);
  const Wish large = probe.wish(200, 20);
  const Wish small = probe.wish(20, 5, 3);
  const RequestNeed need = need_of(large, plenty);
  EngineOptions tight = plenty;
  tight.memory_bytes = need.work + 2 * need.session - 1;
  EngineBench bench("llama", tight);
  std::vector<Outcome> outcomes(3);
  bench.submit(large, outcomes[0]);
  bench.submit(large, outcomes[1]);
  bench.submit(small, outcomes[2]);
  std::vector<std::size_t> ended;
  bool waited = false;
  for (bool left = true; left;) {
    left = bench.engine.step();
    const EngineCounts counts = bench.engine.counts();
    EXPECT_LE(counts.memory_reserved, tight.memory_bytes);
    if (!outcomes[0].is_over()) {
      waited = true;
      EXPECT_EQ(counts.waiting, 2) << "the small one does not overtake";
    }
    for (std::size_t i = 0; i < 3; ++i) {
      if (outcomes[i].is_over() && std::ranges::find(ended, i) == ended.end()) ended.push_back(i);
    }
  }
  EXPECT_TRUE(waited);
  EXPECT_EQ(ended.front(), 0u);
  expect_same(outcomes[0], probe.alone(large), "first");
  expect_same(outcomes[1], probe.alone(large), "second");
  expect_same(outcomes[2], probe.alone(small), "third");
}

TEST(EngineMemory, WhatCanNeverFitIsRefusedWithTheLongestThatDoes) {
  const EngineOptions plenty{.most_sessions = 8, .step_tokens = 8 + 16};
  EngineBench probe("llama", plenty);
  EngineOptions tight = plenty;
  const RequestNeed need = need_of(probe.wish(100, 20), plenty);
  tight.memory_bytes = need.work + need.session;
  EngineBench bench("llama", tight);
  Outcome outcome;
  bench.submit(bench.wish(100, 20), outcome);
  Wish wish = bench.wish(100, 4000);
  wish.settings = {dense_settings()};
  expect_error([&] { bench.submit(wish, outcome); }, {"4100 tokens", "MiB", "tokens fit"},
               ErrorKind::out_of_memory);
  wish.generate.max_tokens = INT64_MAX;
  expect_error([&] { bench.submit(wish, outcome); }, {"tokens fit"}, ErrorKind::out_of_memory);
  bench.run_all();
  EXPECT_EQ(outcome.ends, 1);
}

// The reserved memory covers what sessions come to hold.
TEST(EngineMemory, NoSessionHoldsMoreThanWasReserved) {
  EngineBench bench("llama", {.most_sessions = 8, .step_tokens = 8 + 64});
  Settings entry = small_settings();
  entry.positions = Positions::entry;
  for (const Settings& settings :
       {small_settings(), dense_settings(), small_settings(MethodKind::window), entry}) {
    Wish wish = bench.wish(300, 200);
    wish.settings = {settings};
    Request request = bench.request(wish);
    request.options.chunk = 64;
    Outcome outcome;
    bench.engine.submit(std::move(request), outcome.callbacks());
    while (bench.engine.step()) {
      const EngineItem& item = bench.engine.state().admitted.front();
      const Memory memory = item.request.session->memory();
      EXPECT_LE(memory.caches + memory.shared + memory.spare, item.need.session);
      EXPECT_LE(memory.activations + memory.scratch, item.need.work);
    }
  }
}

TEST(EngineFailures, AHookOrCallbackThatThrowsEndsItsRequestAlone) {
  EngineBench bench;
  const Wish healthy = bench.wish(40, 20);
  std::vector<Outcome> good(3);
  std::vector<Outcome> bad(5);
  std::vector<RequestCallbacks> callbacks;
  for (Outcome& outcome : bad) callbacks.push_back(outcome.callbacks());
  Wish hooked = bench.wish(30, 20, 3);
  hooked.generate.adjust = [](std::span<const std::int32_t> tokens, std::span<float>) {
    if (tokens.size() > 35) throw std::runtime_error("the hook gave up");
  };
  callbacks[1].piece = [&](const GeneratePiece&) -> bool { throw 7; };
  callbacks[2].finished = [&](RequestResult) { throw std::runtime_error("nobody is there"); };
  Wish watched = bench.wish(60, 20, 4);
  watched.generate.progress = [](PrefillProgress at) -> bool {
    if (at.done > 20) throw Error(ErrorKind::io, "the line is cut");
    return true;
  };
  callbacks[4].piece = [&](const GeneratePiece&) -> bool { throw std::bad_alloc(); };
  callbacks[4].failed = [&](const Error& error, RequestResult) {
    ++bad[4].ends;
    bad[4].error = error;
    throw std::runtime_error("ignored");
  };
  bench.submit(healthy, good[0]);
  Request kept = bench.request(hooked);
  kept.keep_session = true;
  bench.engine.submit(std::move(kept), callbacks[0]);
  bench.engine.submit(bench.request(healthy), callbacks[1]);
  bench.submit(healthy, good[1]);
  bench.engine.submit(bench.request(bench.wish(10, 3)), callbacks[2]);
  bench.engine.submit(bench.request(watched), callbacks[3]);
  bench.engine.submit(bench.request(healthy), callbacks[4]);
  bench.submit(healthy, good[2]);
  bench.run_all();
  for (const Outcome& outcome : good) expect_same(outcome, bench.alone(healthy), "the others");
  const auto expect_failed = [&](std::size_t i, ErrorKind kind, const std::string& what) {
    ASSERT_EQ(bad[i].ends, 1) << i;
    ASSERT_TRUE(bad[i].error.has_value()) << i;
    EXPECT_EQ(bad[i].error->kind(), kind) << i;
    EXPECT_NE(std::string(bad[i].error->what()).find(what), std::string::npos)
        << bad[i].error->what();
  };
  expect_failed(0, ErrorKind::bad_input, "the hook gave up");
  expect_failed(1, ErrorKind::bad_input, "threw");
  expect_failed(2, ErrorKind::bad_input, "nobody is there");
  expect_failed(3, ErrorKind::io, "the line is cut");
  expect_failed(4, ErrorKind::out_of_memory, "memory");
  // The session comes back and can go on.
  ASSERT_TRUE(bad[0].result->session.has_value());
  EXPECT_EQ(bad[0].result->session->length(), 36);
  EXPECT_EQ(bad[0].result->generated.tokens.size(), 6u);
  bad[0].result->session->decode(1);
  const EngineCounts counts = bench.engine.counts();
  EXPECT_EQ(counts.failed, 5);
  EXPECT_EQ(counts.finished, 3);
}

TEST(EngineFailures, AHookThatThrowsCancelledCancels) {
  EngineBench bench;
  Wish wish = bench.wish(20, 20);
  wish.generate.adjust = [](std::span<const std::int32_t> tokens, std::span<float>) {
    if (tokens.size() > 25) throw Error(ErrorKind::cancelled, "enough");
  };
  Outcome outcome;
  bench.submit(wish, outcome);
  bench.run_all();
  expect_same(outcome, bench.alone(wish), "cancelled");
  EXPECT_EQ(outcome.result->generated.reason, StopReason::cancelled);
}

// Whatever allocation of whatever step fails: requests that end well have their text, and the
// engine goes on.
TEST(EngineFailures, EveryAllocationOfAStepMayFail) {
  if (!allocations_are_counted()) GTEST_SKIP() << "sanitizers have allocators of their own";
  const EngineOptions options{.most_sessions = 4, .step_tokens = 4 + 8};
  EngineBench probe("llama", options);
  std::vector<Wish> wishes;
  std::vector<Generated> expected;
  // Chunks of few rows: oneDNN, which may crash, is not called.
  for (std::uint32_t i = 0; i < 3; ++i) {
    wishes.push_back(probe.wish(8, 6, i));
    expected.push_back(probe.alone(wishes.back()));
  }
  std::int64_t failures = 0;
  std::int64_t attempts = 0;
  for (std::int64_t warm = 0; warm < 3; ++warm) {
    for (std::int64_t allowed = 0;; ++allowed) {
      Context context(1);
      Engine engine(probe.model, context, options);
      engine.state().tokenizer = tokenizer();
      std::vector<Outcome> outcomes(3);
      for (std::size_t i = 0; i < 3; ++i) {
        Request request = probe.request(wishes[i]);
        request.options.chunk = 8;
        engine.submit(std::move(request), outcomes[i].callbacks());
      }
      for (std::int64_t i = 0; i < warm; ++i) engine.step();
      allocation_fail_after(allowed);
      std::exception_ptr thrown;
      try {
        engine.step();
      } catch (...) {
        thrown = std::current_exception();
      }
      const bool failed = allocation_failed();
      allocation_fail_after(-1);
      if (thrown) {
        ASSERT_EQ(error_of(thrown).kind(), ErrorKind::out_of_memory) << error_of(thrown).what();
      }
      while (engine.step()) {
      }
      for (std::size_t i = 0; i < 3; ++i) {
        ASSERT_EQ(outcomes[i].ends, 1) << warm << " " << allowed << " " << i;
        if (outcomes[i].error.has_value()) {
          ASSERT_EQ(outcomes[i].error->kind(), ErrorKind::out_of_memory);
          ++failures;
        } else {
          expect_same(outcomes[i], expected[i], std::to_string(allowed));
        }
      }
      if (!failed) break;
      ++attempts;
    }
  }
  EXPECT_GT(attempts, 60);
  EXPECT_GT(failures, 0) << "a request that is alone fails";
}

}  // namespace
}  // namespace lca::test
