// What forks, cuts and files keep of a session's marks, prompt end and logits.

#include <gtest/gtest.h>

#include "engine/saved_session.h"

namespace lca::test {
namespace {

using MarkPositions = std::vector<std::int64_t>;

/// A session of 70 tokens, marked at 20, 40 and 60.
Session marked(Bench& bench) {
  Session session = bench.session({small_settings()});
  for (std::uint32_t i = 0; i < 3; ++i) {
    session.prefill(bench.tokens(20, i));
    session.mark();
  }
  session.prefill(bench.tokens(10, 3));
  return session;
}

TEST(MarksKept, AForkTakesThoseUpToItsEnd) {
  Bench bench("llama");
  const Session session = marked(bench);
  EXPECT_EQ(session.fork(70).marks(), (MarkPositions{20, 40, 60}));
  EXPECT_EQ(session.fork(45).marks(), (MarkPositions{20, 40}));
  EXPECT_EQ(session.fork(40).marks(), (MarkPositions{20, 40}));
  EXPECT_EQ(session.fork(10).marks(), MarkPositions{});
}

TEST(MarksKept, AFileWithMoreThanAreAllowedGivesItsNewest) {
  Bench bench("llama");
  const ScratchFolder folder;
  marked(bench).save(folder / "s");
  const auto loaded = [&](std::size_t marks) {
    return Session::load(bench.model, bench.context, folder / "s", {{}, 16, marks}).marks();
  };
  EXPECT_EQ(loaded(8), (MarkPositions{20, 40, 60}));
  EXPECT_EQ(loaded(2), (MarkPositions{40, 60}));
  EXPECT_EQ(loaded(0), MarkPositions{});
}

TEST(PromptEnd, GoesBackWithTheSession) {
  Bench bench("llama");
  const ScratchFolder folder;
  Session session = bench.spoken({small_settings()}, 30, 10);
  EXPECT_EQ(session.prompt_end(), 30);
  EXPECT_EQ(session.fork(20).prompt_end(), 20);
  EXPECT_EQ(session.fork(35).prompt_end(), 30);
  session.mark();  // at 40, in a reply that began at 30
  session.prefill(bench.tokens(25, 3));
  EXPECT_EQ(session.prompt_end(), 65);
  session.save(folder / "s");
  SessionRecord record = session_read(folder / "s");
  session_cut(record, 40, "s");
  EXPECT_EQ(record.head.prompt_end, 30);
  session.truncate(40);
  EXPECT_EQ(session.prompt_end(), 30);
}

TEST(SessionPrefix, WhatHasNoLogitsIsReadAgain) {
  Bench bench("llama");
  const auto tokens = bench.tokens(70);
  const auto first = [&](std::size_t count) { return std::span(tokens).first(count); };
  Session session = bench.session({small_settings()});
  session.prefill(first(45));
  session.truncate(44);
  ASSERT_TRUE(session.logits().empty());
  session.mark();
  EXPECT_EQ(session.keep_prefix(first(44)), 43) << "its last token has no logits";
  session.prefill(std::span(tokens).subspan(43, 2));
  session.truncate(44);
  session.mark();
  session.prefill(std::span(tokens).subspan(44));
  EXPECT_EQ(session.fork(44).logits().size(),
            static_cast<std::size_t>(bench.model->info().vocabulary));
  EXPECT_EQ(session.keep_prefix(first(50)), 44) << "the mark will do: more is to be read";
  EXPECT_EQ(session.keep_prefix(first(44)), 43);
}

TEST(SessionFile, ACutBeforeAMarkWithoutLogitsDropsTheMark) {
  Bench bench("llama");
  const ScratchFolder folder;
  Session session = bench.spoken({small_settings()}, 45, 0);
  session.truncate(44);
  session.mark();
  session.decode(1);
  session.save(folder / "s");
  SessionRecord record = session_read(folder / "s");
  ASSERT_EQ(record.marks.size(), 1U);
  session_cut(record, 44, "s");
  session_write(folder / "t", record);
  const Session cut = Session::load(bench.model, bench.context, folder / "t");
  EXPECT_EQ(cut.length(), 43) << "the last token is pending";
  EXPECT_EQ(cut.pending().size(), 1U);
  EXPECT_TRUE(cut.marks().empty());
}

TEST(PromptEnd, IsWhereAKeptPrefixEnds) {
  Bench bench("llama");
  Session session = bench.spoken({small_settings()}, 30, 10);
  std::vector<std::int32_t> longer = session.tokens();
  longer.push_back(1);
  EXPECT_EQ(session.keep_prefix(longer), 40);
  EXPECT_EQ(session.prompt_end(), 40) << "the reply is part of the prompt now";
}

TEST(Pending, TokensDoNotOutliveACut) {
  Bench bench("llama");
  Session session = bench.spoken({small_settings()}, 45, 0);
  session.set_pending({1, 2});
  session.truncate(44);
  EXPECT_TRUE(session.pending().empty());
  session.set_pending({1, 2});
  std::vector<std::int32_t> longer = session.tokens();
  longer.push_back(1);
  EXPECT_EQ(session.keep_prefix(longer), 44);
  EXPECT_TRUE(session.pending().empty());
}

TEST(MarksKept, TheirMemoryIsThatOfTheWindowAndTheLogits) {
  Bench bench("llama");
  const std::size_t logits =
      static_cast<std::size_t>(bench.model->info().vocabulary) * sizeof(float);
  Session dense = bench.spoken({dense_settings()}, 60, 0);
  dense.mark();
  EXPECT_EQ(dense.memory().marks, logits) << "dense layers can be cut anywhere";
  Session session = bench.spoken({small_settings(MethodKind::window)}, 60, 0);
  session.mark();
  EXPECT_GE(session.memory().marks, logits + session.cache_bytes());
}

}  // namespace
}  // namespace lca::test
