// Sessions that are kept: they go on as they would have, and share what they have in common.

#include <gtest/gtest.h>

#include <list>

#include "engine/saved_session.h"
#include "engine/session_frozen.h"

namespace lca::test {
namespace {

/// Settings under which blocks of exact tokens begin and end inside a window.
Settings wide_settings(MethodKind method = MethodKind::lca) {
  Settings settings = small_settings(method);
  settings.window = 150;
  settings.sink = 5;
  settings.group = 8;
  settings.summary_queries = 12;
  return settings;
}

struct FrozenBench : Bench {
  explicit FrozenBench(const std::string& name) : Bench(name) {}

  FrozenSession frozen(const Session& session, std::vector<const FrozenSession*> alike = {}) {
    return {session, {}, alike, count};
  }
  /// A session that has read the first `length` tokens, in chunks of 16.
  Session read(const Settings& settings, std::span<const std::int32_t> all, std::int64_t length) {
    Session made = session({settings});
    made.prefill(all.first(static_cast<std::size_t>(length)));
    return made;
  }

  std::shared_ptr<FrozenBytes> count = std::make_shared<FrozenBytes>();
};

/// Both read and decode, and have the same logits to the bit.
void expect_goes_on(Session& one, Session& other, std::span<const std::int32_t> more) {
  ASSERT_EQ(one.tokens(), other.tokens());
  EXPECT_EQ(one.layout().window, other.layout().window);
  EXPECT_EQ(one.cache_bytes(), other.cache_bytes());
  one.prefill(more.first(more.size() / 2));
  other.prefill(more.first(more.size() / 2));
  ASSERT_EQ(logits_of(one), logits_of(other));
  for (const std::int32_t token : more.subspan(more.size() / 2)) {
    one.decode(token);
    other.decode(token);
    ASSERT_EQ(logits_of(one), logits_of(other));
  }
}

TEST(FrozenSession, GoesOnToTheBitFromAnyLength) {
  for (const char* name : {"llama", "deepseek_v2"}) {
    for (const MethodKind method : {MethodKind::lca, MethodKind::window, MethodKind::dense}) {
      FrozenBench bench(name);
      const auto all = bench.tokens(400);
      const auto more = bench.tokens(60, 3);
      for (const std::int64_t length : {1, 4, 5, 63, 64, 65, 155, 163, 200, 311, 400}) {
        Session session = bench.read(wide_settings(method), all, length);
        session.set_pending({3, 1});
        Session thawed = bench.frozen(session).thaw();
        EXPECT_EQ(thawed.pending(), session.pending());
        EXPECT_EQ(thawed.prompt_end(), session.prompt_end());
        EXPECT_EQ(logits_of(thawed), logits_of(session));
        EXPECT_EQ(thawed.truncate_floor(), session.truncate_floor());
        expect_goes_on(thawed, session, more);
      }
    }
  }
}

TEST(FrozenSession, CutBackInsideItsWindowItGoesOnToo) {
  FrozenBench bench("llama");
  const auto all = bench.tokens(400);
  for (std::int64_t length = 230; length < 240; ++length) {
    Session session = bench.read(wide_settings(), all, length);
    Session thawed = bench.frozen(session).thaw();
    session.truncate(session.truncate_floor());
    thawed.truncate(thawed.truncate_floor());
    expect_goes_on(thawed, session, bench.tokens(40, 5));
  }
}

TEST(FrozenSession, WhatBeginsAlikeIsHeldOnce) {
  FrozenBench bench("llama");
  const auto all = bench.tokens(400);
  Session session = bench.read(wide_settings(), all, 300);
  const FrozenSession first = bench.frozen(session);
  const std::size_t alone = bench.count->blocks;
  EXPECT_GT(alone, 0U);
  const FrozenSession again = bench.frozen(session, {&first});
  EXPECT_EQ(bench.count->blocks, alone) << "the same once more";
  session.prefill(std::span(all).subspan(300, 20));
  const FrozenSession later = bench.frozen(session, {&first});
  EXPECT_LT(bench.count->blocks, alone + alone / 2) << "20 of 150 tokens are new";
  {
    const FrozenSession unknown = bench.frozen(session);
    EXPECT_GT(bench.count->blocks, 3 * alone / 2);
  }
  // In other chunks some rows may differ in their last bits: those are not shared, the others are.
  Session whole = bench.read(wide_settings(), all, 320);
  const std::size_t before = bench.count->blocks;
  const FrozenSession other = bench.frozen(whole, {&first, &later});
  EXPECT_LT(bench.count->blocks, before + alone / 2);
  Session thawed = other.thaw();
  expect_goes_on(thawed, whole, bench.tokens(20, 2));
  Session last = later.thaw();
  expect_goes_on(last, session, bench.tokens(20, 2));
}

TEST(FrozenSession, SequencesThatPartShareWhatIsBefore) {
  FrozenBench bench("llama");
  const auto all = bench.tokens(330);
  Session trunk = bench.read(wide_settings(), all, 300);
  const FrozenSession kept = bench.frozen(trunk);
  const std::size_t alone = bench.count->blocks;
  std::vector<Session> branches;
  std::list<FrozenSession> frozen;
  for (std::uint32_t seed = 1; seed <= 3; ++seed) {
    branches.push_back(trunk.fork(300));
    branches.back().prefill(bench.tokens(30, 100 + seed));
    std::vector<const FrozenSession*> alike = {&kept};
    for (const FrozenSession& other : frozen) alike.push_back(&other);
    frozen.push_back(bench.frozen(branches.back(), alike));
  }
  EXPECT_LT(bench.count->blocks, 3 * alone) << "four apart would take four times as much";
  // The trunk took rows of the first branch into its last block; it must not see them.
  Session again = kept.thaw();
  expect_goes_on(again, trunk, bench.tokens(30, 9));
  auto at = branches.begin();
  for (const FrozenSession& one : frozen) {
    Session thawed = one.thaw();
    expect_goes_on(thawed, *at++, bench.tokens(30, 9));
  }
}

TEST(FrozenSession, DroppedInAnyOrderTheOthersStayWhole) {
  FrozenBench bench("llama");
  const auto all = bench.tokens(600);
  const std::vector<std::int64_t> lengths = {150, 170, 171, 240, 300, 301, 420, 431};
  for (std::uint32_t order = 1; order <= 6; ++order) {
    std::vector<std::unique_ptr<FrozenSession>> kept;
    std::vector<Session> exact;
    Session session = bench.session({wide_settings()});
    for (const std::int64_t length : lengths) {
      const auto read = static_cast<std::size_t>(session.length());
      session.prefill(std::span(all).subspan(read, static_cast<std::size_t>(length) - read));
      exact.push_back(session.fork(length));
      std::vector<const FrozenSession*> alike;
      for (auto one = kept.rbegin(); one != kept.rend(); ++one) alike.push_back(one->get());
      kept.push_back(std::make_unique<FrozenSession>(bench.frozen(session, alike)));
    }
    std::uint32_t seed = order;
    std::size_t held = bench.count->blocks;
    for (std::size_t left = kept.size(); left > 0; --left) {
      seed = seed * 1664525u + 1013904223u;
      const auto at = static_cast<std::ptrdiff_t>((seed >> 8) % left);
      Session thawed = kept[static_cast<std::size_t>(at)]->thaw();
      expect_goes_on(thawed, exact[static_cast<std::size_t>(at)], bench.tokens(12, seed));
      kept.erase(kept.begin() + at);
      exact.erase(exact.begin() + at);
      EXPECT_LE(bench.count->blocks, held);
      held = bench.count->blocks;
    }
    EXPECT_EQ(bench.count->blocks, 0U);
  }
}

}  // namespace
}  // namespace lca::test
