// The caches of named sessions, while a job runs in them and after.

#include <thread>

#include "server/host/host_bench.h"

namespace lca::test {
namespace {

using server::CacheView;
using server::HostOptions;
using server::Job;
using server::TokenRange;
using Kind = server::JobEvent::Kind;

bool operator==(const CacheView& a, const CacheView& b) {
  return a.tokens == b.tokens && a.groups == b.groups && a.window == b.window && a.sink == b.sink &&
         a.shared_bytes == b.shared_bytes && a.bytes == b.bytes && a.dense_bytes == b.dense_bytes;
}

/// All tokens are somewhere, and the bytes are those of a session of that length.
void expect_whole(const CacheView& view) {
  const Settings settings = small_settings();
  EXPECT_EQ(view.tokens, view.sink + view.groups * settings.group + view.window);
  EXPECT_EQ(view.sink, std::min(view.tokens, settings.sink));
  if (view.tokens > 300) {
    EXPECT_GT(view.groups, 20);
    EXPECT_LT(view.bytes, view.dense_bytes / 2);
  }
  EXPECT_EQ(view.bytes > 0, view.tokens > 0);
}

/// Holds a reply before each of its tokens.
HostOptions held_at(HostGate& gate, HostOptions options) {
  options.hooks.adjust = [&gate](const Job&, int, std::int64_t) {
    return [&gate](std::span<const std::int32_t>, std::span<float> logits) {
      for (std::size_t id = 0; id < 3; ++id) logits[id] = -std::numeric_limits<float>::infinity();
      gate.pass();
    };
  };
  return options;
}

TEST(ThreadsLive, ACacheIsToldAfterEveryTokenWhileTheStepIsHeld) {
  const ScratchFolder folder;
  HostGate gate;
  HostBench bench(held_at(gate, with_sessions(folder)));
  EXPECT_FALSE(bench.host.cache_view("s").has_value());
  const Job job = named({{"user", long_text(500)}}, "s");
  const std::vector<std::int32_t> prompt = bench.host.prompt_tokens(job);
  const auto size = std::ssize(prompt);
  const auto events = bench.submit(job);
  for (int token = 0; token < 12; ++token) {
    ASSERT_TRUE(gate.wait_arrival(token + 1));
    // The engine's thread waits inside of a step, and the session's file is locked.
    const auto view = bench.host.cache_view("s");
    ASSERT_TRUE(view.has_value());
    expect_whole(*view);
    EXPECT_GE(view->tokens, size + std::max(0, token - 1));
    EXPECT_LE(view->tokens, size + token);
    const auto text = bench.host.cache_text("s", 0, 100000);
    ASSERT_TRUE(text.has_value());
    ASSERT_EQ(std::ssize(text->ids), view->tokens);
    EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), text->ids.begin()));
    gate.let();
  }
  ASSERT_TRUE(events->wait());
  ASSERT_EQ(events->status(), 200);
  const auto view = bench.host.cache_view("s");
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->tokens, size + 12);
  const auto text = bench.host.cache_text("s", size, size + 11);
  ASSERT_TRUE(text.has_value());
  EXPECT_EQ(text->first, size);
  EXPECT_EQ(bench.host.counts().reply_tokens, 12);
  EXPECT_EQ(HostBench::usual().tokenizer->decode(text->ids), events->text());
}

TEST(ThreadsLive, ACacheIsToldWhileAPromptIsRead) {
  HostOptions options = HostBench::usual();
  options.session.chunk = 8;
  HostBench bench(options);
  const Job job = named({{"user", long_text(900)}}, "s");
  const std::vector<std::int32_t> prompt = bench.host.prompt_tokens(job);
  std::mutex mutex;
  std::vector<std::pair<std::int64_t, CacheView>> seen;
  auto events = std::make_shared<Events>();
  bench.host.submit(job, [&](server::JobEvent event) {
    // From the first event on, and with each the numbers of the step it tells of.
    const auto view = bench.host.cache_view("s");
    EXPECT_TRUE(view.has_value());
    if (view && event.kind == Kind::progress) {
      const std::lock_guard guard(mutex);
      seen.emplace_back(event.prefill.done, *view);
    }
    events->add(std::move(event));
  });
  ASSERT_TRUE(events->wait());
  ASSERT_GT(seen.size(), 20u);
  for (const auto& [done, view] : seen) {
    EXPECT_EQ(view.tokens, done);
    expect_whole(view);
  }
  EXPECT_EQ(seen.back().first, std::ssize(prompt));
}

TEST(ThreadsLive, ManyMayAskWhileJobsComeAndGo) {
  const ScratchFolder folder;
  HostBench bench(with_sessions(folder));
  std::atomic<bool> over = false;
  std::atomic<int> answers = 0;
  std::vector<std::jthread> asking;
  for (int i = 0; i < 3; ++i) {
    asking.emplace_back([&, i] {
      const std::string name = "s" + std::to_string(i);
      while (!over) {
        const auto view = bench.host.cache_view(name);
        const auto text = bench.host.cache_text(name, 5, 30);
        if (view) expect_whole(*view);
        if (view && text) {
          ++answers;
          EXPECT_LE(text->ids.size(), 26u);
        }
        if (i == 0) bench.host.sessions()->messages(name);
        std::this_thread::yield();
      }
    });
  }
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<Events>> events;
    for (int i = 0; i < 3; ++i) {
      events.push_back(
          bench.submit(named({{"user", long_text(300 + 20 * static_cast<unsigned>(i))}},
                             "s" + std::to_string(i), static_cast<std::uint64_t>(round))));
    }
    if (round == 1) bench.host.cancel(bench.last_id);
    for (const auto& one : events) {
      ASSERT_TRUE(one->wait(60));
      EXPECT_EQ(one->status(), 200);
    }
  }
  over = true;
  asking.clear();
  EXPECT_GT(answers, 0);
}

