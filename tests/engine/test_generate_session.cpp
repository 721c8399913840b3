// `generate` on real sessions: streamed pieces, counts, log-probabilities, the hook.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "engine/replies.h"

namespace lca::test {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

/// Log-softmax of `logits`, computed directly in double.
std::vector<double> log_softmax(std::span<const float> logits) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  std::vector<double> result;
  for (const float logit : logits) result.push_back(static_cast<double>(logit) - std::log(sum));
  return result;
}

void expect_logprobs(const TokenLogprobs& actual, std::int32_t token, std::size_t top,
                     std::span<const float> logits, double tolerance) {
  const std::vector<double> expected = log_softmax(logits);
  EXPECT_EQ(actual.id, token);
  EXPECT_NEAR(actual.logprob, expected[static_cast<std::size_t>(token)], tolerance);
  ASSERT_EQ(actual.top.size(), top);
  std::vector<double> sorted = expected;
  std::ranges::sort(sorted, std::greater<>());
  for (std::size_t i = 0; i < top; ++i) {
    EXPECT_NEAR(actual.top[i].logprob, sorted[i], tolerance);
    EXPECT_NEAR(actual.top[i].logprob, expected[static_cast<std::size_t>(actual.top[i].id)],
                tolerance);
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(actual.top[i].id, actual.top[j].id);
  }
}

// --- what is streamed ---------------------------------------------------------------------------

TEST(GenerateSession, PiecesAddUpToTheTextAndTheTokensThatTheSessionTook) {
  for (const char* name : {"llama", "qwen2", "deepseek_v2", "minicpm3"}) {
    Bench bench(name);
    const auto prompt = bench.tokens(50);
    Session session = bench.session({small_settings()});
    std::string text;
    std::vector<std::int32_t> ids;
    const Generated reply =
        generate_with(session, tokenizer(), prompt, {.sampling = drawn(3), .max_tokens = 60},
                      [&](const GeneratePiece& piece) {
                        EXPECT_LE(piece.ids.size(), 1u);
                        EXPECT_EQ(piece.logprobs, nullptr) << "not asked for";
                        text += piece.text;
                        ids.insert(ids.end(), piece.ids.begin(), piece.ids.end());
                        return true;
                      });
    EXPECT_EQ(reply.reason, StopReason::length);
    EXPECT_EQ(reply.tokens.size(), 60u);
    EXPECT_EQ(ids, reply.tokens);
    EXPECT_EQ(text, reply.text);
    EXPECT_EQ(text, tokenizer().decode(reply.tokens)) << name;
    EXPECT_EQ(session.tokens(), joined(prompt, reply.tokens));
    EXPECT_TRUE(reply.logprobs.empty());
    EXPECT_TRUE(reply.prompt_logprobs.empty());
  }
}

TEST(GenerateSession, AnEndTokenEndsTheReplyAndIsNotTaken) {
  Bench bench("llama");
  const auto prompt = bench.tokens(30);
  Session free = bench.session({small_settings()});
  const Generated whole =
      generate_with(free, tokenizer(), prompt, {.sampling = drawn(1), .max_tokens = 20});
  const std::int32_t end = whole.tokens[7];
  const auto first = std::ranges::find(whole.tokens, end) - whole.tokens.begin();
  Session session = bench.session({small_settings()});
  const Generated reply = generate_with(
      session, tokenizer(), prompt, {.sampling = drawn(1), .max_tokens = 20, .end_tokens = {end}});
  EXPECT_EQ(reply.reason, StopReason::end_token);
  EXPECT_TRUE(std::ranges::equal(reply.tokens,
                                 std::span(whole.tokens).first(static_cast<std::size_t>(first))));
  EXPECT_EQ(session.length(), 30 + first);
}

