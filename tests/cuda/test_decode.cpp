// The decode step of the GPU: shapes, settings and ways of cutting the work.

#include "attention/cuda/decode/decode.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "cuda/decode_cases.h"

namespace lca::test {
namespace {

TEST(CudaDecode, SmallGroupsAreCondensedAndAttended) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.name = "g 4, w 7";
  c.settings = settings_of(4, 7, 0);
  c.lengths = {0, 9, 7 + 4 * 40 + 1};
  c.steps = 12;
  c.seed = 100;
  expect_right_everywhere(c);
}

TEST(CudaDecode, SinkWindowAndMassOfScores) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.name = "g 16, w 128, s 5, score";
  c.settings = settings_of(16, 128, 5, Mass::score);
  c.lengths = {3, 128 + 5 + 16 - 2, 128 + 5 + 16 * 3 - 2};
  c.steps = 4;
  c.seed = 200;
  expect_right_everywhere(c);
}

TEST(CudaDecode, ManyBlocksReduceToTheSameResult) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.name = "g 4, w 1, s 5, count, small chunks";
  c.settings = settings_of(4, 1, 5, Mass::count);
  c.lengths = {0, 4, 6 + 4 * 70 - 2, 6 + 4 * 64 - 3};
  c.steps = 6;
  c.seed = 300;
  c.chunk = 3;
  expect_right_everywhere(c);
}

TEST(CudaDecode, OneBlockReadsManyTiles) {
  LCA_NEEDS_GPU();
  for (const GroupType type : {GroupType::bf16, GroupType::fp8}) {
    DecodeCase c;
    c.name = "g 4, w 260, one block";
    c.settings = settings_of(4, 260, 0, Mass::score);
    c.lengths = {260 + 4 * 330 - 1, 2};
    c.steps = 2;
    c.type = type;
    c.chunk = 1000;
    c.seed = 400;
    for (const std::size_t which : {0u, 2u, 5u}) {
      c.name = std::string("g 4, w 260, one block, ") + shapes()[which].name;
      c.shape = shapes()[which].shape;
      expect_right(c);
    }
  }
}

TEST(CudaDecode, BlocksOfManyPagesStream) {
  LCA_NEEDS_GPU();
  // Chunks of whole pages: on Hopper the kernel for many entries a block.
  DecodeCase c;
  c.steps = 3;
  c.seed = 450;
  const auto run = [&](std::size_t which, std::int64_t chunk, std::vector<std::int64_t> lengths) {
    c.name = "pages, chunk " + std::to_string(chunk) + ", " + shapes()[which].name;
    c.shape = shapes()[which].shape;
    c.chunk = chunk;
    c.lengths = std::move(lengths);
    ++c.seed;
    expect_right(c);
  };
  c.settings = settings_of(4, 130, 5, Mass::score);
  run(0, 256, {135 + 4 * 200 - 1, 2, 135 + 4 * 64 - 3});
  run(0, 2048, {135 + 4 * 190 - 2});
  c.settings = settings_of(2, 270, 0, Mass::none);
  run(1, 320, {270 + 2 * 256 - 1, 271});
}

/// 70 representatives, 44 … 47 exact tokens around the end of the ring, a group that leaves: five
/// tiles of Hopper's kernel for wide latents, over fewer blocks, as many, and more.
void expect_few_blocks_right(std::initializer_list<std::pair<int, int>> plans) {
  if (!gpu().hopper()) GTEST_SKIP() << "this kernel needs a Hopper GPU";
  DecodeCase c;
  c.shape = shapes()[0].shape;
  c.settings = settings_of(4, 44, 0, Mass::score);
  c.lengths = {44 + 4 * 71 - 2};
  c.steps = 3;
  c.chunk = 64;
  for (const auto& [cluster, blocks] : plans) {
    c.name = std::to_string(blocks) + " blocks in clusters of " + std::to_string(cluster);
    c.cluster = cluster;
    c.blocks = blocks;
    ++c.seed;
    DecodeRun run(c);
    if (!run.go()) return;
  }
}

TEST(CudaDecode, FewBlocksAlone) {
  LCA_NEEDS_GPU();
  expect_few_blocks_right({{1, 1}, {1, 3}});
}

TEST(CudaDecode, FewBlocksInPairs) {
  LCA_NEEDS_GPU();
  expect_few_blocks_right({{2, 2}, {2, 4}});
}

TEST(CudaDecode, FewBlocksInLargeClusters) {
  LCA_NEEDS_GPU();
  expect_few_blocks_right({{4, 4}, {8, 8}, {8, 16}});
}

TEST(CudaDecode, TwoStepsOfEveryPortableKernel) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.settings = settings_of(4, 44, 3, Mass::score);
  c.lengths = {47 + 4 * 30 - 2};
  c.steps = 2;
  c.kernels = Kernels::portable;
  for (const GroupType type : {GroupType::bf16, GroupType::int8}) {
    c.type = type;
    for (const std::size_t which : {0u, 2u, 3u, 4u, 5u}) {
      c.name = std::string("two steps, ") + shapes()[which].name;
      c.shape = shapes()[which].shape;
      ++c.seed;
      DecodeRun run(c);
      if (!run.go()) return;
    }
  }
}

