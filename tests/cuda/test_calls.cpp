// The calls that a resident model is made of: chunks and steps that only enqueue, and one captured
// step of all layers that is replayed for token after token.

#include "attention/cuda/calls.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "cuda/resident.h"

namespace lca::test {
namespace {

Settings calls_settings() {
  Settings settings;
  settings.group = 3;
  settings.window = 7;
  settings.sink = 2;
  settings.summary_queries = 5;
  settings.mass = Mass::score;
  return settings;
}

/// Chunks, then one captured step replayed, then a chunk and the same graph again; everything
/// against the reference.
void expect_replays_right(const AttentionShape& shape, cuda::Kernels kernels, HeadReduce reduce,
                          std::uint64_t seed, Tally& tally, Positions positions = Positions::token,
                          bool turned_weights = false) {
  Random random(seed);
  Settings settings = calls_settings();
  settings.head_reduce = reduce;
  settings.positions = positions;
  LayerSpec spec = spec_of(shape, settings);
  if (positions == Positions::entry) spec.rotation = random_rotation(random, shape.d_positional());
  Resident model({spec, spec}, random, {.sequences = 4, .longest = 400, .poison = true}, kernels);
  if (turned_weights) model.turn();

  constexpr std::int64_t kFirst = 40, kSteps = 230, kSecond = 25, kMore = 20;
  constexpr std::int64_t kAll = kFirst + kSteps + kSecond + kMore;
  Talk first = model.talk(kFirst, kAll, random);
  { const auto gap = model.open(); }  // numbers need not be consecutive
  Talk second = model.talk(kFirst, kAll, random);
  const std::array<Talk*, 2> both = {&first, &second}, turned = {&second, &first};
  const std::array<std::int64_t, 2> some = {kFirst - 15, kFirst - 15}, rest = {15, 15};
  model.chunk(both, some);
  model.chunk(turned, rest);
  // 230 tokens are 76 groups, more than a page.
  for (std::int64_t i = 0; i < kSteps; ++i) model.decode(i % 2 == 0 ? both : turned);
  const std::array<std::int64_t, 2> more = {kSecond, kSecond};
  model.chunk(both, more);
  for (std::int64_t i = 0; i < kMore; ++i) model.decode(both);
  EXPECT_EQ(model.graphs(), 1u) << "a step was captured again";
  model.check(first, "first", tally);
  model.check(second, "second", tally);
}

TEST(CudaCalls, OneCapturedStepOfAllLayersIsReplayedForEveryToken) {
  LCA_NEEDS_GPU();
  Tally tally{.tolerance = 7e-3};
  std::uint64_t seed = 9000;
  for (const cuda::Kernels kernels : {cuda::Kernels::fast, cuda::Kernels::portable}) {
    for (const AttentionShape& shape :
         {AttentionShape::mla(3, 128, 64, 512, 128), AttentionShape::mla(3, 64, 32, 256, 64),
          AttentionShape::mla(4, 16, 8, 40, 24), AttentionShape::gqa(6, 2, 64, 64)}) {
      expect_replays_right(shape, kernels, HeadReduce::mean, ++seed, tally);
      if (HasFailure()) return;
    }
  }
  expect_replays_right(AttentionShape::mla(4, 16, 8, 64, 24), cuda::Kernels::fast, HeadReduce::max,
                       ++seed, tally);
  finish(tally);
}

TEST(CudaCalls, OneCapturedStepFollowsEntryPositions) {
  LCA_NEEDS_GPU();
  Tally tally{.tolerance = 1.2e-2};
  std::uint64_t seed = 9050;
  for (const cuda::Kernels kernels : {cuda::Kernels::fast, cuda::Kernels::portable}) {
    for (const AttentionShape& shape :
         {AttentionShape::mla(3, 128, 64, 512, 128), AttentionShape::mla(3, 64, 32, 256, 64),
          AttentionShape::mla(4, 16, 8, 40, 24), AttentionShape::gqa(6, 2, 64, 64)}) {
      expect_replays_right(shape, kernels, HeadReduce::mean, ++seed, tally, Positions::entry);
      if (HasFailure()) return;
    }
  }
  finish(tally);
}

TEST(CudaCalls, OneCapturedStepMayReadTurnedWeights) {
  LCA_NEEDS_GPU();
  Tally tally{.tolerance = 7e-3};
  std::uint64_t seed = 9070;
  for (const AttentionShape& shape :
       {AttentionShape::mla(3, 128, 64, 512, 128), AttentionShape::mla(16, 128, 64, 512, 128),
        AttentionShape::mla(3, 64, 32, 256, 64), AttentionShape::mla(4, 16, 8, 40, 24)}) {
    expect_replays_right(shape, cuda::Kernels::fast, HeadReduce::mean, ++seed, tally,
                         Positions::token, true);
    if (HasFailure()) return;
  }
  expect_replays_right(AttentionShape::mla(4, 64, 8, 64, 64), cuda::Kernels::fast, HeadReduce::max,
                       ++seed, tally, Positions::token, true);
  finish(tally);
}

TEST(CudaCalls, ReplaysEqualStepsOneByOneBitForBit) {
  LCA_NEEDS_GPU();
  Random random(9100);
  const LayerSpec spec = spec_of(AttentionShape::mla(3, 128, 64, 512, 128), calls_settings());
  constexpr std::int64_t kPrompt = 50, kSteps = 60;
  Resident model({spec, spec}, random);
  Talk replayed = model.talk(kPrompt, kPrompt + kSteps, random);
  Talk enqueued{model.open(), replayed.paths};
  model.chunk(replayed, kPrompt);
  model.chunk(enqueued, kPrompt);
  for (std::int64_t i = 0; i < kSteps; ++i) {
    model.decode(replayed);
    Talk* const one = &enqueued;
    model.decode({&one, 1}, true, false);
  }
  for (std::size_t l = 0; l < 2; ++l) {
    EXPECT_EQ(enqueued.paths[l].out, replayed.paths[l].out) << "layer " << l;
  }
}

}  // namespace
}  // namespace lca::test