// What may become a stop string is withheld until the end token shows that nothing completes it.
// The piece that emits it belongs to no token.
TEST(GenerateSession, TextThatRemainsAtTheEndTokenComesWithoutAToken) {
  Bench bench("llama");
  Session session = bench.session({small_settings()});
  const std::vector<std::int32_t> forced = {'A', 'B', 'C'};
  const auto force = [&](std::span<const std::int32_t> tokens, std::span<float> logits) {
    const std::size_t at = tokens.size() - 10;
    std::ranges::fill(logits, kNever);
    logits[static_cast<std::size_t>(at < forced.size() ? forced[at] : 'E')] = 0;
  };
  std::vector<std::int32_t> ids;
  std::string last;
  const Generated reply =
      generate_with(session, tokenizer(), bench.tokens(10),
                    {.stops = {"BCD"}, .end_tokens = {'E'}, .adjust = force, .logprobs = true},
                    [&](const GeneratePiece& piece) {
                      ids.insert(ids.end(), piece.ids.begin(), piece.ids.end());
                      EXPECT_EQ(piece.logprobs != nullptr, !piece.ids.empty());
                      last = piece.text;
                      return true;
                    });
  EXPECT_EQ(reply.reason, StopReason::end_token);
  EXPECT_EQ(reply.text, "ABC");
  EXPECT_EQ(last, "BC") << "what might have become the stop string";
  EXPECT_EQ(reply.tokens, forced);
  EXPECT_EQ(ids, forced);
  EXPECT_EQ(reply.logprobs.size(), forced.size());
}

TEST(GenerateSession, CountsWhatWasThereWhatWasReadAndWhatWasGenerated) {
  Bench bench("qwen2");
  const auto all = bench.tokens(64);
  Session session = bench.session({small_settings()});
  const Generated first =
      generate_with(session, tokenizer(), std::span(all).first(40), {.max_tokens = 6});
  EXPECT_EQ(first.prompt_tokens, 40);
  EXPECT_EQ(first.reused_tokens, 0);
  EXPECT_EQ(first.read_tokens, 40);
  EXPECT_EQ(first.tokens.size(), 6u);
  const Generated second =
      generate_with(session, tokenizer(), std::span(all).subspan(40), {.max_tokens = 5});
  EXPECT_EQ(second.prompt_tokens, 46 + 24);
  EXPECT_EQ(second.reused_tokens, 46);
  EXPECT_EQ(second.read_tokens, 24);
  const Generated third = generate_with(session, tokenizer(), {}, {.max_tokens = 4});
  EXPECT_EQ(third.prompt_tokens, 75);
  EXPECT_EQ(third.reused_tokens, 75);
  EXPECT_EQ(third.read_tokens, 0);
  EXPECT_EQ(session.length(), 79);
  EXPECT_GT(first.first_seconds, first.prefill_seconds);
  EXPECT_GT(first.decode_seconds, 0);
}

TEST(GenerateSession, NothingToContinueFromIsAnError) {
  Bench bench("llama");
  Session session = bench.session({small_settings()});
  expect_error([&] { generate_with(session, tokenizer(), {}, {}); }, {"nothing to continue"});
  EXPECT_EQ(session.length(), 0);
}

// --- log-probabilities --------------------------------------------------------------------------

TEST(GenerateSession, LogProbabilitiesAreThoseOfTheModelBeforeSampling) {
  constexpr std::size_t kTop = 7;
  for (const char* name : {"llama", "deepseek_v2"}) {
    Bench bench(name);
    const auto prompt = bench.tokens(30);
    Session session = bench.session({small_settings()});
    GenerateOptions options{.sampling = drawn(5, 0.7), .max_tokens = 25};
    options.sampling.repetition_penalty = 1.3;
    options.sampling.top_p = 0.9;
    options.logprobs = true;
    options.top_logprobs = kTop;
    std::vector<float> handed;
    const Generated reply =
        generate_with(session, tokenizer(), prompt, options, [&](const GeneratePiece& piece) {
          EXPECT_NE(piece.logprobs, nullptr);
          EXPECT_EQ(piece.logprobs->id, piece.ids[0]);
          handed.push_back(piece.logprobs->logprob);
          return true;
        });
    ASSERT_EQ(reply.logprobs.size(), reply.tokens.size());
    Session twin = bench.session({small_settings()});
    twin.prefill(prompt);
    for (std::size_t i = 0; i < reply.tokens.size(); ++i) {
      expect_logprobs(reply.logprobs[i], reply.tokens[i], kTop, twin.logits(), 1e-5);
      EXPECT_EQ(reply.logprobs[i].logprob, handed[i]);
      twin.decode(reply.tokens[i]);
    }
  }
}

