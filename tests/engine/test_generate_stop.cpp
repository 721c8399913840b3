// Stopping `generate`, and several replies at the same time.

#include <gtest/gtest.h>

#include <deque>
#include <thread>

#include "engine/replies.h"

namespace lca::test {
namespace {

TEST(GenerateStop, AStopWhileReadingLeavesASessionThatReadsTheRest) {
  for (const bool by_token : {true, false}) {
    Bench bench("qwen2");
    const auto prompt = bench.tokens(100);
    Session session = bench.session({small_settings()});
    std::stop_source stop;
    GenerateOptions options{.max_tokens = 8, .stop = stop.get_token()};
    options.progress = [&](PrefillProgress at) {
      if (at.done < 48) return true;
      if (by_token) stop.request_stop();
      return by_token;
    };
    bool pieces = false;
    const Generated cut = generate_with(session, tokenizer(), prompt, options,
                                        [&](const GeneratePiece&) { return pieces = true; });
    EXPECT_EQ(cut.reason, StopReason::cancelled);
    EXPECT_FALSE(pieces);
    EXPECT_TRUE(cut.tokens.empty());
    EXPECT_EQ(cut.prompt_tokens, 100);
    EXPECT_EQ(cut.read_tokens, session.length());
    EXPECT_EQ(session.length(), 48) << "whole chunks of 16";
    EXPECT_EQ(cut.first_seconds, 0);
    const Generated rest =
        generate_with(session, tokenizer(), std::span(prompt).subspan(48), {.max_tokens = 8});
    EXPECT_EQ(rest.reused_tokens, 48);
    Session straight = bench.session({small_settings()});
    const Generated whole = generate_with(straight, tokenizer(), prompt, {.max_tokens = 8});
    EXPECT_EQ(rest.tokens, whole.tokens);
    EXPECT_EQ(logits_of(session), logits_of(straight));
  }
}

TEST(GenerateStop, InPromptModeAStopWhileReadingReadsNothing) {
  Bench bench("llama");
  const auto prompt = bench.tokens(60);
  Session session = bench.session({prompt_settings()});
  std::stop_source stop;
  GenerateOptions options{.stop = stop.get_token()};
  options.progress = [&](PrefillProgress at) {
    if (at.done > 0) stop.request_stop();
    return true;
  };
  const Generated cut = generate_with(session, tokenizer(), prompt, options);
  EXPECT_EQ(cut.reason, StopReason::cancelled);
  EXPECT_EQ(cut.read_tokens, 0);
  EXPECT_EQ(session.length(), 0);
  Session straight = bench.session({prompt_settings()});
  EXPECT_EQ(generate_with(session, tokenizer(), prompt, {.max_tokens = 8}).tokens,
            generate_with(straight, tokenizer(), prompt, {.max_tokens = 8}).tokens);
}

TEST(GenerateStop, AStopWhileGeneratingKeepsWhatWasEmitted) {
  for (const bool by_token : {true, false}) {
    Bench bench("deepseek_v2");
    const auto prompt = bench.tokens(40);
    Session session = bench.session({small_settings()});
    std::stop_source stop;
    int pieces = 0;
    GenerateOptions options{.sampling = drawn(8), .max_tokens = 20, .logprobs = true};
    options.stop = stop.get_token();
    const Generated cut =
        generate_with(session, tokenizer(), prompt, options, [&](const GeneratePiece&) {
          if (++pieces < 5) return true;
          if (by_token) stop.request_stop();
          return by_token;
        });
    EXPECT_EQ(cut.reason, StopReason::cancelled);
    EXPECT_EQ(cut.tokens.size(), 5u);
    EXPECT_EQ(cut.logprobs.size(), 5u);
    EXPECT_EQ(cut.read_tokens, 40);
    EXPECT_EQ(session.tokens(), joined(prompt, cut.tokens));
    const Generated rest = generate_with(session, tokenizer(), {},
                                         {.sampling = drawn(8), .max_tokens = 15, .resumed = true});
    Session straight = bench.session({small_settings()});
    const Generated whole =
        generate_with(straight, tokenizer(), prompt, {.sampling = drawn(8), .max_tokens = 20});
    EXPECT_EQ(joined(cut.tokens, rest.tokens), whole.tokens);
    EXPECT_EQ(cut.text + rest.text, whole.text);
  }
}

TEST(GenerateStop, AStopThatWasRequestedBeforeReadsNothing) {
  Bench bench("llama");
  Session session = bench.session({small_settings()});
  std::stop_source stop;
  stop.request_stop();
  const Generated cut =
      generate_with(session, tokenizer(), bench.tokens(30), {.stop = stop.get_token()});
  EXPECT_EQ(cut.reason, StopReason::cancelled);
  EXPECT_EQ(cut.read_tokens, 0);
  EXPECT_EQ(session.length(), 0);
}

// Two replies to one prompt, one token of each in turn.
TEST(GenerateBeside, EachRequestSamplesAsItWouldAlone) {
  Bench bench("llama");
  const auto prompt = bench.tokens(70);
  const GenerateOptions one{.sampling = drawn(11, 0.8), .max_tokens = 30};
  const GenerateOptions other{.sampling = drawn(12, 1.4), .max_tokens = 30};
  const auto alone = [&](const GenerateOptions& options) {
    Session session = bench.session({small_settings()});
    return generate_with(session, tokenizer(), prompt, options).tokens;
  };
  Session session = bench.session({small_settings()});
  session.prefill(prompt);
  Session fork = session.fork(session.length());
  std::vector<std::int32_t> others;
  const Generated reply = generate_with(session, tokenizer(), {}, one, [&](const GeneratePiece&) {
    GenerateOptions next = other;
    next.max_tokens = 1;
    others.push_back(generate_with(fork, tokenizer(), {}, next).tokens.at(0));
    return true;
  });
  EXPECT_EQ(reply.tokens, alone(one));
  EXPECT_EQ(others, alone(other));
  EXPECT_NE(reply.tokens, others);
}

TEST(ThreadsGenerate, ForksReplyAtTheSameTimeOnContextsOfTheirOwn) {
  Bench bench("llama");
  const auto prompt = bench.tokens(70);
  Session session = bench.session({small_settings()});
  session.prefill(prompt);
  std::vector<std::vector<std::int32_t>> alone, together(4);
  std::deque<Context> contexts;  // outlive the sessions
  std::vector<Session> forks;
  for (std::uint64_t i = 0; i < together.size(); ++i) {
    Session single = bench.session({small_settings()});
    alone.push_back(
        generate_with(single, tokenizer(), prompt, {.sampling = drawn(i), .max_tokens = 60})
            .tokens);
    forks.push_back(session.fork(session.length()));
    forks.back().set_context(contexts.emplace_back(1));
  }
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < forks.size(); ++i) {
      threads.emplace_back([&, i] {
        together[i] =
            generate_with(forks[i], tokenizer(), {}, {.sampling = drawn(i), .max_tokens = 60})
                .tokens;
      });
    }
  }
  EXPECT_EQ(together, alone);
}

}  // namespace
}  // namespace lca::test
