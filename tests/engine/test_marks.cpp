// Marks: positions a session can return to, at the cost of a copy of its window.

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/saved_session.h"
#include "support/allocation_count.h"

namespace lca::test {
namespace {

const std::vector<Settings> kKinds = {small_settings(), small_settings(MethodKind::window),
                                      dense_settings()};

TEST(Marks, ASessionReturnsToAMarkAndGoesOnFromThere) {
  for (const char* name : {"llama", "deepseek_v2"}) {
    Bench bench(name);
    for (const Settings& settings : kKinds) {
      Session session = bench.spoken({settings}, 60, 0);
      session.mark();
      const std::vector<float> there = logits_of(session);
      Session straight = bench.spoken({settings}, 60, 0);
      session.prefill(bench.tokens(70, 2));
      session.mark();
      EXPECT_EQ(session.marks(), (std::vector<std::int64_t>{60, 130}));
      session.truncate(60);
      EXPECT_EQ(session.length(), 60);
      EXPECT_EQ(logits_of(session), there);
      EXPECT_EQ(session.marks(), std::vector<std::int64_t>{60}) << "later ones are gone";
      const auto other = bench.tokens(45, 9);
      session.prefill(other);
      straight.prefill(other);
      EXPECT_EQ(logits_of(session), logits_of(straight)) << name;
      EXPECT_EQ(session.cache_bytes(), straight.cache_bytes());
    }
  }
}

TEST(Marks, AForkAtAMarkIsWhatTheSessionWasThere) {
  for (const char* name : {"llama", "minicpm3"}) {
    Bench bench(name);
    for (const Settings& settings : kKinds) {
      Session session = bench.spoken({settings}, 61, 0);
      session.mark();
      session.prefill(bench.tokens(90, 2));
      Session fork = session.fork(61);
      Session straight = bench.spoken({settings}, 61, 0);
      EXPECT_EQ(logits_of(fork), logits_of(straight));
      EXPECT_EQ(fork.marks(), std::vector<std::int64_t>{61});
      for (const std::int32_t token : bench.tokens(40, 3)) {
        fork.decode(token);
        straight.decode(token);
        ASSERT_EQ(logits_of(fork), logits_of(straight)) << name;
      }
      EXPECT_EQ(session.length(), 151) << "the original stays";
      session.decode(1);
    }
  }
}

TEST(Marks, AForkBehindAMarkReadsOnlyWhatFollowsIt) {
  Bench bench("llama");
  Session session = bench.spoken({small_settings()}, 60, 0);
  session.mark();
  session.prefill(bench.tokens(80, 2));
  std::int64_t total = 0;
  const Session fork = session.fork(75, [&](PrefillProgress at) {
    total = at.total;
    return true;
  });
  EXPECT_EQ(total, 15);
  Session straight = bench.session({small_settings()});
  straight.prefill(fork.tokens());
  EXPECT_LE(logits_error(logits_of(straight), fork.logits()), 2e-5);
}

TEST(Marks, APrefixIsKeptUpToTheBestMark) {
  Bench bench("llama");
  const auto document = bench.tokens(100);
  Session session = bench.session({small_settings()});
  session.prefill(std::span(document).first(50));
  session.mark();
  session.prefill(std::span(document).subspan(50));
  session.mark();
  session.prefill(bench.tokens(40, 5));
  std::vector<std::int32_t> prompt = document;
  const auto question = bench.tokens(20, 6);
  prompt.insert(prompt.end(), question.begin(), question.end());
  EXPECT_EQ(session.keep_prefix(prompt), 100);
  session.prefill(question);
  Session straight = bench.session({small_settings()});
  straight.prefill(std::span(document).first(50));
  straight.prefill(std::span(document).subspan(50));
  straight.prefill(question);
  EXPECT_EQ(logits_of(session), logits_of(straight));
  // A document that differs behind its middle.
  prompt[70] = (prompt[70] + 1) % static_cast<std::int32_t>(bench.model->info().vocabulary);
  EXPECT_EQ(session.keep_prefix(prompt), 50);
  prompt[3] = (prompt[3] + 1) % static_cast<std::int32_t>(bench.model->info().vocabulary);
  EXPECT_EQ(session.keep_prefix(prompt), 0);
  EXPECT_TRUE(session.marks().empty());
}

TEST(Marks, TheOldestIsDroppedForANewOne) {
  Bench bench("llama");
  Session session(bench.model, bench.context, {{small_settings()}, 16, 3});
  for (int i = 0; i < 5; ++i) {
    session.prefill(bench.tokens(10, 1));
    session.mark();
    session.mark();  // marking again has no effect
  }
  EXPECT_EQ(session.marks(), (std::vector<std::int64_t>{30, 40, 50}));
  Session usual = bench.session({small_settings()});
  for (int i = 0; i < 10; ++i) {
    usual.prefill(bench.tokens(3, 1));
    usual.mark();
  }
  EXPECT_EQ(usual.marks().size(), 8U);
}

TEST(Marks, PromptModeSaysWhyItHasNone) {
  Bench bench("llama");
  Session session = bench.spoken({prompt_settings()}, 40, 0);
  expect_error([&] { session.mark(); }, {"summary mode `prompt`", "streaming"});
}

TEST(Marks, AreSavedWithTheSession) {
  const ScratchFolder folder;
  const std::string path = folder / "s";
  for (const char* name : {"llama", "deepseek_v2"}) {
    Bench bench(name);
    for (const Settings& settings : kKinds) {
      Session session = bench.spoken({settings}, 70, 0);
      session.mark();
      session.prefill(bench.tokens(66, 2));
      session.save(path);
      Session loaded = Session::load(bench.model, bench.context, path, {{}, 16});
      EXPECT_EQ(loaded.marks(), std::vector<std::int64_t>{70});
      EXPECT_EQ(loaded.memory().marks, session.memory().marks);
      loaded.truncate(70);
      session.truncate(70);
      EXPECT_EQ(logits_of(loaded), logits_of(session));
      const auto more = bench.tokens(50, 8);
      loaded.prefill(more);
      session.prefill(more);
      EXPECT_EQ(logits_of(loaded), logits_of(session)) << name;
    }
  }
}

TEST(Marks, CanBeCutToWithoutTheModel) {
  Bench bench("llama");
  const ScratchFolder folder;
  Session session = bench.spoken({small_settings()}, 70, 0);
  session.mark();
  const std::vector<float> there = logits_of(session);
  session.prefill(bench.tokens(66, 2));
  session.save(folder / "s");
  SessionRecord record = session_read(folder / "s");
  session_cut(record, 70, "s");
  session_write(folder / "t", record);
  const Session cut = Session::load(bench.model, bench.context, folder / "t");
  EXPECT_EQ(cut.length(), 70);
  EXPECT_TRUE(cut.pending().empty());
  EXPECT_EQ(logits_of(cut), there);
  SessionRecord other = session_read(folder / "s");
  expect_error([&] { session_cut(other, 60, "s"); }, {"condensed or dropped"},
               ErrorKind::incompatible);
}

// Counts bytes allocated while forks are created and continued.
TEST(Marks, AForkCopiesNoRepresentative) {
  if (!allocations_are_counted()) GTEST_SKIP() << "sanitizers have allocators of their own";
  Bench bench("llama");
  Settings settings = small_settings();
  settings.group = 2;  // many representatives beside a small window
  Session session = bench.spoken({settings}, 4000, 0);
  session.mark();
  const Memory before = session.memory();
  EXPECT_GT(before.shared, 10 * before.marks) << "the mark holds the window, and shares the rest";
  const auto layers = static_cast<std::int64_t>(bench.model->info().layers);
  const auto representatives = static_cast<std::int64_t>(before.shared);
  const std::int64_t taken = allocated_bytes();
  Session fork = session.fork(4000);
  EXPECT_LT(allocated_bytes() - taken, representatives / 4);
  EXPECT_EQ(fork.memory().shared, before.shared);
  EXPECT_LT(fork.memory().caches, before.shared / 10);
  // Both continue: each adds pages of its own, and what they share stays shared.
  for (const std::int32_t token : bench.tokens(300, 3)) fork.decode(token);
  for (const std::int32_t token : bench.tokens(300, 4)) session.decode(token);
  EXPECT_GE(fork.memory().shared + 4096 * static_cast<std::size_t>(layers), before.shared);
  EXPECT_GE(session.memory().shared + 4096 * static_cast<std::size_t>(layers), before.shared);
  EXPECT_LT(allocated_bytes() - taken, representatives / 2);
  Session straight = bench.spoken({settings}, 4000, 0);
  for (const std::int32_t token : bench.tokens(300, 4)) straight.decode(token);
  EXPECT_EQ(logits_of(session), logits_of(straight));
}

}  // namespace
}  // namespace lca::test
