#pragma once
/// Requests to an engine with a tiny model, and what became of them.

#include <lca/engine.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine_state.h"
#include "engine/replies.h"

namespace lca::test {

/// A request that can be made more than once.
struct Wish {
  std::vector<std::int32_t> prompt;
  std::vector<Settings> settings = {small_settings()};
  GenerateOptions generate = {};
};

/// What a request's callbacks received.
struct Outcome {
  std::string text;
  std::vector<std::int32_t> ids;
  std::optional<RequestResult> result;
  std::optional<Error> error;
  int ends = 0;

  bool is_over() const { return ends > 0; }
  RequestCallbacks callbacks() {
    return {.piece =
                [this](const GeneratePiece& piece) {
                  EXPECT_EQ(ends, 0);
                  text += piece.text;
                  ids.insert(ids.end(), piece.ids.begin(), piece.ids.end());
                  return true;
                },
            .finished =
                [this](RequestResult made) {
                  ++ends;
                  result = std::move(made);
                },
            .failed =
                [this](const Error& why, RequestResult made) {
                  ++ends;
                  error = why;
                  result = std::move(made);
                }};
  }
};

/// An engine on a tiny model; sessions read in chunks of 16 tokens.
struct EngineBench : Bench {
  static constexpr std::int64_t kChunk = 16;

  explicit EngineBench(const std::string& name = "llama", EngineOptions options = {},
                       Precision precision = Precision::f32,
                       CacheStorage cache = CacheStorage::plain)
      : Bench(name, precision, cache), engine(model, context, options) {
    engine.state().tokenizer = tokenizer();
  }

  Request request(const Wish& wish) const {
    Request made;
    made.prompt = wish.prompt;
    made.options.settings = wish.settings;
    made.options.chunk = kChunk;
    made.generate = wish.generate;
    return made;
  }
  RequestId submit(const Wish& wish, Outcome& outcome) {
    return engine.submit(request(wish), outcome.callbacks());
  }
  Generated alone(const Wish& wish) {
    Session made = session(wish.settings, kChunk);
    return generate_with(made, tokenizer(), wish.prompt, wish.generate);
  }
  void run_all() {
    while (engine.step()) {
    }
  }
  /// A wish whose text is easy to tell from others.
  Wish wish(std::int64_t prompt, std::int64_t max_tokens, std::uint32_t seed = 7) const {
    Wish made{tokens(prompt, seed)};
    made.generate.max_tokens = max_tokens;
    made.generate.sampling = drawn(seed);
    return made;
  }

  Engine engine;
};

inline bool same(const TokenLogprobs& a, const TokenLogprobs& b) {
  return a.id == b.id && a.logprob == b.logprob &&
         std::ranges::equal(a.top, b.top, [](const TokenLogprob& x, const TokenLogprob& y) {
           return x.id == y.id && x.logprob == y.logprob;
         });
}

/// The request ended with what `generate` gives it alone, to the bit.
inline void expect_same(const Outcome& outcome, const Generated& alone, const std::string& what) {
  ASSERT_EQ(outcome.ends, 1) << what;
  ASSERT_FALSE(outcome.error.has_value()) << what << ": " << outcome.error->what();
  const Generated& reply = outcome.result->generated;
  EXPECT_EQ(reply.text, alone.text) << what;
  EXPECT_EQ(outcome.text, alone.text) << what;
  EXPECT_EQ(reply.tokens, alone.tokens) << what;
  EXPECT_EQ(outcome.ids, alone.tokens) << what;
  EXPECT_EQ(reply.reason, alone.reason) << what;
  EXPECT_EQ(reply.prompt_tokens, alone.prompt_tokens) << what;
  EXPECT_EQ(reply.reused_tokens, alone.reused_tokens) << what;
  EXPECT_EQ(reply.read_tokens, alone.read_tokens) << what;
  EXPECT_TRUE(std::ranges::equal(reply.logprobs, alone.logprobs, same)) << what;
  EXPECT_TRUE(std::ranges::equal(reply.prompt_logprobs, alone.prompt_logprobs,
                                 [](const auto& a, const auto& b) {
                                   return a.has_value() == b.has_value() && (!a || same(*a, *b));
                                 }))
      << what;
}

}  // namespace lca::test
