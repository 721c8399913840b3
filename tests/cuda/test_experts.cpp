// Mixtures of experts on the GPU against double precision: every path, odd shapes, uneven choices.

#include <gtest/gtest.h>

#include <lca/error.h>

#include "cuda/experts_case.h"

namespace lca::test {
namespace {

using cuda::ExpertsPath;
using cuda::Kernels;

ExpertsPath path_of(const ExpertsCase& c, Kernels kernels) {
  return cuda::experts_path(c.shape(), c.rows, kernels, gpu());
}

TEST(CudaExperts, PortableKernelsTakeAnyShape) {
  LCA_NEEDS_GPU();
  std::uint64_t seed = 0;
  for (const int hidden : {24, 33, 64, 130}) {
    for (const int width : {5, 16, 72}) {
      for (const std::int64_t rows : {1, 9, 130}) {
        ExpertsCase c;
        c.hidden = hidden;
        c.width = width;
        c.rows = rows;
        c.shared = static_cast<int>(seed % 3);
        c.normalise = seed % 2 == 0;
        c.scale = seed % 2 == 0 ? 1.5f : 1.0f;
        c.seed = ++seed;
        ExpertsProblem(c).expect_right(Kernels::portable);
      }
    }
  }
}

TEST(CudaExperts, AnyShapeIsRightWithTheFastestKernelsItHas) {
  LCA_NEEDS_GPU();
  std::uint64_t seed = 100;
  for (const int hidden : {30, 64, 96, 136, 320}) {
    for (const int width : {20, 64, 100, 192}) {
      for (const std::int64_t rows : {1, 3, 8, 9, 70, 700}) {
        ExpertsCase c;
        c.hidden = hidden;
        c.width = width;
        c.rows = rows;
        c.experts = 6;
        c.per_token = 3;
        c.shared = static_cast<int>(seed % 3);
        c.normalise = seed % 2 == 0;
        c.checked = 60;
        c.seed = ++seed;
        ExpertsProblem(c).expect_right(Kernels::fast);
      }
    }
  }
}

/// Fewer rows are compared.
ExpertsCase fast_case(std::int64_t rows) {
  ExpertsCase c = hopper_case(rows);
  c.checked = 150;
  return c;
}

TEST(CudaExperts, TheNumberOfRowsChoosesTheKernels) {
  LCA_NEEDS_GPU();
  EXPECT_EQ(path_of(fast_case(1), Kernels::portable), ExpertsPath::portable);
  EXPECT_EQ(path_of(fast_case(1), Kernels::fast), ExpertsPath::few);
  if (!gpu().hopper()) GTEST_SKIP() << "the other paths are Hopper's";
  EXPECT_EQ(path_of(fast_case(64), Kernels::fast), ExpertsPath::stream);
  EXPECT_EQ(path_of(fast_case(4096), Kernels::fast), ExpertsPath::grouped);
}

TEST(CudaExperts, UnevenEmptyAndForcedChoicesAreRightOnEveryPath) {
  LCA_NEEDS_GPU();
  std::uint64_t seed = 300;
  for (const std::int64_t rows : {1, 5, 8, 40, 200, 513, 1111}) {
    for (const double skew : {0.0, 2.0, 15.0}) {  // 15: all rows pass one expert
      for (const bool empty : {false, true}) {
        ExpertsCase c = fast_case(rows);
        c.skew = skew;
        c.empty = empty;
        c.seed = ++seed;
        ExpertsProblem(c).expect_right(Kernels::fast);
      }
    }
    ExpertsCase c = fast_case(rows);
    c.forced = true;
    c.normalise = true;
    c.seed = ++seed;
    ExpertsProblem(c).expect_right(Kernels::fast);
    ExpertsProblem(c).expect_right(Kernels::portable);
  }
}

TEST(CudaExperts, ManyRowsGoThroughTheWorkspaceInSlices) {
  LCA_NEEDS_GPU();
  ExpertsCase c = fast_case(cuda::kExpertRowsAtOnce + 77);
  c.hidden = 64;
  c.width = 64;
  c.experts = 5;
  c.per_token = 2;
  c.checked = 400;
  c.seed = 41;
  ExpertsProblem(c).expect_right(Kernels::fast);
}

TEST(CudaExperts, DeepSeekV2LiteWithFewerExpertsIsRight) {
  LCA_NEEDS_GPU();
  for (const std::int64_t rows : {1, 7, 32, 200, 900}) {
    ExpertsCase c;
    c.hidden = 2048;
    c.width = 1408;
    c.experts = 8;
    c.per_token = 3;
    c.shared = 2;
    c.rows = rows;
    c.skew = 1;
    c.checked = 4;
    c.seed = 50 + static_cast<std::uint64_t>(rows);
    ExpertsProblem(c).expect_right(Kernels::fast);
  }
}

TEST(CudaExperts, ManyExpertsAndManyChoices) {
  LCA_NEEDS_GPU();
  for (const std::int64_t rows : {2, 60, 600}) {
    ExpertsCase c;
    c.hidden = 64;
    c.width = 64;
    c.experts = 160;
    c.per_token = 40;
    c.rows = rows;
    c.checked = 20;
    c.seed = 60 + static_cast<std::uint64_t>(rows);
    ExpertsProblem(c).expect_right(Kernels::fast);
  }
}

TEST(CudaExperts, ShapesThatNoKernelTakesAreRefused) {
  LCA_NEEDS_GPU();
  ExpertsCase c;
  c.experts = cuda::kMostExperts + 1;
  EXPECT_THROW(cuda::experts_workspace(c.shape(), 1), Error);
  c.experts = 9;
  c.groups = 2;
  c.top_groups = 1;
  EXPECT_THROW(cuda::experts_workspace(c.shape(), 1), Error);
  c.experts = 4;
  c.groups = 4;
  c.top_groups = 1;
  c.per_token = 2;
  EXPECT_THROW(cuda::experts_workspace(c.shape(), 1), Error);
}

}  // namespace
}  // namespace lca::test
