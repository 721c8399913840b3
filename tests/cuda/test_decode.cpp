// The decode step of the GPU: shapes, settings and ways of cutting the work, with token and with
// entry positions. With the latter (mechanism §10) sink and representatives see the query at its
// entry position, and a representative's key is kept at its own.

#include "attention/cuda/decode/decode.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "cuda/decode_cases.h"

namespace lca::test {
namespace {

class CudaDecode : public testing::TestWithParam<Positions> {
 protected:
  static void expect_right(const DecodeCase& c, std::initializer_list<std::size_t> which) {
    test::expect_right(c, GetParam(), which);
  }
};

INSTANTIATE_TEST_SUITE_P(, CudaDecode, testing::Values(Positions::token, Positions::entry),
                         [](const auto& info) {
                           return info.param == Positions::token ? "token" : "entry";
                         });

TEST_P(CudaDecode, SmallGroupsAreCondensedAndAttended) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.lengths = {0, 9, 7 + 4 * 40 + 1};
  c.steps = 12;
  c.seed = 100;
  for (const std::int64_t sink : {0, 5}) {
    c.name = "g 4, w 7, s " + std::to_string(sink);
    c.settings = settings_of(4, 7, sink, sink == 0 ? Mass::none : Mass::score);
    expect_right(c, kAllShapes);
    c.seed += 10;
  }
}

TEST_P(CudaDecode, SinkWindowAndMassOfScores) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.name = "g 16, w 128, s 5, score";
  c.settings = settings_of(16, 128, 5, Mass::score);
  c.lengths = {3, 128 + 5 + 16 - 2, 128 + 5 + 16 * 3 - 2};
  c.steps = 4;
  c.seed = 200;
  expect_right(c, kAllShapes);
}

TEST_P(CudaDecode, ManyBlocksReduceToTheSameResult) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.name = "g 4, w 1, s 5, count, small chunks";
  c.settings = settings_of(4, 1, 5, Mass::count);
  c.lengths = {0, 4, 6 + 4 * 70 - 2, 6 + 4 * 64 - 3};
  c.steps = 6;
  c.seed = 300;
  c.chunk = 3;
  expect_right(c, kAllShapes);
}

TEST_P(CudaDecode, TilesThatSinkAndWindowShareAreCutAnywhere) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.name = "g 4, w 30, s 21, chunks of 3 and of 100";
  c.settings = settings_of(4, 30, 21, Mass::count);
  c.lengths = {0, 60, 51 + 4 * 70 - 2};
  c.steps = 4;
  c.seed = 350;
  for (const int chunk : {3, 100}) {
    c.chunk = chunk;
    expect_right(c, kAllShapes);
  }
}

TEST_P(CudaDecode, OneBlockReadsManyTiles) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.name = "g 4, w 160, s 70, one block";
  c.settings = settings_of(4, 160, 70, Mass::score);
  c.lengths = {230 + 4 * 200 - 1, 2};
  c.steps = 2;
  c.chunk = 1000;
  c.seed = 400;
  for (const GroupType type : {GroupType::bf16, GroupType::fp8}) {
    c.type = type;
    expect_right(c, {0, 2, 4, 5});
  }
}

// Chunks of whole pages: Hopper's kernels for many entries a block.
TEST_P(CudaDecode, BlocksOfManyPagesStream) {
  LCA_NEEDS_GPU();
  if (!gpu().hopper()) GTEST_SKIP() << "these kernels need a Hopper GPU";
  DecodeCase c;
  c.steps = 3;
  c.seed = 450;
  const auto run = [&](std::size_t which, int chunk, std::vector<std::int64_t> lengths) {
    c.name = "chunk " + std::to_string(chunk) + ", type " +
             std::to_string(static_cast<int>(c.type)) + ", " + shapes()[which].name;
    c.shape = shapes()[which].shape;
    c.chunk = chunk;
    c.lengths = std::move(lengths);
    case_next(c, GetParam());
    DecodeRun(c).go();
  };
  for (const GroupType type : {GroupType::bf16, GroupType::fp8, GroupType::int8}) {
    c.type = type;
    c.settings = settings_of(4, 130, 70, Mass::score);
    if (type != GroupType::int8) run(0, 64, {2, 200 + 4 * 64 - 3});
    run(0, 256, {200 + 4 * 200 - 1, 2, 200 + 4 * 64 - 3});
    c.settings = settings_of(1, 270, 0, Mass::none);
    run(1, 8192, {270 + 700});  // every stage many times over
  }
}

/// 70 representatives, 44 … 47 exact tokens around the end of the ring, a group that leaves: five
/// tiles or so of Hopper's kernels for wide latents, over fewer blocks, as many, and more.
void expect_few_blocks_right(Positions positions,
                             std::initializer_list<std::pair<int, int>> plans) {
  if (!gpu().hopper()) GTEST_SKIP() << "these kernels need a Hopper GPU";
  DecodeCase c;
  c.shape = shapes()[0].shape;
  c.settings = settings_of(4, 44, positions == Positions::entry ? 3 : 0, Mass::score);
  c.lengths = {44 + c.settings.sink + 4 * 71 - 2};
  c.steps = 3;
  c.chunk = 64;
  for (const auto& [cluster, blocks] : plans) {
    for (const GroupType type : {GroupType::bf16, GroupType::fp8}) {
      c.name = std::to_string(blocks) + " blocks in clusters of " + std::to_string(cluster) +
               (type == GroupType::fp8 ? ", fp8" : "");
      c.type = type;
      c.cluster = cluster;
      c.blocks = blocks;
      case_next(c, positions);
      DecodeRun run(c);
      if (!run.go()) return;
    }
  }
}

