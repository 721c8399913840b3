// The CPU's operators against the reference's: odd sizes, every option, packed documents, tensors
// with gaps, outputs and scratch memory full of NaN. Errors are measured as mechanism §5 says.

// Before Highway, so that both mean the same instruction sets.
#include "ops/cpu/simd_targets.h"

#include <hwy/targets.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/context_state.h"
#include "support/compare.h"
#include "support/operator_case.h"
#include "support/operator_runs.h"

namespace lca::test {
namespace {

constexpr double kOperatorF32 = 1e-4;
constexpr double kOperatorBf16 = 1e-2;  // results, and what they are added to, are rounded by 2⁻⁹

// The largest errors of a test, and how many cases were drawn again.
struct OperatorTally {
  double f32 = 0;
  double bf16 = 0;
  std::string where_f32, where_bf16;
  int redraws = 0;

  void check(const OperatorCase& a_case, Context& context) {
    const OperatorResults expected = reference_results(a_case);
    if (has_near_tie(a_case, expected)) {
      ++redraws;
      return;
    }
    const OperatorResults actual = cpu_results(a_case, context, {.out = &expected.out});
    std::string where;
    const double error = worst_error(expected, actual, where);
    const bool is_f32 = a_case.dtype == DType::f32;
    EXPECT_LE(error, is_f32 ? kOperatorF32 : kOperatorBf16) << where << " " << describe(a_case);
    EXPECT_TRUE(actual.gaps_are_intact) << describe(a_case);
    double& worst = is_f32 ? f32 : bf16;
    if (error > worst) (is_f32 ? where_f32 : where_bf16) = where;
    worst = std::max(worst, error);
  }

  void finish() const {
    fmt::print("f32: largest error {:.1e} in {}; bf16: {:.1e} in {}; {} near ties left out\n", f32,
               where_f32, bf16, where_bf16, redraws);
  }
};

TEST(OperatorCpu, AgreesWithTheReferenceOnRandomConfigurations) {
  OperatorTally tally;
  std::vector<std::unique_ptr<Context>> contexts;
  for (int threads : {1, 2, 4}) contexts.push_back(std::make_unique<Context>(threads));
  const std::int64_t cases = scaled(800);
  for (std::int64_t i = 0; i < cases && !HasFailure(); ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    Random random(160000 + static_cast<std::uint64_t>(i));
    const OperatorCase a_case =
        random_operator_case(random, random.pick<std::int64_t>({20, 60, 130}));
    tally.check(a_case, *contexts[static_cast<std::size_t>(i % 3)]);
  }
  tally.finish();
  EXPECT_LE(tally.redraws * 5, cases);
}

TEST(OperatorCpu, AgreesWithTheReferenceAcrossTilesBlocksAndChunks) {
  // Lengths of several tiles of queries, blocks of keys and chunks of pairs.
  struct Long {
    AttentionShape shape;
    MethodKind method;
    std::int64_t group, window, sink;
    std::vector<std::int64_t> starts;
  };
  const AttentionShape small = AttentionShape::gqa(2, 1, 8, 8);
  const std::vector<Long> all{
      {AttentionShape::mla(2, 128, 64, 96, 128), MethodKind::lca, 16, 70, 5, {0, 700}},
      {AttentionShape::mla(2, 12, 6, 16, 10), MethodKind::lca, 2, 40, 3, {0, 1500, 1780}},
      {AttentionShape::gqa(3, 1, 64, 64), MethodKind::lca, 4, 300, 0, {0, 900}},
      {small, MethodKind::lca, 2, 9, 17, {0, 300, 2100}},
      {small, MethodKind::lca, 1, 200, 40, {0, 1100}},
      {small, MethodKind::dense, 16, 1, 0, {0, 1500}},
      {small, MethodKind::window, 16, 260, 33, {0, 1300, 1310, 1900}},
  };
  Context context(2);
  OperatorTally tally;
  for (std::size_t i = 0; i < all.size() && !HasFailure(); i += scaled_step(3)) {
    for (const Positions positions : {Positions::token, Positions::entry}) {
      const bool turn = i % 2 == (positions == Positions::entry ? 1 : 0);
      if (test_scale() < 1 && !turn) continue;  // the reference takes most of the time
      Random random(161000 + static_cast<std::uint64_t>(i));
      LayerSpec layer;
      layer.shape = all[i].shape;
      layer.settings.method = all[i].method;
      layer.settings.group = all[i].group;
      layer.settings.window = all[i].window;
      layer.settings.sink = all[i].sink;
      layer.settings.mass = random.pick({Mass::none, Mass::score});
      layer.settings.positions = positions;
      layer.settings.positional_pool = Pool::weighted;  // no near ties among many groups
      if (positions == Positions::entry) {
        layer.rotation.frequencies.assign(static_cast<std::size_t>(layer.shape.d_positional() / 2),
                                          0.37);
      }
      const DType dtype = i % 2 == 0 ? DType::f32 : DType::bf16;
      const OperatorCase a_case = operator_case(layer, all[i].starts, dtype, random);
      tally.check(a_case, context);
    }
  }
  EXPECT_EQ(tally.redraws, 0);
  tally.finish();
}

TEST(OperatorCpu, TheHalvesComposedAgreeWithTheReferenceInEveryGradient) {
  Context context(2);
  OperatorPlace exact;
  exact.backend = Backend::reference;
  OperatorPlace fast;
  fast.context = &context;
  double worst = 0;
  for (std::int64_t i = 0; i < scaled(150) && !HasFailure(); ++i) {
    Random random(167000 + static_cast<std::uint64_t>(i));
    OperatorSpec spec = random_operator_case(random, 60).spec;
    const OperatorValues inputs = random_values(spec, DType::f32, random);
    if (choice_margin(spec, inputs) < 1e-4) continue;  // another choice is another gradient
    Values out_grad(DType::f32, spec.tokens(), spec.layer.shape.heads, spec.layer.shape.d_value);
    out_grad.fill_normal(1, random);
    const OperatorValues expected = Composed(spec, inputs, exact).backward(out_grad);
    const OperatorValues actual = Composed(spec, inputs, fast).backward(out_grad);
    for (std::size_t k = 0; k < expected.all().size(); ++k) {
      const double error =
          error_of(expected.all()[k]->doubles(), actual.all()[k]->doubles(), kErrorFloor);
      EXPECT_LE(error, kOperatorF32) << OperatorValues::kNames[k] << " " << describe(spec);
      worst = std::max(worst, error);
    }
  }
  fmt::print("largest error {:.1e}\n", worst);
}

// Restricts dispatch to one instruction set during its lifetime.
class OperatorTarget {
 public:
  explicit OperatorTarget(std::int64_t target) { choose(target); }
  ~OperatorTarget() { choose(0); }
  OperatorTarget(const OperatorTarget&) = delete;
  OperatorTarget& operator=(const OperatorTarget&) = delete;

