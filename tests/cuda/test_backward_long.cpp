// Gradients of attention over 8K to 128K tokens on the GPU: Hopper's kernels against the portable
// ones in every row, and against double precision in some.

#include <gtest/gtest.h>

#include "cuda/backward_long.h"

namespace lca::test {
namespace {

class CudaBackwardLong : public testing::TestWithParam<LongCase> {};

TEST_P(CudaBackwardLong, EveryTileOfLongColumnsCountsOnce) {
  LCA_NEEDS_GPU();
  LongBackward problem(GetParam());
  EXPECT_EQ(problem.slices() > 1, GetParam().cut) << problem.slices() << " slices";
  EXPECT_EQ(problem.wrong(), "");
}

constexpr std::int64_t kK = 1024;
constexpr Form kM = Form::mla, kG = Form::gqa;

// With few heads columns of representatives are cut into slices, with more they are not.
INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaBackwardLong,
    testing::Values(
        LongCase{"mla_8k", kM, 2, 1, 0, 16, 1024, 4, {8 * kK}, false, true, true},
        LongCase{"mla_32k_entry", kM, 2, 1, 0, 16, 1024, 0, {32 * kK - 5}, true, false, true},
        LongCase{"mla_128k", kM, 2, 1, 0, 16, 1024, 0, {128 * kK}, false, false, true},
        LongCase{"mla_64k_uncut", kM, 3, 1, 0, 4, 1024, 0, {64 * kK + 3}, false, false, false},
        LongCase{"mla_documents",
                 kM,
                 2,
                 1,
                 0,
                 16,
                 1024,
                 0,
                 {3000, 32 * kK + 77, 1, 20000, 4096, 9001, 127, 16 * kK},
                 false,
                 true,
                 true},
        LongCase{"gqa64_8k_batch", kG, 9, 3, 64, 16, 1024, 0, std::vector<std::int64_t>(8, 8 * kK),
                 false, false, false},
        LongCase{"gqa64_32k", kG, 4, 2, 64, 4, 512, 16, {32 * kK}, false, true, true},
        LongCase{"gqa64_128k", kG, 6, 2, 64, 16, 1024, 0, {128 * kK + 1}, false, false, true},
        LongCase{"gqa64_128k_uncut", kG, 5, 5, 64, 16, 1024, 0, {128 * kK}, false, false, false},
        LongCase{"gqa128_8k", kG, 4, 2, 128, 8, 256, 4, {8 * kK}, true, true, true},
        LongCase{"gqa128_32k_batch",
                 kG,
                 4,
                 2,
                 128,
                 16,
                 1024,
                 0,
                 {32 * kK, 32 * kK, 32 * kK - 100},
                 false,
                 false,
                 true},
        LongCase{"gqa128_128k", kG, 2, 2, 128, 32, 2048, 0, {128 * kK}, false, false, true}),
    [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace lca::test
