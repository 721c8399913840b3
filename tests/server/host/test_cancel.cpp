// Cancelling, at places of a job where it is held until it is cancelled.

#include <atomic>
#include <thread>

#include "server/grammar/grammar.h"
#include "server/host/host_bench.h"

namespace lca::test {
namespace {

using server::HostCounts;
using server::HostOptions;
using server::Job;
using server::JobEvent;
using Kind = JobEvent::Kind;

/// One session at a time, so that a slot that is not given back would be missed.
HostOptions one_at_a_time() {
  HostOptions options = HostBench::usual();
  options.engine.most_sessions = 1;
  options.session.chunk = 8;
  return options;
}

/// Waits until the host's counts are as wanted.
template <typename Wanted>
bool counts_reach(const server::EngineHost& host, const Wanted& wanted) {
  for (int i = 0; i < 4000; ++i) {
    if (wanted(host.counts())) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

bool nothing_left(const HostCounts& counts) {
  return counts.queued == 0 && counts.queued_bytes == 0 && counts.running == 0 &&
         counts.engine.waiting + counts.engine.reading + counts.engine.decoding == 0 &&
         counts.engine.memory_reserved == 0;
}

bool was_cancelled(const Events& events) {
  return events.last().kind == Kind::done && events.last().reason == StopReason::cancelled;
}

TEST(ThreadsCancel, AJobThatWaitsForAWorkerLeavesTheQueueAtOnce) {
  HostOptions options = one_at_a_time();
  HostGate gate;
  options.hooks.prompt = [&gate](const Job&) {
    gate.pass();
    return std::vector<std::int32_t>();
  };
  HostBench bench(options);
  // Two are held by the workers, the third waits behind them.
  std::vector<std::shared_ptr<Events>> events;
  std::vector<server::JobId> ids;
  std::weak_ptr<const server::Grammar> grammar;
  for (std::uint32_t i = 0; i < 3; ++i) {
    Job job = HostBench::ids(100, i);
    job.grammar = std::make_shared<const server::Grammar>(server::Grammar::json_object());
    grammar = job.grammar;
    events.push_back(bench.submit(std::move(job)));
    ids.push_back(bench.last_id);
  }
  ASSERT_TRUE(gate.wait_arrival(2));
  EXPECT_EQ(bench.host.counts().queued, 3);
  for (const auto id : ids) EXPECT_TRUE(bench.host.cancel(id));
  EXPECT_EQ(bench.host.counts().queued, 0);
  EXPECT_EQ(bench.host.counts().queued_bytes, 0u);
  EXPECT_TRUE(grammar.expired()) << "what is not counted any more is held";
  gate.open();
  for (const auto& one : events) {
    ASSERT_TRUE(one->wait());
    EXPECT_EQ(one->all.size(), 1u);
    EXPECT_TRUE(was_cancelled(*one));
  }
  EXPECT_EQ(bench.host.counts().engine.steps, 0);
  EXPECT_EQ(bench.host.counts().cancelled, 3);
  for (const auto id : ids) EXPECT_FALSE(bench.host.cancel(id));
}

TEST(ThreadsCancel, AJobThatWaitsForAnotherIsGoneAfterTheStep) {
  HostGate gate;
  HostOptions options = one_at_a_time();
  options.hooks.adjust = [&gate](const Job& job, int,
                                 std::int64_t) -> decltype(GenerateOptions::adjust) {
    if (job.generate.max_tokens != 200) return {};
    return [&gate](std::span<const std::int32_t>, std::span<float>) { gate.pass(); };
  };
  HostBench bench(options);
  const auto first = bench.submit(HostBench::ids(30, 1, 200));
  const server::JobId first_id = bench.last_id;
  ASSERT_TRUE(gate.wait_arrival(1));
  const auto second = bench.submit(HostBench::ids(300, 2, 100));
  const server::JobId second_id = bench.last_id;
  int steps = 1;
  while (bench.host.counts().engine.waiting == 0 && steps < 100) {
    gate.let();
    ASSERT_TRUE(gate.wait_arrival(++steps));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_EQ(bench.host.counts().engine.waiting, 1);
  EXPECT_EQ(bench.host.counts().queued, 1);
  EXPECT_TRUE(bench.host.cancel(second_id));
  EXPECT_EQ(bench.host.counts().queued, 0);
  gate.let();
  ASSERT_TRUE(gate.wait_arrival(++steps));
  {
    const std::lock_guard guard(second->mutex);
    ASSERT_TRUE(second->is_over) << "a step has passed";
    EXPECT_EQ(second->all.size(), 1u);
    EXPECT_TRUE(was_cancelled(*second));
  }
  EXPECT_TRUE(bench.host.cancel(first_id));
  gate.open();
  ASSERT_TRUE(first->wait());
  EXPECT_TRUE(was_cancelled(*first));
  EXPECT_TRUE(counts_reach(bench.host, nothing_left));
}

TEST(ThreadsCancel, APromptIsNotReadOnAndItsSlotIsFreeAfterTheStep) {
  for (const int choices : {1, 2}) {
    for (const std::int64_t place : {1, 40, 380}) {
      HostGate gate;
      HostBench bench(one_at_a_time());
      Job job = HostBench::ids(400, 7, 50);
      job.n = choices;
      auto events = std::make_shared<Events>();
      events->choices = choices;
      std::int64_t stands = 0;  // chunks end at cuts too
      const auto id = bench.host.submit(job, [&](JobEvent event) {
        const bool holds = stands == 0 && event.prefill.done >= place;
        if (holds) stands = event.prefill.done;
        events->add(std::move(event));
        if (holds) gate.pass();
      });
      ASSERT_TRUE(gate.wait_arrival());
      const auto next = bench.submit(HostBench::ids(10, 8, 2));
      const std::int64_t steps = bench.host.counts().engine.steps;
      EXPECT_TRUE(bench.host.cancel(id));
      gate.open();
      ASSERT_TRUE(events->wait());
      EXPECT_TRUE(was_cancelled(*events));
      for (const JobEvent& event : events->all) {
        EXPECT_LE(event.prefill.done, stands) << "it was read on";
        EXPECT_NE(event.kind, Kind::piece);
      }
      ASSERT_TRUE(next->wait());
      EXPECT_EQ(next->status(), 200);
      ASSERT_TRUE(counts_reach(bench.host, nothing_left));
      // The next one needs two steps for its prompt and one for each token; it was taken up in the
      // first step after the cancelled one's last.
      const HostCounts counts = bench.host.counts();
      EXPECT_LE(counts.engine.steps - steps, 4);
      EXPECT_EQ(counts.engine.prefilled_tokens, stands + 10);
      EXPECT_EQ(counts.cancelled, 1);
    }
  }
}

TEST(ThreadsCancel, AReplyEndsWithTheTokenThatWasBeingChosen) {
  for (const int place : {1, 2, 7}) {
    HostGate gate;
    HostOptions options = one_at_a_time();
    std::atomic<int> asked = 0;
    options.hooks.adjust = [&](const Job& job, int,
                               std::int64_t) -> decltype(GenerateOptions::adjust) {
      if (job.generate.max_tokens != 500) return {};
      return [&](std::span<const std::int32_t>, std::span<float>) {
        if (++asked >= place) gate.pass();
      };
    };
    HostBench bench(options);
    const auto events = bench.submit(HostBench::ids(50, 3, 500));
    const server::JobId id = bench.last_id;
    ASSERT_TRUE(gate.wait_arrival());
    const auto next = bench.submit(HostBench::ids(10, 8, 2));
    EXPECT_TRUE(bench.host.cancel(id));
    gate.open();
    ASSERT_TRUE(events->wait());
    EXPECT_TRUE(was_cancelled(*events));
    EXPECT_EQ(events->last().usage.completion, place);
    EXPECT_EQ(asked, place) << "another token was chosen";
    ASSERT_TRUE(next->wait());
    EXPECT_EQ(next->status(), 200);
    EXPECT_TRUE(counts_reach(bench.host, nothing_left));
    EXPECT_EQ(bench.host.counts().cancelled, 1);
    EXPECT_EQ(bench.host.counts().finished, 1);
  }
}

TEST(ThreadsCancel, ASessionIsUnlockedAndItsFileStays) {
  const ScratchFolder folder;
  HostGate gate;
  HostOptions options = with_sessions(folder);
  options.hooks.adjust = [&gate](const Job& job, int,
                                 std::int64_t) -> decltype(GenerateOptions::adjust) {
    if (job.generate.max_tokens != 500) return {};
    return [&gate](std::span<const std::int32_t>, std::span<float>) { gate.pass(); };
  };
  HostBench bench(options);
  ASSERT_EQ(bench.run(named({{"user", "a"}}, "s"))->status(), 200);
  const auto before = bench.host.sessions()->stamp("s");
  Job job = named({{"user", long_text(100)}}, "s");
  job.generate.max_tokens = 500;
  const auto events = bench.submit(job);
  const server::JobId id = bench.last_id;
  ASSERT_TRUE(gate.wait_arrival());
  EXPECT_EQ(bench.host.sessions()->try_lock("s"), nullptr);
  bench.host.cancel(id);
  gate.open();
  ASSERT_TRUE(events->wait());
  EXPECT_TRUE(was_cancelled(*events));
  EXPECT_NE(bench.host.sessions()->try_lock("s"), nullptr);
  EXPECT_EQ(bench.host.sessions()->stamp("s"), before);
}

TEST(ThreadsCancel, EverythingIsBackAfterManyJobsAtAnyPlace) {
  HostOptions options = HostBench::usual();
  options.engine.most_sessions = 2;
  options.session.chunk = 8;
  // No reply is longer than two tokens until all are cancelled.
  std::mutex mutex;
  std::shared_ptr<HostGate> gate;
  options.hooks.adjust = [&](const Job&, int, std::int64_t prompt) {
    return [&, prompt](std::span<const std::int32_t> tokens, std::span<float>) {
      if (std::ssize(tokens) < prompt + 2) return;
      std::shared_ptr<HostGate> held;
      {
        const std::lock_guard guard(mutex);
        held = gate;
      }
      held->pass();
    };
  };
  HostBench bench(options);
  constexpr int kRounds = 12;
  for (int round = 0; round < kRounds; ++round) {
    {
      const std::lock_guard guard(mutex);
      gate = std::make_shared<HostGate>();
    }
    std::vector<std::shared_ptr<Events>> events;
    std::vector<server::JobId> ids;
    for (std::uint32_t i = 0; i < 6; ++i) {
      Job job = HostBench::ids(200 + 50 * i, static_cast<std::uint32_t>(round) * 6 + i, 2000);
      job.n = i % 3 == 0 ? 2 : 1;
      events.push_back(bench.submit(std::move(job)));
      ids.push_back(bench.last_id);
    }
    if (round % 3 == 1) {
      ASSERT_TRUE(
          counts_reach(bench.host, [](const HostCounts& counts) { return counts.running > 0; }));
    }
    if (round % 3 == 2) {
      ASSERT_TRUE(gate->wait_arrival());
    }
    for (const auto id : ids) EXPECT_TRUE(bench.host.cancel(id));
    EXPECT_EQ(bench.host.counts().queued, 0);
    gate->open();
    for (const auto& one : events) {
      ASSERT_TRUE(one->wait());
      EXPECT_TRUE(was_cancelled(*one));
    }
    EXPECT_EQ(bench.host.counts().running, 0);
    for (const auto id : ids) EXPECT_FALSE(bench.host.cancel(id));
  }
  EXPECT_TRUE(counts_reach(bench.host, nothing_left));
  const HostCounts counts = bench.host.counts();
  EXPECT_EQ(counts.cancelled, 6 * kRounds);
  EXPECT_EQ(counts.finished + counts.failed, 0);
  EXPECT_EQ(bench.run(HostBench::ids(20, 1, 2))->status(), 200);
}

}  // namespace
}  // namespace lca::test
