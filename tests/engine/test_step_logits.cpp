// Which logits a step computes, keeps and hands out.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "engine/saved_session.h"
#include "models/stages.h"

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
  Session session = bench.session({small_settings(MethodKind::window)});  // linear in the length
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

TEST(StepLogits, AGreedySessionReceivesItsTokenInPlaceOfLogitsAndDoesNotShiftOthers) {
  Bench bench("llama");
  std::vector<Session> alone;
  std::vector<Session> together;
  std::vector<std::vector<std::int32_t>> tokens;
  std::vector<Step> steps(6);
  std::vector<std::int32_t> picked(6, -7);
  std::int64_t sunk = 0;
  for (std::int64_t i = 0; i < 6; ++i) {
    for (std::vector<Session>* list : {&alone, &together}) {
      list->push_back(bench.spoken({small_settings()}, 20 + i, 0));
    }
    tokens.push_back(bench.tokens(1 + i, static_cast<std::uint32_t>(i)));
  }
  for (std::size_t i = 0; i < 6; ++i) {
    steps[i].session = &together[i];
    steps[i].tokens = tokens[i];
    steps[i].prompt = true;
    if (i % 2 == 0) steps[i].greedy = &picked[i];
    if (i == 2 || i == 3) {
      steps[i].logits = [&](std::int64_t, std::int64_t count, const float*) { sunk += count; };
    }
    alone[i].prefill(tokens[i]);
  }
  sessions_forward(steps);
  EXPECT_EQ(sunk, 3 + 4);
  for (std::size_t i = 0; i < 6; ++i) {
    const std::vector<float> expected = logits_of(alone[i]);
    if (i % 2 == 0) {
      EXPECT_EQ(picked[i], std::ranges::max_element(expected) - expected.begin()) << i;
      EXPECT_TRUE(together[i].logits().empty());
    } else {
      EXPECT_EQ(logits_of(together[i]), expected) << i;
      EXPECT_EQ(picked[i], -7);
    }
    together[i].decode(3);
    alone[i].decode(3);
    EXPECT_EQ(logits_of(together[i]), logits_of(alone[i])) << i;
  }
}

/// Stages whose logits are given.
class GivenLogits final : public Stages {
 public:
  explicit GivenLogits(std::vector<float> rows) : rows_(std::move(rows)) {}
  void begin(std::span<const SequenceRun>) override {}
  void entries(std::size_t, RowRange) override {}
  void attend(std::size_t, RowRange) override {}
  void feed_forward(std::size_t, RowRange) override {}
  const float* logits(std::span<const RowRange>) override { return rows_.data(); }
  std::int64_t vocabulary() const override { return 3; }

 private:
  std::vector<float> rows_;
};

TEST(StepLogits, PicksAreTheLowestOfTheLikeliestAndShowNaN) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  GivenLogits stages({1, 3, 3, /**/ -kInf, -kInf, -kInf, /**/ 0, kNan, 1, /**/ kNan, 2, 1});
  const std::vector<RowRange> ranges = {{0, 1}, {1, 2}, {3, 1}};
  std::vector<std::int32_t> out(4, 9);
  stages.picks(ranges, out);
  EXPECT_EQ(out, (std::vector<std::int32_t>{1, 0, -1, -1}));
}

TEST(StepLogits, AChunkIsRotatedForTheWholePromptWhereItsRestIsAnnounced) {
  for (const Positions positions : {Positions::token, Positions::entry}) {
    Bench bench("llama_dynamic");
    Settings settings = small_settings();
    settings.positions = positions;
    const auto prompt = bench.tokens(90);
    Session alone = bench.session({settings}, 30);
    alone.prefill(prompt);
    Session chunked = bench.session({settings}, 30);
    for (std::size_t first = 0; first < 90; first += 30) {
      Step step;
      step.session = &chunked;
      step.tokens = std::span(prompt).subspan(first, 30);
      step.prompt = true;
      step.prompt_left = static_cast<std::int64_t>(60 - first);
      sessions_forward({&step, 1});
    }
    EXPECT_EQ(logits_of(chunked), logits_of(alone));
    Step wrong;
    wrong.session = &chunked;
    wrong.tokens = std::span(prompt).first(1);
    wrong.prompt_left = 3;
    expect_error([&] { sessions_forward({&wrong, 1}); }, {"of a prompt"});
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
