// Which logits a step computes, keeps and hands out.

#include <gtest/gtest.h>

#include "engine/saved_session.h"

namespace lca::test {
namespace {

TEST(StepLogits, ASessionWithoutLogitsKeepsNoStaleOnesAndDoesNotShiftOthers) {
  Bench bench("llama");
  std::vector<Session> alone;
  std::vector<Session> together;
  std::vector<std::vector<std::int32_t>> tokens;
  std::vector<Step> steps;
  for (std::int64_t i = 0; i < 4; ++i) {
    for (std::vector<Session>* list : {&alone, &together}) {
      list->push_back(bench.spoken({small_settings()}, 20 + i, 0));
    }
    tokens.push_back(bench.tokens(3 + i, static_cast<std::uint32_t>(i)));
  }
  for (std::size_t i = 0; i < 4; ++i) {
    Step step;
    step.session = &together[i];
    step.tokens = tokens[i];
    step.prompt = true;
    step.wants_logits = i % 2 == 1;
    steps.push_back(step);
    alone[i].prefill(tokens[i]);
  }
  sessions_forward(steps);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(together[i].length(), alone[i].length());
    if (steps[i].wants_logits) {
      EXPECT_EQ(logits_of(together[i]), logits_of(alone[i])) << i;
    } else {
      EXPECT_TRUE(together[i].logits().empty()) << "those of an earlier token";
    }
  }
}

TEST(StepLogits, LogitsOfALongPromptComeInConsecutivePieces) {
  Bench bench("llama");
  const std::int64_t vocabulary = bench.model->info().vocabulary;
  const std::int64_t rows = (std::int64_t{1} << 22) / vocabulary + 100;  // more than one piece
  const auto prompt = bench.tokens(rows);
  Session session = bench.session({small_settings()});
  std::vector<std::int64_t> pieces;
  std::vector<float> last;
  std::int64_t seen = 10;
  session.prefill(bench.tokens(10, 3));
  Step step;
  step.session = &session;
  step.tokens = prompt;
  step.prompt = true;
  step.logits = [&](std::int64_t first, std::int64_t count, const float* logits) {
    EXPECT_EQ(first, seen);
    seen += count;
    pieces.push_back(count);
    last.assign(logits + (count - 1) * vocabulary, logits + count * vocabulary);
  };
  sessions_forward({&step, 1});
  EXPECT_EQ(pieces.size(), 2U);
  EXPECT_EQ(seen, 10 + rows);
  EXPECT_EQ(logits_of(session), last);
}

TEST(StepLogits, EachSinkReceivesTheLogitsOfItsSessionWhichKeepsTheLast) {
  Bench bench("llama");
  const std::int64_t vocabulary = bench.model->info().vocabulary;
  std::vector<Session> sessions;
  std::vector<std::vector<std::int32_t>> tokens;
  std::vector<std::vector<float>> last(3);
  std::vector<Step> steps(3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    sessions.push_back(bench.session({small_settings()}));
    tokens.push_back(bench.tokens(5 + i, i));
  }
  for (std::size_t i = 0; i < 3; ++i) {
    steps[i].session = &sessions[i];
    steps[i].tokens = tokens[i];
    steps[i].prompt = true;
    steps[i].logits = [&, i](std::int64_t, std::int64_t count, const float* logits) {
      last[i].assign(logits + (count - 1) * vocabulary, logits + count * vocabulary);
    };
  }
  sessions_forward(steps);
  for (std::size_t i = 0; i < 3; ++i) {
    Session alone = bench.session({small_settings()});
    alone.prefill(tokens[i]);
    EXPECT_EQ(logits_of(sessions[i]), logits_of(alone)) << i;
    EXPECT_EQ(logits_of(sessions[i]), last[i]) << i;
  }
}

TEST(StepLogits, ADecodedTokenIsRotatedForTheWholeLength) {
  Bench bench("llama_dynamic");
  Session decoded = bench.spoken({dense_settings()}, 60, 0);
  Session read = bench.spoken({dense_settings()}, 60, 0);
  decoded.decode(5);
  read.prefill(std::vector<std::int32_t>{5});
  EXPECT_EQ(logits_of(decoded), logits_of(read));
}

}  // namespace
}  // namespace lca::test
