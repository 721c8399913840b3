// Going back in a session, forking it, and keeping what a new prompt shares with it.

#include <gtest/gtest.h>

#include "engine/saved_session.h"

namespace lca::test {
namespace {

/// The logits of a fresh session that reads `tokens`.
std::vector<float> fresh_logits(Bench& bench, const std::vector<Settings>& settings,
                                std::span<const std::int32_t> tokens) {
  Session session = bench.session(settings);
  session.prefill(tokens);
  return logits_of(session);
}

TEST(SessionFork, AnyEarlierLengthIsWhereReadingItLeads) {
  for (const char* name : {"llama", "deepseek_v2"}) {
    Bench bench(name);
    for (const Settings& settings :
         {dense_settings(), small_settings(), small_settings(MethodKind::window)}) {
      const Session from = bench.spoken({settings}, 40, 7);
      for (std::int64_t length = 1; length <= 47; ++length) {
        const Session fork = from.fork(length);
        ASSERT_EQ(fork.length(), length);
        const std::span tokens = std::span(from.tokens()).first(static_cast<std::size_t>(length));
        EXPECT_LE(logits_error(fresh_logits(bench, {settings}, tokens), fork.logits()), kSameLogits)
            << name << " at " << length;
      }
      EXPECT_EQ(from.fork(0).length(), 0);
      EXPECT_EQ(from.length(), 47);
      expect_error([&] { (void)from.fork(48); }, {"48"});
      expect_error([&] { (void)from.fork(-1); }, {"-1"});
    }
  }
}

TEST(SessionFork, AForkAtTheEndIsAnExactCopyInEveryMode) {
  Bench bench("llama");
  for (const Settings& settings : {small_settings(), prompt_settings(), dense_settings()}) {
    Session from = bench.spoken({settings}, 40, 7);
    from.set_pending({1});
    Session fork = from.fork(47);
    EXPECT_EQ(fork.pending(), from.pending());
    EXPECT_EQ(logits_of(fork), logits_of(from));
    for (const std::int32_t token : bench.tokens(9, 2)) {
      fork.decode(token);
      from.decode(token);
      EXPECT_EQ(logits_of(fork), logits_of(from));
    }
  }
}

TEST(SessionFork, PromptModeSaysWhyItCannotGoBack) {
  Bench bench("llama");
  Session from = bench.spoken({prompt_settings()}, 40, 7);
  EXPECT_EQ(from.truncate_floor(), 47);
  expect_error([&] { (void)from.fork(46); }, {"summary mode `prompt`", "fork it at 47"});
  expect_error([&] { from.truncate(46); }, {"summary mode `prompt`"});
  EXPECT_EQ(from.length(), 47);
}

TEST(SessionFork, ReadingAgainReportsProgressAndCanBeStopped) {
  Bench bench("llama");
  const Session from = bench.spoken({small_settings()}, 60, 0);
  std::int64_t last = -1;
  (void)from.fork(30, [&](PrefillProgress at) {
    last = at.done;
    return true;
  });
  EXPECT_EQ(last, 30);
  expect_error([&] { (void)from.fork(30, [](PrefillProgress) { return false; }); }, {"cancelled"},
               ErrorKind::cancelled);
}

TEST(SessionTruncate, CutsDownToTheFloorAndForgetsTheLogits) {
  Bench bench("llama");
  Session session = bench.spoken({small_settings()}, 45, 0);
  const std::int64_t floor = session.truncate_floor();
  EXPECT_EQ(floor, 42);  // 2 + 8 and eight groups of 4
  expect_error([&] { session.truncate(floor - 1); }, {"shortest it can be cut to is 42"});
  expect_error([&] { session.truncate(46); }, {"46"});
  session.truncate(45);
  EXPECT_FALSE(session.logits().empty());
  session.truncate(floor);
  EXPECT_TRUE(session.logits().empty());
  const auto more = bench.tokens(9, 3);
  std::vector<std::int32_t> all(session.tokens());
  all.insert(all.end(), more.begin(), more.end());
  session.prefill(more);
  EXPECT_LE(logits_error(fresh_logits(bench, {small_settings()}, all), session.logits()),
            kSameLogits);
}

TEST(SessionPrefix, ReadsOnlyTheRest) {
  Bench bench("deepseek_v2");
  const auto tokens = bench.tokens(60);
  const auto start = [&](std::int64_t count) {
    return std::vector<std::int32_t>(tokens.begin(), tokens.begin() + count);
  };
  Session session = bench.session({small_settings()});
  EXPECT_EQ(session.keep_prefix(tokens), 0);
  session.prefill(start(45));
  EXPECT_EQ(session.keep_prefix(start(45)), 45) << "all of it, logits too";
  EXPECT_EQ(session.keep_prefix(tokens), 45);
  // A prompt that differs near the end: cut back.
  auto other = start(50);
  other[44] = (other[44] + 1) % static_cast<std::int32_t>(bench.model->info().vocabulary);
  EXPECT_EQ(session.keep_prefix(other), 44);
  EXPECT_TRUE(session.logits().empty());
  session.prefill(std::span(other).subspan(44));
  EXPECT_LE(logits_error(fresh_logits(bench, {small_settings()}, other), session.logits()),
            kSameLogits);
  // The beginning of what was read: its last token is read again for its logits.
  EXPECT_EQ(session.keep_prefix(std::span(other).first(50)), 50);
  EXPECT_EQ(session.keep_prefix(std::span(other).first(49)), 0) << "48 is behind the floor";
  EXPECT_EQ(session.length(), 0);
  expect_error([&] { session.keep_prefix({}); }, {"at least one token"});
}

TEST(SessionPrefix, PromptModeStartsOver) {
  Bench bench("llama");
  Session session = bench.spoken({prompt_settings()}, 40, 0);
  session.set_pending({1});
  std::vector<std::int32_t> longer = session.tokens();
  longer.push_back(1);
  EXPECT_EQ(session.keep_prefix(longer), 0);
  EXPECT_EQ(session.length(), 0);
  EXPECT_TRUE(session.pending().empty());
}

TEST(SessionPrefix, FrequenciesThatDependOnLengthAreNotMixed) {
  Bench bench("llama_dynamic");
  Session session = bench.spoken({dense_settings()}, 12, 0);
  EXPECT_EQ(session.truncate_floor(), 0) << "short: they do not differ yet";
  Session longer = bench.spoken({dense_settings()}, 60, 0);
  EXPECT_EQ(longer.truncate_floor(), 60);
  const Session fork = longer.fork(20);
  EXPECT_LE(logits_error(fresh_logits(bench, {dense_settings()}, fork.tokens()), fork.logits()),
            kSameLogits);
  std::vector<std::int32_t> prompt = longer.tokens();
  prompt.push_back(1);
  EXPECT_EQ(longer.keep_prefix(prompt), 0);
}

// The fork fills the page in which both end; the original goes on in another, so that one block of
// its representatives lies in two pages.
TEST(SessionFork, TheOriginalGoesOnAsIfItHadNeverBeenForked) {
  for (const char* name : {"llama", "deepseek_v2"}) {
    Bench bench(name);
    for (const Mass mass : {Mass::score, Mass::count}) {
      Settings settings = small_settings();
      settings.group = 2;
      settings.mass = mass;
      Session session = bench.spoken({settings}, 90, 0);
      Session straight = bench.spoken({settings}, 90, 0);
      Session fork = session.fork(90);
      for (const std::int32_t token : bench.tokens(20, 2)) fork.decode(token);
      for (const std::int32_t token : bench.tokens(80, 3)) {
        session.decode(token);
        straight.decode(token);
        ASSERT_EQ(logits_of(session), logits_of(straight)) << name << " at " << session.length();
      }
      const auto turn = bench.tokens(40, 4);
      session.prefill(turn);
      straight.prefill(turn);
      EXPECT_EQ(logits_of(session), logits_of(straight)) << name;
    }
  }
}

}  // namespace
}  // namespace lca::test