TEST(CudaDecode, AllSixteenPoolings) {
  LCA_NEEDS_GPU();
  const Pool pools[] = {Pool::weighted, Pool::mean, Pool::max, Pool::select};
  DecodeCase c;
  c.lengths = {7 + 4 * 3 - 1};
  c.steps = 6;
  c.seed = 500;
  for (const Pool semantic : pools) {
    for (const Pool positional : pools) {
      c.settings = settings_of(4, 7, 0, Mass::score);
      c.settings.semantic_pool = semantic;
      c.settings.positional_pool = positional;
      for (const std::size_t which : {0u, 3u, 5u, 7u}) {
        c.name = "pools " + std::to_string(static_cast<int>(semantic)) + "/" +
                 std::to_string(static_cast<int>(positional)) + ", " + shapes()[which].name;
        c.shape = shapes()[which].shape;
        ++c.seed;
        expect_right(c);
      }
    }
  }
}

TEST(CudaDecode, HeadReductionsAndSummaries) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.lengths = {0, 30};
  c.steps = 8;
  c.seed = 600;
  for (const HeadReduce reduce : {HeadReduce::mean, HeadReduce::sum, HeadReduce::max}) {
    for (const std::int64_t queries : {1, 5, 50}) {
      c.settings = settings_of(4, 2, 1, Mass::score);
      c.settings.head_reduce = reduce;
      c.settings.summary_queries = queries;
      for (const std::size_t which : {0u, 3u, 4u, 7u}) {
        c.name = "reduction " + std::to_string(static_cast<int>(reduce)) + ", n_q " +
                 std::to_string(queries) + ", " + shapes()[which].name;
        c.shape = shapes()[which].shape;
        ++c.seed;
        expect_right(c);
      }
    }
  }
}

TEST(CudaDecode, DenseAndWindowHaveNoRepresentatives) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.lengths = {0, 5, 150};
  c.steps = 4;
  c.seed = 700;
  for (const MethodKind method : {MethodKind::dense, MethodKind::window}) {
    c.name = method == MethodKind::dense ? "dense" : "window";
    c.settings = settings_of(4, 33, 3);
    c.settings.method = method;
    expect_right_everywhere(c);
  }
}

TEST(CudaDecode, QuantisedRepresentatives) {
  LCA_NEEDS_GPU();
  for (const GroupType type : {GroupType::fp8, GroupType::int8}) {
    DecodeCase c;
    c.name = type == GroupType::fp8 ? "fp8" : "int8";
    c.settings = settings_of(4, 7, 2, Mass::score);
    c.lengths = {0, 9 + 4 * 33 - 1, 9 + 4 * 64 - 2};
    c.steps = 6;
    c.type = type;
    c.seed = 800;
    expect_right_everywhere(c);
  }
}

TEST(CudaDecode, QuantisedRepresentativesKeepTheOutput) {
  LCA_NEEDS_GPU();
  for (const bool outliers : {false, true}) {
    DecodeCase c;
    c.name = outliers ? "outliers" : "no outliers";
    c.shape = shapes()[0].shape;
    c.settings = settings_of(4, 128, 0);
    c.lengths = {128 + 4 * 16};
    c.steps = 5;
    c.seed = 900;
    c.outliers = outliers;
    // Logits of latents with outliers are large, and so is what rounding the weights does.
    if (outliers) c.out_tolerance = 1e-2;
    std::vector<double> exact;
    DecodeRun(c).go(&exact);
    for (const GroupType type : {GroupType::fp8, GroupType::int8}) {
      c.type = type;
      std::vector<double> coarse;
      DecodeRun(c).go(&coarse);
      ASSERT_EQ(coarse.size(), exact.size());
      RelativeError error;
      for (std::size_t i = 0; i < exact.size(); ++i) error.add(coarse[i], exact[i]);
      EXPECT_LE(error.value(), 0.02) << c.name << ", " << (type == GroupType::fp8 ? "fp8" : "int8");
    }
  }
}

TEST(CudaDecode, FortyStepsOfOneGraph) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.settings = settings_of(4, 7, 2, Mass::score);
  c.lengths = {0, 20, 9 + 4 * 30};
  c.steps = 40;
  c.seed = 1000;
  c.graph = true;
  for (const std::size_t which : {0u, 5u}) {
    c.name = std::string("graph, ") + shapes()[which].name;
    c.shape = shapes()[which].shape;
    expect_right(c);
  }
}

TEST(CudaDecode, QueriesMayBeWrittenByTheKernelRightBefore) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.settings = settings_of(4, 7, 2, Mass::score);
  c.lengths = {9 + 4 * 30, 40};
  c.steps = 30;
  c.seed = 1100;
  c.graph = c.written = true;
  for (const std::size_t which : {0u, 2u, 4u}) {
    c.name = std::string("written in the graph, ") + shapes()[which].name;
    c.shape = shapes()[which].shape;
    expect_right(c);
  }
  // Hopper's kernel for wide latents, which starts before the product has ended.
  c.name = "written in the graph, pages";
  c.shape = shapes()[0].shape;
  c.chunk = 64;
  expect_right(c);
}

}  // namespace
}  // namespace lca::test