 private:
  static void choose(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);  // 0: all of them again
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

TEST(OperatorCpu, EveryInstructionSetAgreesWithTheReference) {
  const std::vector<std::int64_t> targets = hwy::SupportedAndGeneratedTargets();
  ASSERT_FALSE(targets.empty());
  Context context(2);
  for (std::int64_t i = 0; i < scaled(60) && !HasFailure(); ++i) {
    Random random(162000 + static_cast<std::uint64_t>(i));
    const OperatorCase a_case = random_operator_case(random, i % 6 == 0 ? 300 : 60);
    const OperatorResults expected = reference_results(a_case);
    if (has_near_tie(a_case, expected)) continue;
    for (std::int64_t target : targets) {
      const OperatorTarget chosen(target);
      std::string where;
      const OperatorResults actual = cpu_results(a_case, context, {.out = &expected.out});
      EXPECT_LE(worst_error(expected, actual, where),
                a_case.dtype == DType::f32 ? kOperatorF32 : kOperatorBf16)
          << where << " " << hwy::TargetName(target) << " case " << i << " " << describe(a_case);
    }
  }
}

TEST(OperatorCpu, GradientsThatAreNotWantedChangeNoOthers) {
  Context context(2);
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(scaled(60)); ++i) {
    Random random(163000 + i);
    const OperatorCase a_case = random_operator_case(random, 50);
    const OperatorResults all = cpu_results(a_case, context);
    const auto unwanted = static_cast<unsigned>(random.integer(1, 511));
    const OperatorResults some = cpu_results(a_case, context, {.unwanted = unwanted});
    std::size_t at = 0;
    for (const NamedValues& one : some.tensors) {
      while (at < all.tensors.size() && all.tensors[at].name != one.name) ++at;
      ASSERT_LT(at, all.tensors.size());
      EXPECT_EQ(error_of(all.tensors[at].values, one.values), 0)
          << one.name << " without " << unwanted << " " << describe(a_case);
    }
  }
}

TEST(OperatorCpu, ScratchMemoryGrowsWithTheTokensNotTheirPairs) {
  const std::int64_t tokens = test_scale() < 1 ? 1200 : 3000;
  for (const AttentionShape& shape :
       {AttentionShape::gqa(4, 2, 16, 16), AttentionShape::mla(3, 16, 8, 24, 16)}) {
    for (const MethodKind method : {MethodKind::lca, MethodKind::window, MethodKind::dense}) {
      if (method == MethodKind::dense && test_scale() < 1) continue;  // most pairs, most time
      LayerSpec layer;
      layer.shape = shape;
      layer.settings.method = method;
      layer.settings.window = 100;
      const auto scratch = [&](std::int64_t length) {
        Random random(164);
        Context context(2);
        const OperatorCase a_case = operator_case(layer, {0, length}, DType::f32, random);
        cpu_results(a_case, context, {.poison = false});
        return static_cast<double>(context.memory().scratch);
      };
      const double fixed = scratch(64);
      const double once = scratch(tokens / 2) - fixed;
      const double twice = scratch(tokens) - fixed;
      EXPECT_LE(twice, 2.5 * once);
      // Less than seven rows of float32 keys, values and their sums for each token and head.
      EXPECT_LE(twice, 7.0 * 4 * static_cast<double>(tokens * shape.heads * 2 * 32));
    }
  }
}

}  // namespace
}  // namespace lca::test
