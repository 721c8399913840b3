// Steps that fail inside the device: who is set aside, who fails, and that nobody else notices.

#include <gtest/gtest.h>

#include "engine/engine_bench.h"
#include "engine/faulty_backend.h"

namespace lca::test {
namespace {

/// An engine whose steps fail on demand.
struct FaultyBench : EngineBench {
  explicit FaultyBench(const EngineOptions& options = {.most_sessions = 8, .step_tokens = 8 + 40})
      : EngineBench("llama", options), backend(FaultyBackend::install(*model)) {}

  /// Requests of mixed lengths; some in `prompt` mode where asked for.
  std::vector<Wish> mixed(std::size_t count, bool whole = false) const {
    std::vector<Wish> wishes;
    for (std::uint32_t i = 0; i < count; ++i) {
      wishes.push_back(wish(10 + 13 * (i % 4), 6 + 5 * (i % 3), i));
      if (i % 2 == 0) wishes.back().generate.sampling = {};
      if (whole && i % 3 == 2) wishes.back().settings = {prompt_settings()};
    }
    return wishes;
  }
  /// Runs all to the end with `check` in force, and returns what became of them.
  std::vector<Outcome> outcomes_of(const std::vector<Wish>& wishes, const StepCheck& check) {
    std::vector<Outcome> outcomes(wishes.size());
    for (std::size_t i = 0; i < wishes.size(); ++i) submit(wishes[i], outcomes[i]);
    backend.check = check;
    int steps = 0;
    while (engine.step() && ++steps < 2000) {
    }
    EXPECT_LT(steps, 2000) << "it does not end";
    backend.check = {};
    return outcomes;
  }
  void expect_all_same(const std::vector<Wish>& wishes, const std::vector<Outcome>& outcomes) {
    for (std::size_t i = 0; i < wishes.size(); ++i) {
      expect_same(outcomes[i], alone(wishes[i]), "request " + std::to_string(i));
    }
  }

