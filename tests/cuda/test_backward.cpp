// Gradients of attention on the GPU, Hopper's kernels and the portable ones, against plain loops in
// double precision. Cases that Hopper's do not cover fall back to the portable ones.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/backward_problem.h"

namespace lca::test {
namespace {

struct BackwardWidths {
  Form form;
  int heads, kv_heads, d_nope, d_rope, d_value;
};

constexpr BackwardWidths kMla{Form::mla, 3, 1, 128, 64, 128};
constexpr BackwardWidths kGqa128{Form::gqa, 4, 2, 0, 128, 128};
constexpr BackwardWidths kGqa64{Form::gqa, 9, 3, 0, 64, 64};
constexpr BackwardWidths kSmallMla{Form::mla, 3, 1, 64, 32, 64};
constexpr BackwardWidths kOddMlaWidths{Form::mla, 5, 1, 20, 12, 24};
constexpr BackwardWidths kOddGqaWidths{Form::gqa, 4, 2, 0, 48, 80};
constexpr BackwardWidths kWideGqa{Form::gqa, 2, 1, 0, 256, 256};

PrefillCase case_with(const BackwardWidths& widths, std::uint64_t seed) {
  PrefillCase c;
  c.form = widths.form;
  c.heads = widths.heads;
  c.kv_heads = widths.kv_heads;
  c.d_nope = widths.d_nope;
  c.d_rope = widths.d_rope;
  c.d_value = widths.d_value;
  c.seed = seed;
  return c;
}

Rotation rotation_with(const BackwardWidths& widths, RopeLayout layout, std::int64_t pairs = 0) {
  Rotation rotation = rotation_plain(pairs > 0 ? 2 * pairs : widths.d_rope, 100);
  rotation.layout = layout;
  return rotation;
}

/// True where both kinds of kernels are right.
bool gradients_right(const PrefillCase& c, bool captured = false) {
  BackwardProblem problem(c);
  bool fine = true;
  for (const cuda::Kernels kernels : {cuda::Kernels::portable, cuda::Kernels::fast}) {
    const std::string wrong = problem.wrong(kernels, captured);
    if (wrong.empty()) continue;
    ADD_FAILURE() << (kernels == cuda::Kernels::fast ? "fast: " : "portable: ") << c.describe()
                  << "\n"
                  << wrong;
    fine = false;
  }
  return fine;
}

TEST(CudaBackward, FollowsTheLawAtEveryWidthAndLength) {
  LCA_NEEDS_GPU();
  constexpr MethodKind kMethods[] = {MethodKind::lca, MethodKind::lca, MethodKind::dense,
                                     MethodKind::lca, MethodKind::window};
  constexpr std::int64_t kGroups[] = {4, 8, 16, 32, 3};
  constexpr std::int64_t kWindows[] = {16, 128, 1, 130, 200};
  constexpr std::int64_t kSinks[] = {0, 5, 16, 150};
  std::uint64_t number = 0;
  for (const BackwardWidths& widths :
       {kMla, kGqa128, kGqa64, kSmallMla, kOddMlaWidths, kOddGqaWidths, kWideGqa}) {
    int failures = 0;
    for (const std::int64_t length : {1, 2, 63, 64, 65, 127, 128, 129, 200, 333, 600}) {
      PrefillCase c = case_with(widths, number++);
      c.layout = layout_of(kMethods[number % 5], kGroups[number % 5], kWindows[number / 2 % 5],
                           kSinks[number % 4]);
      c.runs = {{0, length}};
      if (!gradients_right(c) && ++failures == 3) break;
    }
  }
}

TEST(CudaBackward, FollowsTheLawForEveryGroupWindowSinkAndBias) {
  LCA_NEEDS_GPU();
  std::uint64_t number = 500;
  int failures = 0;
  for (const std::int64_t g : {4, 8, 16, 32}) {
    for (const std::int64_t w : {1, 128, 200}) {
      for (const std::int64_t sink : {0, 4, 130}) {
        const BackwardWidths widths[] = {kMla, kGqa128, kGqa64};
        PrefillCase c = case_with(widths[number % 3], number);
        ++number;
        c.layout = layout_of(MethodKind::lca, g, w, sink);
        c.bias = static_cast<Bias>(number / 2 % 3);
        c.runs = {{0, sink + w + 5 * g + 140 + static_cast<std::int64_t>(number % 97)}};
        if (!gradients_right(c) && ++failures == 4) return;
      }
    }
  }
}

TEST(CudaBackward, EntryPositionsFollowTheLaw) {
  LCA_NEEDS_GPU();
  std::uint64_t number = 900;
  int failures = 0;
  for (const BackwardWidths& widths : {kMla, kGqa128, kGqa64, kOddMlaWidths}) {
    for (const std::int64_t sink : {0, 4, 16, 150}) {
      for (const RopeLayout rope : {RopeLayout::halves, RopeLayout::adjacent}) {
        PrefillCase c = case_with(widths, number++);
        const std::int64_t g = number % 2 == 0 ? 16 : 4;
        c.layout = layout_of(number % 7 == 0 ? MethodKind::window : MethodKind::lca, g,
                             number % 3 == 0 ? 40 : 128, sink);
        c.rotation = rotation_with(widths, rope, number % 5 == 0 ? widths.d_rope / 2 - 3 : 0);
        c.bias = number % 3 == 0 ? Bias::each : Bias::none;
        c.runs = {{0, sink + 128 + 10 * g + 77}, {0, 100}};
        if (!gradients_right(c) && ++failures == 4) return;
      }
    }
  }
}

TEST(CudaBackward, DocumentsPackedOneAfterAnotherDoNotTouch) {
  LCA_NEEDS_GPU();
  std::uint64_t number = 1200;
  for (const BackwardWidths& widths : {kMla, kGqa128, kGqa64}) {
    for (const std::int64_t spare : {0, 3}) {
      PrefillCase c = case_with(widths, number++);
      c.layout = layout_of(MethodKind::lca, 8, 128, spare);
      c.bias = Bias::each;
      c.spare = spare;
      c.runs = {{0, 70}, {0, 500}, {0, 1}, {0, 129}, {0, 300}, {0, 137}, {0, 64}};
      gradients_right(c);
      c.rotation = rotation_with(widths, RopeLayout::halves);
      c.seed = number++;
      gradients_right(c);
    }
  }
}

TEST(CudaBackward, ManyDocumentsAreFoundInTheirTable) {
  LCA_NEEDS_GPU();
  for (const BackwardWidths& widths : {kMla, kGqa64}) {
    PrefillCase c = case_with(widths, 1400);
    c.layout = layout_of(MethodKind::lca, 4, 16, 3);
    c.spare = 0;
    for (std::int64_t i = 0; i < 70; ++i) c.runs.push_back({0, 1 + i * 7 % 83});
    gradients_right(c);
  }
}

TEST(CudaBackward, GradientsMayBeColumnsOfLargerTensorsAndUnaligned) {
  LCA_NEEDS_GPU();
  PrefillCase c = case_with(kMla, 1500);
  c.layout = layout_of(MethodKind::lca, 16, 128, 4);
  c.runs = {{0, 400}};
  c.fused = true;
  gradients_right(c);
  c.shift = 1;  // only the portable kernels write there
  c.seed = 1501;
  gradients_right(c);
}

TEST(CudaBackward, LargeLogitsAndLongerDocumentsStayRight) {
  LCA_NEEDS_GPU();
  for (const BackwardWidths& widths : {BackwardWidths{Form::mla, 2, 1, 128, 64, 128},
                                       BackwardWidths{Form::gqa, 2, 1, 0, 64, 64}}) {
    PrefillCase c = case_with(widths, 1600);
    c.layout = layout_of(MethodKind::lca, 4, 256, 0);
    c.runs = {{0, 2500}};
    gradients_right(c);
    c.layout = layout_of(MethodKind::lca, 16, 128, 16);
    c.sharpness = 6;
    c.runs = {{0, 900}};
    gradients_right(c);
  }
}

TEST(CudaBackward, GivesTheSameBitsEveryTimeAndInAGraph) {
  LCA_NEEDS_GPU();
  for (const BackwardWidths& widths : {kMla, kGqa64}) {
    PrefillCase c = case_with(widths, 1700);
    c.layout = layout_of(MethodKind::lca, 4, 128, 4);
    c.bias = Bias::each;
    c.runs = {{0, 1500}, {0, 333}};
    BackwardProblem problem(c);
    EXPECT_TRUE(problem.repeats(cuda::Kernels::fast));
    EXPECT_EQ(problem.wrong(cuda::Kernels::fast, true), "");
  }
}

// --- every order of a block's own making, in the smallest problems that have it: for racecheck
// ------

struct BlockCase {
  const char* name;
  BackwardWidths widths;
};

class CudaBackwardBlocks : public testing::TestWithParam<BlockCase> {
 protected:
  /// One thread block works on everything, so that queue and rings go round.
  void expect_right(const PrefillCase& c) {
    BackwardProblem problem(c, 1);
    EXPECT_EQ(problem.wrong(cuda::Kernels::fast), "") << c.describe();
  }
};

TEST_P(CudaBackwardBlocks, OneDoesAllOfOneDocument) {
  LCA_NEEDS_GPU();
  PrefillCase c = case_with(GetParam().widths, 1800);
  c.layout = layout_of(MethodKind::lca, 4, 64, 0);
  c.bias = Bias::each;
  c.runs = {{0, 450}};
  expect_right(c);
}

TEST_P(CudaBackwardBlocks, OneDoesAllOfManyDocuments) {
  LCA_NEEDS_GPU();
  PrefillCase c = case_with(GetParam().widths, 1810);
  c.layout = layout_of(MethodKind::lca, 8, 40, 5);
  c.spare = 0;
  c.runs = {{0, 70}, {0, 200}, {0, 1}};
  expect_right(c);
}

TEST_P(CudaBackwardBlocks, OneDoesAllWithEntryPositions) {
  LCA_NEEDS_GPU();
  PrefillCase c = case_with(GetParam().widths, 1820);
  c.layout = layout_of(MethodKind::lca, 8, 40, 5);
  c.spare = 0;
  c.runs = {{0, 70}, {0, 200}, {0, 1}};
  c.bias = Bias::each;
  c.rotation = rotation_with(GetParam().widths, RopeLayout::halves);
  expect_right(c);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaBackwardBlocks,
                         testing::Values(BlockCase{"mla", {Form::mla, 2, 1, 128, 64, 128}},
                                         BlockCase{"gqa128", {Form::gqa, 2, 1, 0, 128, 128}},
                                         BlockCase{"gqa64", {Form::gqa, 2, 1, 0, 64, 64}}),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace lca::test
