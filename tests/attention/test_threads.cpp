// Results never depend on the number of threads, and contexts do not disturb each other. Small
// enough to run under the thread sanitizer as well.

#include <lca/lca.h>

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "support/compare.h"
#include "support/feed.h"
#include "support/random_layer.h"

namespace lca::test {
namespace {

struct ThreadsCase {
  const char* name;
  Form form;
  DType dtype;
  MethodKind method;
};

LayerSpec spec_of(const ThreadsCase& a_case) {
  LayerSpec spec;
  spec.shape = a_case.form == Form::mla ? AttentionShape::mla(3, 16, 8, 48, 16)
                                        : AttentionShape::gqa(6, 2, 24, 16);
  spec.dtype = a_case.dtype;
  spec.settings.method = a_case.method;
  spec.settings.group = 7;
  spec.settings.window = 40;
  spec.settings.sink = 3;
  spec.settings.mass = Mass::score;
  return spec;
}

class Threads : public ::testing::TestWithParam<ThreadsCase> {};

INSTANTIATE_TEST_SUITE_P(
    Of, Threads,
    ::testing::Values(ThreadsCase{"MlaF32Lca", Form::mla, DType::f32, MethodKind::lca},
                      ThreadsCase{"MlaBf16Lca", Form::mla, DType::bf16, MethodKind::lca},
                      ThreadsCase{"GqaF32Lca", Form::gqa, DType::f32, MethodKind::lca},
                      ThreadsCase{"GqaBf16Lca", Form::gqa, DType::bf16, MethodKind::lca},
                      ThreadsCase{"MlaF32Dense", Form::mla, DType::f32, MethodKind::dense},
                      ThreadsCase{"GqaBf16Dense", Form::gqa, DType::bf16, MethodKind::dense},
                      ThreadsCase{"MlaBf16Window", Form::mla, DType::bf16, MethodKind::window}),
    [](const auto& parameter) { return std::string(parameter.param.name); });

TEST_P(Threads, AnyNumberOfThemGivesTheSameBits) {
  Random random(41);
  for (Summary summary : {Summary::streaming, Summary::prompt}) {
    LayerSpec spec = spec_of(GetParam());
    spec.settings.summary = summary;
    const Layer layer = random_layer(spec, random);
    const Tokens tokens = random_tokens(spec, 330, random);
    const std::array<std::int64_t, 3> prefill{250, 5, 70};  // long and short runs, then decoding
    Context one(1);
    const Outcome expected = run_sequence(one, layer, tokens, prefill);
    for (int threads : {2, 3, 4, 7}) {
      Context context(threads);
      EXPECT_TRUE(same_bits(expected, run_sequence(context, layer, tokens, prefill)))
          << threads << " threads";
    }
  }
}

TEST_P(Threads, AContextUsedAgainGivesTheSameBits) {
  // The result must not depend on what an earlier call left in scratch memory, or on which worker
  // ran which task.
  Random random(42);
  const LayerSpec spec = spec_of(GetParam());
  const Layer layer = random_layer(spec, random);
  const Tokens tokens = random_tokens(spec, 200, random);
  const std::array<std::int64_t, 1> prefill{190};
  Context context(4);
  const Outcome first = run_sequence(context, layer, tokens, prefill);
  for (int again = 0; again < 3; ++again) {
    EXPECT_TRUE(same_bits(first, run_sequence(context, layer, tokens, prefill, {.poison = true})));
  }
}

TEST_P(Threads, ABatchIsSharedOutWithoutChangingABit) {
  Random random(43);
  const LayerSpec spec = spec_of(GetParam());
  const Layer layer = random_layer(spec, random);
  std::vector<Tokens> tokens;
  const std::vector<std::int64_t> lengths{130, 1, 60};
  for (std::int64_t n : lengths) tokens.push_back(random_tokens(spec, n, random));
  const auto run_batch = [&](int threads) {
    Context context(threads);
    std::vector<Feed> feeds;
    for (const Tokens& sequence : tokens) feeds.emplace_back(layer, sequence);
    std::vector<Feed*> pointers;
    for (Feed& feed : feeds) pointers.push_back(&feed);
    feed_forward(context, pointers, lengths);
    std::vector<Outcome> outcomes;
    for (const Feed& feed : feeds) outcomes.push_back(feed.outcome());
    return outcomes;
  };
  const std::vector<Outcome> expected = run_batch(1);
  for (int threads : {2, 5}) {
    const std::vector<Outcome> outcomes = run_batch(threads);
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      EXPECT_TRUE(same_bits(expected[i], outcomes[i])) << threads << " threads, entry " << i;
    }
  }
}

TEST_P(Threads, TwoContextsAtOnceDoNotDisturbEachOther) {
  Random random(44);
  const LayerSpec spec = spec_of(GetParam());
  const Layer layer = random_layer(spec, random);
  const Tokens tokens = random_tokens(spec, 220, random);
  const std::array<std::int64_t, 2> prefill{150, 60};
  Context alone(2);
  const Outcome expected = run_sequence(alone, layer, tokens, prefill);

  std::array<Outcome, 2> outcomes;
  std::vector<std::thread> users;
  for (Outcome& outcome : outcomes) {
    users.emplace_back([&] {
      Context context(2);
      outcome = run_sequence(context, layer, tokens, prefill);
    });
  }
  for (std::thread& user : users) user.join();
  for (const Outcome& outcome : outcomes) EXPECT_TRUE(same_bits(expected, outcome));
}

}  // namespace
}  // namespace lca::test