  FaultyBackend& backend;
};

[[noreturn]] void run_short() { throw Error(ErrorKind::out_of_memory, "the device is full"); }

TEST(EngineFaults, WhereMemoryHoldsOnlyTwoAllGetTheirTextInTurn) {
  for (const bool whole : {false, true}) {
    FaultyBench bench;
    const std::vector<Wish> wishes = bench.mixed(7, whole);
    std::int64_t refused = 0;
    const std::vector<Outcome> outcomes =
        bench.outcomes_of(wishes, [&](std::span<const SequenceRun> runs) {
          if (runs.size() <= 2) return;
          ++refused;
          run_short();
        });
    bench.expect_all_same(wishes, outcomes);
    EXPECT_GT(refused, 0);
    // A request that was set aside is not tried again before another has ended.
    EXPECT_LT(refused, 60);
    EXPECT_EQ(bench.engine.counts().failed, 0);
  }
}

TEST(EngineFaults, MemoryThatRunsOutOnceIsNoticedByNobody) {
  for (std::int64_t when = 0; when < 12; ++when) {
    FaultyBench bench;
    const std::vector<Wish> wishes = bench.mixed(4, true);
    std::int64_t steps = 0;
    const std::vector<Outcome> outcomes =
        bench.outcomes_of(wishes, [&](std::span<const SequenceRun> runs) {
          if (steps++ == when && runs.size() > 1) run_short();
        });
    bench.expect_all_same(wishes, outcomes);
  }
}

TEST(EngineFaults, ARequestThatRunsShortByItselfFailsAloneHoweverOldItIs) {
  for (std::size_t culprit = 0; culprit < 4; ++culprit) {
    FaultyBench bench;
    std::vector<Wish> wishes = bench.mixed(4);
    wishes[culprit].generate.max_tokens = 100;
    const std::int64_t most = std::ssize(wishes[culprit].prompt) + 60;
    const std::vector<Outcome> outcomes =
        bench.outcomes_of(wishes, [&](std::span<const SequenceRun> runs) {
          for (const SequenceRun& run : runs) {
            if (run.first >= most) run_short();
          }
        });
    for (std::size_t i = 0; i < 4; ++i) {
      if (i != culprit) {
        expect_same(outcomes[i], bench.alone(wishes[i]), "request " + std::to_string(i));
        continue;
      }
      ASSERT_EQ(outcomes[i].ends, 1);
      ASSERT_TRUE(outcomes[i].error.has_value());
      EXPECT_EQ(outcomes[i].error->kind(), ErrorKind::out_of_memory);
      EXPECT_EQ(outcomes[i].result->generated.tokens.size(), 60u);
    }
  }
}

TEST(EngineFaults, APromptThatFindsNoMemoryWaitsForAnotherToEnd) {
  for (const bool whole : {false, true}) {
    FaultyBench bench;
    std::vector<Wish> wishes = {bench.wish(10, 30), bench.wish(40, 10, 3), bench.wish(20, 5, 4)};
    if (whole) wishes[1].settings = {prompt_settings()};
    std::vector<Outcome> outcomes(3);
    bench.submit(wishes[0], outcomes[0]);
    bench.engine.step();
    bench.submit(wishes[1], outcomes[1]);
    bench.submit(wishes[2], outcomes[2]);
    bool tried = false;
    bench.backend.check = [&](std::span<const SequenceRun> runs) {
      for (const SequenceRun& run : runs) {
        if (run.tokens.size() == 1 || outcomes[0].is_over()) continue;
        tried = true;
        run_short();
      }
    };
    while (!outcomes[0].is_over()) {
      ASSERT_TRUE(bench.engine.step());
      EXPECT_TRUE(outcomes[1].ids.empty());
      EXPECT_TRUE(outcomes[2].ids.empty());
    }
    EXPECT_TRUE(tried);
    bench.run_all();
    bench.expect_all_same(wishes, outcomes);
  }
}

TEST(EngineFaults, ASessionThatWasBroughtAlongKeepsItsTokensWhenItIsSetAside) {
  FaultyBench bench;
  const auto all = bench.tokens(60);
  Session held = bench.session({small_settings()}, EngineBench::kChunk);
  held.prefill(std::span(all).first(20));
  const Wish other = bench.wish(10, 20);
  Outcome first;
  Outcome second;
  bench.submit(other, first);
  bench.engine.step();
  Request request;
  request.prompt.assign(all.begin() + 20, all.end());
  request.session = std::move(held);
  request.keep_session = true;
  request.generate.max_tokens = 4;
  bench.engine.submit(std::move(request), second.callbacks());
  bench.engine.step();
  bench.backend.check = [&](std::span<const SequenceRun> runs) {
    if (runs.size() > 1) run_short();
  };
  bench.run_all();
  bench.backend.check = {};
  expect_same(first, bench.alone(other), "first");
  Session twin = bench.session({small_settings()}, EngineBench::kChunk);
  twin.prefill(std::span(all).first(20));
  expect_same(second,
              generate_with(twin, tokenizer(), std::span(all).subspan(20), {.max_tokens = 4}),
              "second");
  EXPECT_EQ(second.result->session->tokens(), twin.tokens());
}

TEST(EngineFaults, ARequestThatIsSetAsideCanBeCancelled) {
  FaultyBench bench;
  const Wish other = bench.wish(10, 20);
  Outcome first;
  Outcome second;
  bench.submit(other, first);
  const RequestId id = bench.submit(bench.wish(10, 20, 5), second);
  bench.engine.step();
  bench.engine.step();
  bench.backend.check = [&](std::span<const SequenceRun> runs) {
    if (runs.size() > 1) run_short();
  };
  bench.engine.step();
  const std::size_t said = second.ids.size();
  bench.engine.step();
  EXPECT_EQ(second.ids.size(), said) << "it is set aside";
  EXPECT_TRUE(bench.engine.cancel(id));
  bench.engine.step();
  ASSERT_EQ(second.ends, 1);
  EXPECT_EQ(second.result->generated.reason, StopReason::cancelled);
  bench.run_all();
  expect_same(first, bench.alone(other), "first");
}

TEST(EngineFaults, AnErrorOfOneRequestDoesNotReachTheOthersOfItsStep) {
  FaultyBench bench;
  std::vector<Wish> wishes = bench.mixed(5, true);
  wishes[1].prompt.assign(33, 42);
  const std::vector<Outcome> outcomes =
      bench.outcomes_of(wishes, [&](std::span<const SequenceRun> runs) {
        for (const SequenceRun& run : runs) {
          if (run.first == 16 && run.tokens.size() == 16 && run.tokens[0] == 42) {
            throw Error(ErrorKind::internal, "a kernel refused");
          }
        }
      });
  for (std::size_t i = 0; i < wishes.size(); ++i) {
    if (i != 1) {
      expect_same(outcomes[i], bench.alone(wishes[i]), "request " + std::to_string(i));
      continue;
    }
    ASSERT_TRUE(outcomes[i].error.has_value());
    EXPECT_EQ(outcomes[i].error->kind(), ErrorKind::internal);
    EXPECT_EQ(outcomes[i].result->generated.read_tokens, 16);
  }
}

TEST(EngineFaults, ADeviceThatIsGoneFailsEveryRequestAndNotTheEngine) {
  FaultyBench bench;
  const std::vector<Wish> wishes = bench.mixed(10, true);
  const std::vector<Outcome> outcomes = bench.outcomes_of(
      wishes, [](std::span<const SequenceRun>) { throw Error(ErrorKind::internal, "gone"); });
  for (const Outcome& outcome : outcomes) {
    ASSERT_EQ(outcome.ends, 1);
    EXPECT_TRUE(outcome.error.has_value());
  }
  Outcome later;
  bench.submit(wishes[0], later);
  bench.run_all();
  expect_same(later, bench.alone(wishes[0]), "afterwards");
}

TEST(EngineFaults, AContextInUseElsewhereIsTheCallersErrorAndLosesNothing) {
  FaultyBench bench;
  const std::vector<Wish> wishes = bench.mixed(3, true);
  std::vector<Outcome> outcomes(3);
  for (std::size_t i = 0; i < 3; ++i) bench.submit(wishes[i], outcomes[i]);
  for (bool left = true; left;) {
    bench.backend.check = [](std::span<const SequenceRun>) {
      throw Error(ErrorKind::busy, "in use");
    };
    expect_error([&] { bench.engine.step(); }, {"in use"}, ErrorKind::busy);
    bench.backend.check = {};
    left = bench.engine.step();
  }
  bench.expect_all_same(wishes, outcomes);
}

}  // namespace
}  // namespace lca::test