TEST(GenerateSession, PromptTokensHaveLogProbabilitiesTooButTheFirstOfASession) {
  constexpr std::size_t kTop = 3;
  for (const Settings& settings : {small_settings(), prompt_settings(), dense_settings()}) {
    Bench bench("llama");
    const auto prompt = bench.tokens(45);
    Session session = bench.session({settings});
    const Generated reply =
        generate_with(session, tokenizer(), prompt,
                      {.max_tokens = 1, .prompt_logprobs = true, .top_logprobs = kTop});
    ASSERT_EQ(reply.prompt_logprobs.size(), prompt.size());
    EXPECT_FALSE(reply.prompt_logprobs[0].has_value());
    std::vector<std::vector<float>> logits;
    Session twin = bench.session({settings});
    const auto vocabulary = static_cast<std::size_t>(bench.model->info().vocabulary);
    twin.prefill(prompt, {}, [&](std::int64_t, std::int64_t count, const float* rows) {
      for (std::int64_t i = 0; i < count; ++i, rows += vocabulary) {
        logits.emplace_back(rows, rows + vocabulary);
      }
    });
    for (std::size_t i = 1; i < prompt.size(); ++i) {
      ASSERT_TRUE(reply.prompt_logprobs[i].has_value());
      expect_logprobs(*reply.prompt_logprobs[i], prompt[i], kTop, logits[i - 1], 1e-5);
    }
  }
}

// The same numbers token by token: the logits of a position predict the next token.
TEST(GenerateSession, TheFirstTokenOfALaterPromptHasALogProbabilityToo) {
  Bench bench("qwen2");
  const auto all = bench.tokens(40);
  Session session = bench.session({small_settings()});
  session.prefill(std::span(all).first(15));
  const Generated reply =
      generate_with(session, tokenizer(), std::span(all).subspan(15),
                    {.max_tokens = 0, .prompt_logprobs = true, .top_logprobs = 2});
  ASSERT_EQ(reply.prompt_logprobs.size(), 25u);
  Session twin = bench.session({small_settings()});
  twin.prefill(std::span(all).first(15));
  for (std::size_t i = 0; i < 25; ++i) {
    ASSERT_TRUE(reply.prompt_logprobs[i].has_value());
    EXPECT_EQ(reply.prompt_logprobs[i]->id, all[15 + i]);
    expect_logprobs(*reply.prompt_logprobs[i], all[15 + i], 2, twin.logits(), 1e-4);
    twin.decode(all[15 + i]);
  }
}

TEST(GenerateSession, AskingForMoreLikelyTokensThanThereAreIsAnError) {
  Bench bench("llama");
  const std::int64_t vocabulary = bench.model->info().vocabulary;
  const auto prompt = bench.tokens(5);
  Session session = bench.session({small_settings()});
  for (const std::int64_t top : {std::int64_t{-1}, vocabulary + 1}) {
    expect_error(
        [&] {
          generate_with(session, tokenizer(), prompt, {.logprobs = true, .top_logprobs = top});
        },
        {"top_logprobs", std::to_string(top)});
  }
  EXPECT_EQ(session.length(), 0) << "nothing was read";
  const Generated reply =
      generate_with(session, tokenizer(), prompt,
                    {.max_tokens = 1, .logprobs = true, .top_logprobs = vocabulary});
  ASSERT_EQ(reply.logprobs.size(), 1u);
  EXPECT_EQ(reply.logprobs[0].top.size(), static_cast<std::size_t>(vocabulary));
  double sum = 0;
  for (const TokenLogprob& each : reply.logprobs[0].top) sum += std::exp(each.logprob);
  EXPECT_NEAR(sum, 1, 1e-5);
}