TEST_P(CudaDecode, FewBlocksAlone) {
  LCA_NEEDS_GPU();
  expect_few_blocks_right(GetParam(), {{1, 1}, {1, 3}});
}

TEST_P(CudaDecode, FewBlocksInPairs) {
  LCA_NEEDS_GPU();
  expect_few_blocks_right(GetParam(), {{2, 2}, {2, 4}});
}

TEST_P(CudaDecode, FewBlocksInLargeClusters) {
  LCA_NEEDS_GPU();
  expect_few_blocks_right(GetParam(), {{4, 4}, {8, 8}, {8, 16}});
}

// The smallest that has everything, for compute-sanitizer.
TEST_P(CudaDecode, TwoStepsOfEveryPortableKernel) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.settings = settings_of(4, 44, 3, Mass::score);
  c.lengths = {47 + 4 * 30 - 2};
  c.steps = 2;
  c.kernels = Kernels::portable;
  c.seed = 480;
  for (const GroupType type : {GroupType::bf16, GroupType::int8}) {
    c.type = type;
    for (const std::size_t which : {0u, 2u, 3u, 4u, 5u}) {
      c.name = std::string("two steps, ") + shapes()[which].name;
      c.shape = shapes()[which].shape;
      case_next(c, GetParam());
      DecodeRun run(c);
      if (!run.go()) return;
    }
  }
}

// Groups that are condensed in one go, and in pieces.
TEST_P(CudaDecode, AllSixteenPoolings) {
  LCA_NEEDS_GPU();
  const Pool pools[] = {Pool::weighted, Pool::mean, Pool::max, Pool::select};
  DecodeCase c;
  c.seed = 500;
  for (const std::int64_t group : {4, 37}) {
    c.lengths = {9 + group * 3 - 1};
    c.steps = group == 4 ? 6 : 3;
    for (const Pool semantic : pools) {
      for (const Pool positional : pools) {
        c.settings = settings_of(group, 7, 2, c.seed % 2 == 0 ? Mass::score : Mass::none);
        c.settings.semantic_pool = semantic;
        c.settings.positional_pool = positional;
        c.name = "g " + std::to_string(group) + ", pools " +
                 std::to_string(static_cast<int>(semantic)) + "/" +
                 std::to_string(static_cast<int>(positional));
        expect_right(c, {0, 2, 3, 5});
        c.seed += 7;
      }
    }
  }
}

TEST_P(CudaDecode, HeadReductionsAndSummaries) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.lengths = {0, 30};
  c.steps = 8;
  c.seed = 800;
  for (const HeadReduce reduce : {HeadReduce::mean, HeadReduce::sum, HeadReduce::max}) {
    for (const std::int64_t queries : {1, 5, 50}) {
      c.settings = settings_of(4, 2, 1, Mass::score);
      c.settings.head_reduce = reduce;
      c.settings.summary_queries = queries;
      c.name = "reduction " + std::to_string(static_cast<int>(reduce)) + ", n_q " +
               std::to_string(queries);
      expect_right(c, {0, 3, 4, 7});
      c.seed += 5;
    }
  }
}

TEST_P(CudaDecode, DenseAndWindowHaveNoRepresentatives) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.lengths = {0, 5, 150};
  c.steps = 4;
  c.seed = 900;
  for (const MethodKind method : {MethodKind::dense, MethodKind::window}) {
    c.name = method == MethodKind::dense ? "dense" : "window";
    c.settings = settings_of(4, 33, 3);
    c.settings.method = method;
    expect_right(c, kAllShapes);
  }
}

// With entry positions they are rotated before they are quantised.
TEST_P(CudaDecode, QuantisedRepresentatives) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.settings = settings_of(4, 7, 2, Mass::score);
  c.lengths = {0, 9 + 4 * 33 - 1, 9 + 4 * 64 - 2};
  c.steps = 6;
  c.seed = 1000;
  for (const GroupType type : {GroupType::fp8, GroupType::int8}) {
    c.name = type == GroupType::fp8 ? "fp8" : "int8";
    c.type = type;
    expect_right(c, kAllShapes);
  }
}

TEST_P(CudaDecode, QuantisedRepresentativesKeepTheOutput) {
  LCA_NEEDS_GPU();
  for (const bool outliers : {false, true}) {
    DecodeCase c;
    c.name = outliers ? "outliers" : "no outliers";
    c.shape = shapes()[0].shape;
    c.settings = settings_of(4, 128, 0);
    c.lengths = {128 + 4 * 16};
    c.steps = 5;
    c.seed = 1100;
    c.outliers = outliers;
    // Logits of latents with outliers are large, and so is what rounding the weights does.
    if (outliers) c.out_tolerance = 1e-2;
    case_next(c, GetParam());
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

TEST_P(CudaDecode, FortyStepsOfOneGraph) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.name = "graph";
  c.settings = settings_of(4, 7, 2, Mass::score);
  c.lengths = {0, 20, 9 + 4 * 30};
  c.steps = 40;
  c.seed = 1200;
  c.graph = true;
  expect_right(c, {0, 5});
  c.type = GroupType::fp8;
  expect_right(c, {0});
}

TEST_P(CudaDecode, QueriesMayBeWrittenByTheKernelRightBefore) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.name = "written in the graph";
  c.settings = settings_of(4, 7, 2, Mass::score);
  c.lengths = {9 + 4 * 30, 40};
  c.steps = 30;
  c.seed = 1300;
  c.graph = c.written = true;
  expect_right(c, {0, 2, 4});
  // Hopper's kernels for wide latents, which start before the product has ended.
  c.name = "written in the graph, pages";
  c.chunk = 64;
  for (const GroupType type : {GroupType::bf16, GroupType::fp8}) {
    c.type = type;
    expect_right(c, {0});
  }
}

}  // namespace
}  // namespace lca::test
