// Continuous batching: requests that share steps get what they get alone.

#include <gtest/gtest.h>

#include <random>

#include "engine/engine_bench.h"

namespace lca::test {
namespace {

/// Settings of the i-th of many requests: all methods, both kinds of positions, `prompt` mode.
std::vector<Settings> settings_of(std::size_t i) {
  Settings settings = small_settings();
  switch (i % 7) {
    case 0:
      break;
    case 1:
      settings.positions = Positions::entry;
      break;
    case 2:
      return {dense_settings()};
    case 3:
      return {small_settings(MethodKind::window)};
    case 4:
      return {prompt_settings()};
    case 5:
      settings.group = 2;
      settings.window = 12;
      settings.mass = Mass::score;
      break;
    default:
      settings.group = 8;
      settings.window = 16;
      settings.sink = 0;
      settings.semantic_pool = Pool::select;
      settings.positions = Positions::entry;
      break;
  }
  return {settings};
}

/// Many requests of mixed lengths, settings and sampling.
std::vector<Wish> many_wishes(EngineBench& bench, std::size_t count) {
  std::vector<Wish> wishes;
  std::mt19937 random(3);
  for (std::size_t i = 0; i < count; ++i) {
    const auto seed = static_cast<std::uint32_t>(i);
    Wish wish{bench.tokens(1 + static_cast<std::int64_t>(random() % 70), seed), settings_of(i)};
    GenerateOptions& options = wish.generate;
    options.max_tokens = static_cast<std::int64_t>(random() % 30);
    if (i % 3 != 0) options.sampling = drawn(seed, 0.8);
    if (i % 5 == 1) options.sampling.repetition_penalty = 1.3;
    if (i % 5 == 2) options.sampling.top_k = 20;
    if (i % 4 == 3) {
      options.logprobs = true;
      options.top_logprobs = 3;
    }
    if (i % 8 == 5) options.prompt_logprobs = true;
    if (i % 6 == 2) {
      options.adjust = [](std::span<const std::int32_t> tokens, std::span<float> logits) {
        logits[tokens.size() % logits.size()] += 2;
      };
    }
    if (i % 4 == 1) {
      const Generated whole = bench.alone(wish);
      if (whole.text.size() > 6) options.stops = {whole.text.substr(4, 2)};
      if (whole.tokens.size() > 12) options.end_tokens = {whole.tokens[11]};
    }
    wishes.push_back(std::move(wish));
  }
  return wishes;
}

class EngineOfMany : public testing::TestWithParam<const char*> {};

TEST_P(EngineOfMany, RequestsThatJoinAndLeaveAtRandomGetTheTextTheyGetAlone) {
  constexpr std::size_t kRequests = 64;
  constexpr std::int64_t kTogether = 12;
  EngineBench bench(GetParam(), {.most_sessions = kTogether, .step_tokens = kTogether + 40});
  const std::vector<Wish> wishes = many_wishes(bench, kRequests);
  std::vector<Generated> expected;
  for (const Wish& wish : wishes) expected.push_back(bench.alone(wish));

  std::mt19937 random(11);
  std::vector<Outcome> outcomes(kRequests);
  std::vector<RequestId> ids;
  std::vector<bool> cancelled(kRequests);
  std::int64_t most = 0;
  for (bool left = true; left || ids.size() < kRequests;) {
    for (std::size_t i = random() % 4; i > 0 && ids.size() < kRequests; --i) {
      ids.push_back(bench.submit(wishes[ids.size()], outcomes[ids.size()]));
    }
    if (random() % 6 == 0 && !ids.empty()) {
      const std::size_t at = random() % ids.size();
      const bool over = outcomes[at].is_over();
      EXPECT_EQ(bench.engine.cancel(ids[at]), !over);
      if (!over) cancelled[at] = true;
    }
    left = bench.engine.step();
    const EngineCounts counts = bench.engine.counts();
    most = std::max(most, counts.reading + counts.decoding);
    // A prompt of its own may have any length.
    if (counts.step_decoded > 0 || counts.step_prefilled <= EngineBench::kChunk) {
      EXPECT_LE(counts.step_prefilled + counts.step_decoded, kTogether + 40);
    }
  }
  EXPECT_EQ(most, kTogether) << "they did run together";
  std::size_t ended_early = 0;
  for (std::size_t i = 0; i < kRequests; ++i) {
    const std::string what = std::string(GetParam()) + ", request " + std::to_string(i);
    if (!cancelled[i]) {
      expect_same(outcomes[i], expected[i], what);
      continue;
    }
    ASSERT_EQ(outcomes[i].ends, 1) << what;
    const Generated& reply = outcomes[i].result->generated;
    if (reply.reason != StopReason::cancelled) continue;  // it ended in that very step
    ++ended_early;
    EXPECT_TRUE(expected[i].text.starts_with(reply.text)) << what;
    EXPECT_LE(reply.tokens.size(), expected[i].tokens.size()) << what;
    EXPECT_TRUE(
        std::ranges::equal(reply.tokens, std::span(expected[i].tokens).first(reply.tokens.size())))
        << what;
  }
  EXPECT_GT(ended_early, 3u);
  const EngineCounts counts = bench.engine.counts();
  EXPECT_EQ(counts.finished, static_cast<std::int64_t>(kRequests));
  EXPECT_EQ(counts.failed, 0);
  EXPECT_EQ(counts.waiting + counts.reading + counts.decoding, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, EngineOfMany,
                         testing::Values("llama", "deepseek_v2", "llama_dynamic",
                                         "gguf_llama_q4_1"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST(Engine, WithoutRequestsThereIsNothingToDo) {
  EngineBench bench;
  EXPECT_FALSE(bench.engine.step());
  EXPECT_FALSE(bench.engine.cancel(1));
  const EngineCounts counts = bench.engine.counts();
  EXPECT_EQ(counts.steps, 0);
  EXPECT_EQ(counts.memory_reserved, 0u);
  EXPECT_GT(counts.memory_limit, 0u);
}

TEST(Engine, OptionsHaveDefaultsAndAreChecked) {
  EngineBench bench;
  EXPECT_GT(bench.engine.options().most_sessions, 0);
  EXPECT_EQ(bench.engine.options().step_tokens, bench.engine.options().most_sessions + 1024);
  const auto refused = [&](const EngineOptions& options, const char* what) {
    expect_error([&] { Engine engine(bench.model, bench.context, options); }, {what});
  };
  refused({.most_sessions = -1}, "most_sessions must be 0 or more");
  refused({.step_tokens = -1}, "step_tokens must be 0 or more");
  refused({.most_sessions = 8, .step_tokens = 8}, "step_tokens is 8");
  expect_error([&] { Engine engine(nullptr, bench.context); }, {"needs a model"});
}

TEST(Engine, ABadRequestIsRefusedAtOnceAndStaysWithTheCaller) {
  EngineBench bench;
  Bench other("llama");
  const auto refused = [&](Request&& request, const char* what) {
    const std::size_t prompt = request.prompt.size();
    const bool has_session = request.session.has_value();
    expect_error([&] { bench.engine.submit(std::move(request), {}); }, {what});
    EXPECT_EQ(request.prompt.size(), prompt);
    EXPECT_EQ(request.session.has_value(), has_session);
  };
  const auto made = [&](const auto& change) {
    Request request = bench.request(bench.wish(20, 4));
    change(request);
    return request;
  };
  refused(made([](Request& r) { r.prompt.clear(); }), "at least one token");
  refused(made([](Request& r) { r.prompt[3] = 96; }), "not in the vocabulary");
  refused(made([](Request& r) { r.generate.max_tokens = -1; }), "max_tokens");
  refused(made([](Request& r) { r.generate.top_logprobs = 97; }), "top_logprobs");
  refused(made([](Request& r) { r.generate.stops = {""}; }), "stop string is empty");
  refused(made([](Request& r) { r.generate.sampling.top_p = 2; }), "top_p");
  refused(made([](Request& r) { r.options.chunk = -1; }), "chunk must be 0 or more");
  refused(made([](Request& r) { r.options.settings.resize(3); }), "settings for 3 layers");
  refused(made([](Request& r) { r.options.settings[0].group = 0; }), "group");
  refused(made([&](Request& r) { r.session = other.spoken({small_settings()}, 5, 0); }),
          "another model");
  refused(made([&](Request& r) {
            r.session = bench.session({small_settings()});
            r.prompt.clear();
          }),
          "at least one token");
  refused(made([&](Request& r) {
            r.session = bench.spoken({small_settings()}, 5, 0);
            r.prompt.clear();
            r.keep_prefix = true;
          }),
          "at least one token");
  EXPECT_FALSE(bench.engine.step()) << "nothing was queued";
}

TEST(Engine, PromptsAreReadFirstComeFirstServedWhileOthersDecode) {
  EngineBench bench("llama", {.most_sessions = 8, .step_tokens = 8 + 16});
  std::vector<Outcome> outcomes(4);
  std::vector<std::size_t> begun;
  Outcome early;
  bench.submit(bench.wish(5, 40), early);
  EXPECT_TRUE(bench.engine.step());
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    Request request = bench.request(bench.wish(40, 3, static_cast<std::uint32_t>(i)));
    RequestCallbacks callbacks = outcomes[i].callbacks();
    callbacks.piece = [&, i](const GeneratePiece&) {
      if (std::ranges::find(begun, i) == begun.end()) begun.push_back(i);
      return true;
    };
    bench.engine.submit(std::move(request), callbacks);
  }
  std::size_t taken = early.ids.size();
  while (!outcomes.back().is_over()) {
    ASSERT_TRUE(bench.engine.step());
    EXPECT_EQ(early.ids.size(), ++taken) << "a running request decodes in every step";
    const EngineCounts counts = bench.engine.counts();
    EXPECT_LE(counts.step_prefilled + counts.step_decoded, 8 + 16);
  }
  EXPECT_EQ(begun, (std::vector<std::size_t>{0, 1, 2, 3}));
  bench.run_all();
  EXPECT_EQ(early.ids.size(), 40u);
}

TEST(Engine, APromptThatWaitsForItsEndIsAStepOfItsOwnBetweenTwoOthers) {
  EngineBench bench;
  Outcome early;
  std::vector<Outcome> whole(3);
  bench.submit(bench.wish(5, 60), early);
  bench.engine.step();
  for (Outcome& outcome : whole) {
    Wish wish = bench.wish(50, 3);
    wish.settings = {prompt_settings()};
    bench.submit(wish, outcome);
  }
  bool alone = false;
  std::int64_t read = 0;
  while (!whole.back().is_over()) {
    bench.engine.step();
    const EngineCounts counts = bench.engine.counts();
    if (counts.step_prefilled > 0) {
      EXPECT_FALSE(alone) << "the others decode in between";
      EXPECT_EQ(counts.step_prefilled, 50);
      EXPECT_EQ(counts.step_decoded, 0);
      ++read;
    }
    alone = counts.step_prefilled > 0;
  }
  EXPECT_EQ(read, 3);
  bench.run_all();
}

TEST(Engine, CallbacksMaySubmitAndCancel) {
  EngineBench bench;
  const Wish wish = bench.wish(10, 5);
  Outcome first;
  Outcome second;
  Outcome third;
  RequestId unwanted = 0;
  RequestCallbacks callbacks = first.callbacks();
  callbacks.finished = [&](RequestResult made) {
    ++first.ends;
    first.result = std::move(made);
    bench.submit(wish, second);
    unwanted = bench.submit(wish, third);
    EXPECT_TRUE(bench.engine.cancel(unwanted));
    expect_error([&] { bench.engine.step(); }, {"stepping already"}, ErrorKind::busy);
  };
  bench.engine.submit(bench.request(wish), callbacks);
  bench.run_all();
  expect_same(first, bench.alone(wish), "first");
  expect_same(second, bench.alone(wish), "second");
  ASSERT_EQ(third.ends, 1);
  EXPECT_EQ(third.result->generated.reason, StopReason::cancelled);
}

TEST(Engine, CountsAddUp) {
  EngineBench bench;
  Outcome a;
  Outcome b;
  bench.submit(bench.wish(20, 5), a);
  bench.submit(bench.wish(33, 7, 5), b);
  EXPECT_EQ(bench.engine.counts().waiting, 2);
  bench.engine.step();
  EXPECT_EQ(bench.engine.counts().waiting, 0);
  EXPECT_EQ(bench.engine.counts().reading, 2);
  EXPECT_EQ(bench.engine.counts().step_prefilled, 32);
  EXPECT_GT(bench.engine.counts().memory_used, 0u);
  EXPECT_GT(bench.engine.counts().memory_reserved, bench.engine.counts().memory_used);
  bench.engine.step();
  EXPECT_EQ(bench.engine.counts().reading, 1);
  EXPECT_EQ(bench.engine.counts().decoding, 1);
  bench.run_all();
  const EngineCounts counts = bench.engine.counts();
  EXPECT_EQ(counts.prefilled_tokens, 53);
  EXPECT_EQ(counts.decoded_tokens, 4 + 6) << "the last token of each is not decoded";
  EXPECT_EQ(counts.finished, 2);
  EXPECT_EQ(counts.memory_reserved, 0u);
}

}  // namespace
}  // namespace lca::test