// --- the hook -----------------------------------------------------------------------------------

TEST(GenerateSession, TheHookForbidsTokensAndLogProbabilitiesStayTheModels) {
  Bench bench("llama");
  const auto prompt = bench.tokens(20);
  Session session = bench.session({small_settings()});
  Session twin = bench.session({small_settings()});
  twin.prefill(prompt);
  const auto forbid_best = [&](std::span<const std::int32_t> tokens, std::span<float> logits) {
    EXPECT_TRUE(std::ranges::equal(tokens, session.tokens()));
    *std::ranges::max_element(logits) = kNever;
  };
  const Generated reply =
      generate_with(session, tokenizer(), prompt,
                    {.max_tokens = 15, .adjust = forbid_best, .logprobs = true, .top_logprobs = 2});
  ASSERT_EQ(reply.tokens.size(), 15u);
  for (std::size_t i = 0; i < reply.tokens.size(); ++i) {
    expect_logprobs(reply.logprobs[i], reply.tokens[i], 2, twin.logits(), 1e-5);
    EXPECT_EQ(reply.tokens[i], reply.logprobs[i].top[1].id) << "the second best";
    twin.decode(reply.tokens[i]);
  }
  EXPECT_EQ(logits_of(session), logits_of(twin)) << "the session's own logits are not touched";
}

TEST(GenerateSession, TheHookForcesATokenWhateverTheTemperature) {
  Bench bench("llama");
  Session session = bench.session({small_settings()});
  const auto force = [](std::span<const std::int32_t> tokens, std::span<float> logits) {
    std::ranges::fill(logits, kNever);
    logits[tokens.size() % 2 == 0 ? 'X' : 'Y'] = -3;
  };
  const Generated reply = generate_with(
      session, tokenizer(), bench.tokens(10),
      {.sampling = drawn(2, 1.5), .max_tokens = 6, .adjust = force, .logprobs = true});
  EXPECT_EQ(reply.text, "XYXYXY");
  for (const TokenLogprobs& each : reply.logprobs) EXPECT_LT(each.logprob, -0.01F);
}

TEST(GenerateSession, WhatTheHookThrowsEndsTheCallAndTheSessionGoesOn) {
  Bench bench("llama");
  const auto prompt = bench.tokens(20);
  Session session = bench.session({small_settings()});
  int calls = 0;
  const auto fails = [&](std::span<const std::int32_t>, std::span<float>) {
    if (++calls == 4) throw std::runtime_error("no such schema");
  };
  EXPECT_THROW(generate_with(session, tokenizer(), prompt, {.adjust = fails}), std::runtime_error);
  EXPECT_EQ(session.length(), 23);
  Session straight = bench.session({small_settings()});
  const Generated whole = generate_with(straight, tokenizer(), prompt, {.max_tokens = 10});
  const Generated rest = generate_with(session, tokenizer(), {}, {.max_tokens = 7});
  EXPECT_TRUE(std::ranges::equal(rest.tokens, std::span(whole.tokens).subspan(3)));
}

TEST(Logprobs, EqualTokensAreListedByTheirIds) {
  const std::vector<float> logits = {1, 3, 2, 3, 3, 1};
  const TokenLogprobs three = logprobs_of(logits, 0, 3);
  ASSERT_EQ(three.top.size(), 3U);
  EXPECT_EQ(three.top[0].id, 1);
  EXPECT_EQ(three.top[1].id, 3);
  EXPECT_EQ(three.top[2].id, 4);
  EXPECT_EQ(logprobs_of(logits, 0, 2).top[1].id, 3) << "the lower ids are kept";
}

TEST(Logprobs, LargeLogitsDoNotOverflow) {
  const TokenLogprobs huge = logprobs_of(std::vector<float>{3000, 3000, -3000}, 1, 3);
  EXPECT_NEAR(huge.logprob, std::log(0.5), 1e-6);
  EXPECT_NEAR(huge.top[2].logprob, -6000 + std::log(0.5), 1e-2);
}

}  // namespace
}  // namespace lca::test
