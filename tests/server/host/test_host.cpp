// Jobs of a host: replies that depend on the job alone, refusals, draining.

#include "server/host/host_bench.h"

namespace lca::test {
namespace {

using server::ApiException;
using server::HostOptions;
using server::Job;

HostOptions without_cache() {
  HostOptions options = HostBench::usual();
  options.prefix_cache = false;
  return options;
}

TEST(Host, SixtyFourJobsTogetherReplyAsEachAlone) {
  HostBench alone(without_cache());
  HostBench together(without_cache());
  std::vector<std::shared_ptr<Events>> running;
  for (std::uint32_t i = 0; i < 64; ++i) {
    Job job = HostBench::ids(5 + 3 * i, i % 50, 3 + i % 11);
    job.generate.logprobs = i % 3 == 0;
    if (i % 4 == 0) job.generate.sampling.temperature = 0;
    if (i % 5 == 0) job.generate.sampling.top_p = 0.9;
    running.push_back(together.submit(std::move(job)));
  }
  for (std::uint32_t i = 0; i < 64; ++i) {
    Job job = HostBench::ids(5 + 3 * i, i % 50, 3 + i % 11);
    job.generate.logprobs = i % 3 == 0;
    if (i % 4 == 0) job.generate.sampling.temperature = 0;
    if (i % 5 == 0) job.generate.sampling.top_p = 0.9;
    const auto expected = alone.run(std::move(job));
    ASSERT_TRUE(running[i]->wait());
    ASSERT_EQ(running[i]->status(), 200) << running[i]->last().error->message;
    EXPECT_EQ(running[i]->text(), expected->text()) << i;
    EXPECT_EQ(running[i]->last().usage.completion, expected->last().usage.completion);
    EXPECT_EQ(running[i]->last().usage.cached, 0);
    EXPECT_GT(expected->last().usage.completion, 0);
  }
  EXPECT_EQ(together.host.counts().finished, 64);
  EXPECT_EQ(together.host.counts().running, 0);
  EXPECT_EQ(together.host.counts().queued_bytes, 0u);
}

TEST(Host, PromptsShareAStepNoLongerThanOneChunk) {
  // Whoever streams waits for a step: two prompts at once must not make it longer.
  HostBench bench(without_cache());
  const auto one = bench.submit(HostBench::ids(640, 1));
  const auto two = bench.submit(HostBench::ids(640, 2));
  ASSERT_TRUE(one->wait());
  ASSERT_TRUE(two->wait());
  EXPECT_EQ(bench.host.counts().engine.prefilled_tokens, 1280);
  EXPECT_GE(bench.host.counts().engine.steps, 20);
}

TEST(Host, SeveralChoicesAreReadOnceAndReplyAsTheirSeedsDo) {
  HostBench bench(without_cache());
  Job job = HostBench::ids(200, 3);
  job.n = 3;
  const auto all = bench.run(job);
  ASSERT_EQ(all->status(), 200);
  EXPECT_EQ(bench.host.counts().engine.prefilled_tokens, 200);
  for (int choice = 0; choice < 3; ++choice) {
    Job one = HostBench::ids(200, 3);
    one.generate.sampling.seed += static_cast<std::uint64_t>(choice);
    EXPECT_EQ(bench.run(one)->text(), all->text(choice)) << choice;
  }
}

TEST(Host, AnEchoHasAnEntryForEveryTokenAndOneMore) {
  HostBench bench;
  Job job = HostBench::ids(70, 4, 1);
  job.echo = true;
  job.ignore_end = false;
  job.generate.logprobs = job.generate.prompt_logprobs = true;
  job.generate.top_logprobs = 2;
  for (int round = 0; round < 2; ++round) {
    const auto events = bench.run(job);
    ASSERT_EQ(events->status(), 200);
    std::vector<server::TokenDetail> tokens;
    for (const auto& event : events->all) {
      tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
    }
    ASSERT_EQ(tokens.size(), 71u);
    EXPECT_FALSE(tokens[0].logprob.has_value());
    for (std::size_t i = 1; i < tokens.size(); ++i) {
      ASSERT_TRUE(tokens[i].logprob.has_value());
      ASSERT_EQ(tokens[i].top.size(), 2u);
      EXPECT_LE(*tokens[i].logprob, *tokens[i].top[0].logprob);
    }
    EXPECT_EQ(events->last().usage.cached, 0);
  }
}

TEST(Host, APromptBeyondTheContextIsRefusedWithBothNumbers) {
  HostOptions options = without_cache();
  options.context = 100;
  HostBench bench(options);
  const auto events = bench.run(HostBench::ids(100, 1));
  EXPECT_EQ(events->status(), 400);
  EXPECT_NE(events->last().error->message.find("100 tokens and the context holds 100"),
            std::string::npos);
  // A reply that names no limit gets what is left.
  const auto fits = bench.run(HostBench::ids(90, 1, server::kNoTokenLimit));
  EXPECT_EQ(fits->last().usage.completion, 10);
  EXPECT_EQ(fits->last().reason, StopReason::length);
  EXPECT_EQ(bench.run(HostBench::ids(0, 1))->status(), 400);
}

TEST(Host, TooMuchIsRefusedBeforeItIsTokenised) {
  HostOptions options = without_cache();
  options.most_queued = 3;
  options.most_queued_bytes = 4000;
  std::mutex gate;
  options.hooks.prompt = [&gate](const Job& job) {
    const std::lock_guard guard(gate);
    return std::get<std::vector<std::int32_t>>(job.prompt);
  };
  HostBench bench(options);
  std::vector<std::shared_ptr<Events>> events;
  {
    const std::lock_guard guard(gate);
    events.push_back(bench.submit(HostBench::ids(500, 1)));
    EXPECT_EQ(bench.host.counts().queued_bytes, 2000u);
    EXPECT_THROW(bench.submit(HostBench::ids(600, 2)), ApiException);  // bytes
    events.push_back(bench.submit(HostBench::ids(10, 2)));
    events.push_back(bench.submit(HostBench::ids(10, 3)));
    try {
      bench.submit(HostBench::ids(1, 4));
      FAIL() << "a fourth was queued";
    } catch (const ApiException& error) {
      EXPECT_EQ(error.error().status, 429);
      EXPECT_GE(error.error().retry_after, 1);
    }
    EXPECT_EQ(bench.host.counts().refused, 2);
    EXPECT_THROW(bench.host.admit(std::vector{HostBench::ids(1, 4)}), ApiException);
  }
  for (const auto& one : events) EXPECT_TRUE(one->wait());
  EXPECT_EQ(bench.host.counts().queued, 0);
  EXPECT_EQ(bench.run(HostBench::ids(10, 4))->status(), 200);
}

TEST(Host, WhatCameBesideThePromptIsQueuedToo) {
  HostOptions options = without_cache();
  options.most_queued_bytes = 4000;
  std::mutex gate;
  options.hooks.prompt = [&gate](const Job& job) {
    const std::lock_guard guard(gate);
    return std::get<std::vector<std::int32_t>>(job.prompt);
  };
  HostBench bench(options);
  Job large = HostBench::ids(10, 1);
  large.body_bytes = 3000;
  std::shared_ptr<Events> events;
  {
    const std::lock_guard guard(gate);
    events = bench.submit(large);
    EXPECT_EQ(bench.host.counts().queued_bytes, 3000u);
    EXPECT_THROW(bench.submit(large), ApiException);
    EXPECT_THROW(bench.host.admit(std::vector{large}), ApiException);
  }
  EXPECT_TRUE(events->wait());
  EXPECT_EQ(bench.host.counts().queued_bytes, 0u);
}

TEST(Host, DrainingEndsWhatRunsAndRefusesTheRest) {
  HostBench bench;
  const auto running = bench.submit(HostBench::ids(50, 1, 20));
  bench.host.drain(std::chrono::seconds(60));
  EXPECT_TRUE(running->is_over);
  EXPECT_EQ(running->last().usage.completion, 20);
  try {
    bench.submit(HostBench::ids(5, 1));
    FAIL() << "a job was taken";
  } catch (const ApiException& error) {
    EXPECT_EQ(error.error().status, 503);
  }
}

TEST(Host, AStopStringIsNamed) {
  HostBench bench(without_cache());
  Job job = HostBench::chat({{"user", "hello"}}, 60);
  const std::string whole = bench.run(job)->text();
  ASSERT_GT(whole.size(), 20u);
  job.generate.stops = {whole.substr(9, 3), "never and never"};
  const auto events = bench.run(job);
  EXPECT_EQ(events->last().reason, StopReason::stop_string);
  EXPECT_EQ(events->last().stop, job.generate.stops[0]);
}

}  // namespace
}  // namespace lca::test