TEST(Live, WhatAJobLeftIsWhatItsFileHolds) {
  const ScratchFolder folder;
  HostBench bench(with_sessions(folder));
  server::SessionStore& store = *bench.host.sessions();
  Talk talk = {{"user", long_text(400)}};
  const auto first = bench.run(named(talk, "a"));
  const CacheView left = *bench.host.cache_view("a");
  EXPECT_EQ(left.tokens, first->last().usage.prompt + 12);
  expect_whole(left);
  // Another server reads the file.
  HostBench other(with_sessions(folder));
  CacheView read = *other.host.cache_view("a");
  read.shared_bytes = left.shared_bytes;  // which differs: no kept beginning shares with the file
  EXPECT_TRUE(read == left);
  EXPECT_EQ(other.host.cache_text("a", 0, 9999)->ids, bench.host.cache_text("a", 0, 9999)->ids);
  // It goes on: what the first one has in memory is older now.
  talk.emplace_back("assistant", first->text());
  talk.emplace_back("user", long_text(150, 8));
  const auto next = other.run(named(talk, "a"));
  ASSERT_EQ(next->status(), 200);
  EXPECT_GT(bench.host.cache_view("a")->tokens, left.tokens + 100);
  EXPECT_EQ(bench.host.cache_view("a")->tokens, next->last().usage.prompt + 12);
  // A job that is not completed changes nothing.
  Job stopped = named({{"user", long_text(100, 3)}}, "a");
  stopped.generate.max_tokens = 3000;
  const auto events = bench.submit(stopped);
  ASSERT_TRUE(events->wait_for(Kind::piece));
  EXPECT_LT(bench.host.cache_view("a")->tokens, 3500);
  bench.host.cancel(bench.last_id);
  ASSERT_TRUE(events->wait());
  EXPECT_EQ(bench.host.cache_view("a")->tokens, next->last().usage.prompt + 12);

  store.fork("a", "b", -1, bench.host.turns());
  EXPECT_EQ(bench.host.cache_view("b")->tokens, bench.host.cache_view("a")->tokens);
  store.remove("a");
  EXPECT_FALSE(bench.host.cache_view("a").has_value());
  EXPECT_FALSE(bench.host.cache_text("a", 0, 5).has_value());
  EXPECT_FALSE(bench.host.cache_view("../b").has_value());
  EXPECT_FALSE(bench.host.cache_view("").has_value());
}

TEST(Live, ARangeOfTokensIsCutAtTheEnd) {
  HostBench bench;
  const auto events = bench.run(named({{"user", long_text(100)}}, "s"));
  const std::int64_t size = bench.host.cache_view("s")->tokens;
  const std::vector<std::int32_t> all = bench.host.cache_text("s", 0, size - 1)->ids;
  ASSERT_EQ(std::ssize(all), size);
  const TokenRange some = *bench.host.cache_text("s", 10, 12);
  EXPECT_EQ(some.first, 10);
  EXPECT_EQ(some.ids, std::vector<std::int32_t>(all.begin() + 10, all.begin() + 13));
  EXPECT_EQ(bench.host.cache_text("s", size - 2, size + 50)->ids.size(), 2u);
  EXPECT_TRUE(bench.host.cache_text("s", size + 3, size + 50)->ids.empty());
  EXPECT_TRUE(bench.host.cache_text("s", 5, 4)->ids.empty());
  EXPECT_EQ(bench.host.cache_text("s", -5, std::numeric_limits<std::int64_t>::max())->ids, all);
}

TEST(Live, WithoutFolderANameIsKnownAsLongAsItsCacheIsInMemory) {
  HostOptions options = HostBench::usual();
  options.prefix_bytes = std::size_t{1} << 20;
  HostBench bench(options);
  ASSERT_EQ(bench.run(named({{"user", long_text(400)}}, "s"))->status(), 200);
  ASSERT_TRUE(bench.host.cache_view("s").has_value());
  expect_whole(*bench.host.cache_view("s"));
  EXPECT_FALSE(bench.host.cache_view("t").has_value());
  for (std::uint32_t i = 0; i < 40 && bench.host.cache_view("s"); ++i) {
    bench.run(HostBench::ids(600, 100 + i, 2));
  }
  EXPECT_GT(bench.host.counts().prefix.evicted, 0);
  EXPECT_FALSE(bench.host.cache_view("s").has_value());

  options.prefix_cache = false;
  HostBench none(options);
  Job job = named({{"user", long_text(400)}}, "s");
  const auto with_name = none.run(job);
  EXPECT_FALSE(none.host.cache_view("s").has_value());
  // The name changes nothing else.
  job.session.clear();
  EXPECT_EQ(none.run(job)->text(), with_name->text());
}

TEST(Live, AJobThatWaitsHasAnEmptyCache) {
  HostOptions options = HostBench::usual();
  HostGate gate;
  options.hooks.prompt = [&gate](const Job& job) {
    if (!job.session.empty()) gate.pass();
    return std::vector<std::int32_t>();
  };
  HostBench bench(options);
  const auto events = bench.submit(named({{"user", "a"}}, "s"));
  const auto view = bench.host.cache_view("s");
  ASSERT_TRUE(view.has_value());
  EXPECT_TRUE(*view == CacheView());
  gate.open();
  ASSERT_TRUE(events->wait());
  EXPECT_GT(bench.host.cache_view("s")->tokens, 12);
}

}  // namespace
}  // namespace lca::test
