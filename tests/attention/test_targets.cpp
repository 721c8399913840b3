// The kernels are compiled once for each instruction set and pick one at run time; here every one
// this processor can run is picked in turn.

// Before Highway, so that both mean the same instruction sets.
#include "ops/cpu/simd_targets.h"

#include <hwy/targets.h>

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/compare.h"
#include "support/feed.h"
#include "support/random_layer.h"

namespace lca::test {
namespace {

// Restricts dispatch to one instruction set for as long as it lives.
class OneTarget {
 public:
  explicit OneTarget(std::int64_t target) { choose(target); }
  ~OneTarget() { choose(0); }
  OneTarget(const OneTarget&) = delete;
  OneTarget& operator=(const OneTarget&) = delete;

 private:
  static void choose(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);  // 0: all of them again
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

TEST(Targets, EveryInstructionSetAgreesWithTheReference) {
  const std::vector<std::int64_t> targets = hwy::SupportedAndGeneratedTargets();
  ASSERT_FALSE(targets.empty());
  Context context(2);
  for (std::int64_t i = 0; i < scaled(120); ++i) {
    Random random(80000 + static_cast<std::uint64_t>(i));
    const bool is_long = i % 12 == 0;  // several tiles and blocks
    const std::int64_t count = is_long ? random.integer(280, 420) : random.integer(1, 100);
    const std::int64_t prompt = random.integer((count + 1) / 2, count);
    LayerSpec spec;
    spec.shape = random_shape(random);
    spec.dtype = random.chance(0.6) ? DType::f32 : DType::bf16;
    spec.settings = random_settings(random, count);
    random_positions(spec, random);
    const Layer layer = random_layer(spec, random);
    const Example example = random_example(layer, count, prompt, random);
    const std::vector<std::int64_t> chunks{prompt};
    for (std::int64_t target : targets) {
      const OneTarget chosen(target);
      EXPECT_TRUE(close(example.expected,
                        run_sequence(context, layer, example.tokens, chunks, {.poison = true}),
                        spec.dtype))
          << hwy::TargetName(target) << " case " << i << " " << describe(spec) << " n=" << count
          << " P=" << prompt;
    }
  }
}

TEST(Targets, AShortContextIsDenseAttentionBitForBitOnEveryInstructionSet) {
  Context context(2);
  Settings dense;
  dense.method = MethodKind::dense;
  for (std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    const OneTarget chosen(target);
    for (const AttentionShape& shape :
         {AttentionShape::mla(3, 6, 4, 16, 5), AttentionShape::gqa(4, 2, 8, 6)}) {
      for (DType dtype : {DType::f32, DType::bf16}) {
        Random random(81);
        LayerSpec spec;
        spec.shape = shape;
        spec.dtype = dtype;
        spec.settings.window = 60;
        spec.settings.sink = 5;
        const Layer layer = random_layer(spec, random);
        const Tokens tokens = random_tokens(spec, 5 + 60 + 16 - 1, random);
        const std::vector<std::int64_t> prefill{70};
        EXPECT_TRUE(same_output_bits(run_sequence(context, layer.with(dense), tokens, prefill),
                                     run_sequence(context, layer, tokens, prefill)))
            << hwy::TargetName(target) << " " << describe(spec);
      }
    }
  }
}

}  // namespace
}  // namespace lca::test
