// Prompts that are cut at given lengths, and tokens that are sampled on several threads.

#include <gtest/gtest.h>

#include <limits>

#include "engine/engine_bench.h"

namespace lca::test {
namespace {

TEST(EngineCuts, ReadingStopsAtEveryCutAndAForkThereGoesOnTheSame) {
  EngineBench bench;
  const Wish wish = bench.wish(75, 10);
  for (const std::int64_t from : {5, 16, 40, 41}) {
    std::vector<std::int64_t> seen;
    std::optional<Session> fork;
    Outcome whole;
    Request request = bench.request(wish);
    request.cuts = {5, 16, 40, 41};
    RequestCallbacks calls = whole.callbacks();
    calls.cut = [&](Session& session) {
      seen.push_back(session.length());
      if (session.length() == from) fork = session.fork(from);
    };
    bench.engine.submit(std::move(request), std::move(calls));
    bench.run_all();
    EXPECT_EQ(seen, (std::vector<std::int64_t>{5, 16, 40, 41}));
    ASSERT_TRUE(fork.has_value());

    Outcome later;
    Request rest = bench.request(wish);
    rest.prompt.erase(rest.prompt.begin(), rest.prompt.begin() + from);
    rest.session = std::move(fork);
    rest.cuts = {5, 16, 40, 41};
    bench.engine.submit(std::move(rest), later.callbacks());
    bench.run_all();
    ASSERT_FALSE(later.error.has_value()) << later.error->what();
    EXPECT_EQ(later.ids, whole.ids) << from;
    EXPECT_EQ(later.result->generated.reused_tokens, from);
  }
}

TEST(EngineCuts, AForkAtTheEndOfThePromptKnowsItsLogits) {
  EngineBench bench;
  for (const bool greedy : {false, true}) {
    Wish wish = bench.wish(50, 8);
    if (greedy) wish.generate.sampling = {};
    std::optional<Session> fork;
    Outcome whole;
    Request request = bench.request(wish);
    request.cuts = {50};
    RequestCallbacks calls = whole.callbacks();
    calls.cut = [&](Session& session) { fork = session.fork(session.length()); };
    bench.engine.submit(std::move(request), std::move(calls));
    bench.run_all();
    expect_same(whole, bench.alone(wish), "cut at the end");
    ASSERT_TRUE(fork.has_value());
    Outcome other;
    Request rest = bench.request(wish);
    rest.prompt.clear();
    rest.session = std::move(fork);
    bench.engine.submit(std::move(rest), other.callbacks());
    bench.run_all();
    EXPECT_EQ(other.ids, whole.ids);
  }
}

TEST(EngineCuts, WhatTheCallbackThrowsEndsItsRequestAlone) {
  EngineBench bench;
  Outcome bad;
  Outcome good;
  const Wish wish = bench.wish(40, 5);
  Request request = bench.request(wish);
  request.cuts = {20};
  RequestCallbacks calls = bad.callbacks();
  calls.cut = [](Session&) { throw std::runtime_error("no"); };
  bench.engine.submit(std::move(request), std::move(calls));
  bench.submit(wish, good);
  bench.run_all();
  EXPECT_TRUE(bad.error.has_value());
  expect_same(good, bench.alone(wish), "beside it");
}

TEST(EngineCuts, TokensSampledOnSeveralThreadsAreThoseOfOne) {
  Bench loaded("llama");
  Context threads(4);
  Engine engine(loaded.model, threads);
  engine.state().tokenizer = tokenizer();
  EngineBench one;
  std::vector<Wish> wishes;
  std::vector<Outcome> outcomes(12);
  for (std::uint32_t i = 0; i < 12; ++i) {
    Wish wish = one.wish(10 + i, 15, i);
    wish.generate.sampling.top_k = i % 3 == 0 ? 5 : 0;
    wish.generate.logprobs = i % 2 == 0;
    if (i % 4 == 3) {
      wish.generate.adjust = [](std::span<const std::int32_t>, std::span<float> logits) {
        logits[7] = -std::numeric_limits<float>::infinity();
      };
    }
    wishes.push_back(wish);
  }
  for (std::size_t i = 0; i < 12; ++i) {
    engine.submit(one.request(wishes[i]), outcomes[i].callbacks());
  }
  while (engine.step()) {
  }
  for (std::size_t i = 0; i < 12; ++i) {
    expect_same(outcomes[i], one.alone(wishes[i]), std::to_string(i));
  }
}

}  // namespace
}  // namespace lca::test
