// Decode steps with entry positions (mechanism §10): sink and representatives see the query at its
// entry position, and a representative's key is kept at its own.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "attention/rotate.h"
#include "cuda/decode_cases.h"

namespace lca::test {
namespace {

/// Both layouts, and now and then a part of the channels alone.
Rotation rotation_for(const AttentionShape& shape, std::uint64_t number) {
  const std::int64_t width = shape.d_positional();
  Rotation rotation = rotation_plain(number % 3 == 2 ? width - 6 : width, 50);
  rotation.layout = number % 2 == 0 ? RopeLayout::halves : RopeLayout::adjacent;
  return rotation;
}

void expect_entry_right(DecodeCase c, std::initializer_list<std::size_t> which) {
  const std::string name = c.name;
  for (const std::size_t i : which) {
    c.name = name + ", " + shapes()[i].name;
    c.shape = shapes()[i].shape;
    ++c.seed;
    c.rotation = rotation_for(c.shape, c.seed);
    expect_right(c);
  }
}

constexpr std::initializer_list<std::size_t> kAllShapes = {0, 1, 2, 3, 4, 5, 6, 7};

TEST(CudaDecodeEntry, EveryKernelSeesSinkAndRepresentativesFromTheEntryPosition) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.lengths = {0, 11, 12 + 4 * 40 + 1};
  c.steps = 8;
  c.seed = 2000;
  for (const std::int64_t sink : {0, 5}) {
    c.name = "g 4, w 7, s " + std::to_string(sink);
    c.settings = settings_of(4, 7, sink, Mass::score);
    expect_entry_right(c, kAllShapes);
    c.seed += 10;
  }
}

TEST(CudaDecodeEntry, TilesThatSinkAndWindowShareAreCutAnywhere) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.name = "g 4, w 30, s 21, chunks of 3 and of 100";
  c.settings = settings_of(4, 30, 21, Mass::count);
  c.lengths = {0, 60, 51 + 4 * 70 - 2};
  c.steps = 4;
  c.seed = 2100;
  for (const int chunk : {3, 100}) {
    c.chunk = chunk;
    expect_entry_right(c, kAllShapes);
  }
}

TEST(CudaDecodeEntry, OneBlockReadsManyTiles) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.name = "g 4, w 260, s 100, one block";
  c.settings = settings_of(4, 260, 100, Mass::score);
  c.lengths = {360 + 4 * 330 - 1, 2};
  c.steps = 2;
  c.chunk = 1000;
  c.seed = 2200;
  for (const GroupType type : {GroupType::bf16, GroupType::fp8}) {
    c.type = type;
    expect_entry_right(c, {0, 2, 4, 5});
  }
}

TEST(CudaDecodeEntry, BlocksOfManyPagesStream) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.name = "pages";
  c.settings = settings_of(4, 130, 70, Mass::score);
  c.lengths = {200 + 4 * 200 - 1, 2, 200 + 4 * 64 - 3};
  c.steps = 3;
  c.seed = 2300;
  for (const int chunk : {64, 256, 2048}) {
    c.chunk = chunk;
    expect_entry_right(c, {0, 1});
  }
}

TEST(CudaDecodeEntry, FewBlocksInClustersOfEverySize) {
  LCA_NEEDS_GPU();
  if (!gpu().hopper()) GTEST_SKIP() << "this kernel needs a Hopper GPU";
  DecodeCase c;
  c.shape = shapes()[0].shape;
  c.settings = settings_of(4, 44, 3, Mass::score);
  c.lengths = {47 + 4 * 71 - 2};
  c.steps = 3;
  c.chunk = 64;
  c.seed = 2400;
  for (const auto& [cluster, blocks] :
       {std::pair{1, 1}, std::pair{1, 3}, std::pair{2, 4}, std::pair{4, 4}, std::pair{8, 16}}) {
    c.name = std::to_string(blocks) + " blocks in clusters of " + std::to_string(cluster);
    c.cluster = cluster;
    c.blocks = blocks;
    c.rotation = rotation_for(c.shape, ++c.seed);
    DecodeRun run(c);
    if (!run.go()) return;
  }
}

// The smallest that has everything, for compute-sanitizer.
TEST(CudaDecodeEntry, TwoStepsOfEveryPortableKernel) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.settings = settings_of(4, 44, 3, Mass::score);
  c.lengths = {47 + 4 * 30 - 2};
  c.steps = 2;
  c.kernels = Kernels::portable;
  c.seed = 2450;
  for (const GroupType type : {GroupType::bf16, GroupType::int8}) {
    c.type = type;
    for (const std::size_t which : {0u, 2u, 3u, 4u, 5u}) {
      c.name = std::string("two steps, ") + shapes()[which].name;
      c.shape = shapes()[which].shape;
      c.rotation = rotation_for(c.shape, ++c.seed);
      DecodeRun run(c);
      if (!run.go()) return;
    }
  }
}

// Groups that are condensed in one go, and in pieces.
TEST(CudaDecodeEntry, EveryPoolingOfRotatedKeys) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.steps = 4;
  c.seed = 2500;
  for (const std::int64_t group : {4, 37}) {
    c.lengths = {9 + group * 3 - 1};
    for (const Pool semantic : {Pool::weighted, Pool::select}) {
      for (const Pool positional : {Pool::weighted, Pool::mean, Pool::max, Pool::select}) {
        for (const Mass mass : {Mass::none, Mass::score}) {
          c.settings = settings_of(group, 7, 2, mass);
          c.settings.semantic_pool = semantic;
          c.settings.positional_pool = positional;
          c.name = "g " + std::to_string(group) + ", pools " +
                   std::to_string(static_cast<int>(semantic)) + "/" +
                   std::to_string(static_cast<int>(positional));
          expect_entry_right(c, {0, 2, 3, 4, 5});
          c.seed += 7;
        }
      }
    }
  }
}

TEST(CudaDecodeEntry, HeadReductionMax) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.name = "max";
  c.settings = settings_of(4, 2, 1, Mass::score);
  c.settings.head_reduce = HeadReduce::max;
  c.settings.summary_queries = 5;
  c.lengths = {0, 30};
  c.steps = 6;
  c.seed = 2600;
  expect_entry_right(c, {0, 3, 4, 7});
}

TEST(CudaDecodeEntry, RepresentativesAreRotatedBeforeTheyAreQuantised) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.settings = settings_of(4, 7, 2, Mass::score);
  c.lengths = {0, 9 + 4 * 33 - 1, 9 + 4 * 64 - 2};
  c.steps = 6;
  c.seed = 2700;
  for (const GroupType type : {GroupType::fp8, GroupType::int8}) {
    c.name = type == GroupType::fp8 ? "fp8" : "int8";
    c.type = type;
    expect_entry_right(c, kAllShapes);
  }
}

TEST(CudaDecodeEntry, DenseAndWindow) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.lengths = {0, 5, 150};
  c.steps = 4;
  c.seed = 2800;
  for (const MethodKind method : {MethodKind::dense, MethodKind::window}) {
    c.name = method == MethodKind::dense ? "dense" : "window";
    c.settings = settings_of(4, 33, 3);
    c.settings.method = method;
    expect_entry_right(c, kAllShapes);
  }
}

TEST(CudaDecodeEntry, FortyStepsOfOneGraph) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.name = "graph";
  c.settings = settings_of(4, 7, 2, Mass::score);
  c.lengths = {0, 20, 9 + 4 * 30};
  c.steps = 40;
  c.seed = 2900;
  c.graph = true;
  expect_entry_right(c, {0, 2, 5});
  c.written = true;  // by the kernel right before
  c.steps = 20;
  expect_entry_right(c, {0, 4});
  c.chunk = 64;
  expect_entry_right(c, {0});
}

TEST(CudaDecodeEntry, NothingCondensedEqualsTokenPositionsBitForBit) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.lengths = {0, 3, 90};
  c.steps = 4;
  c.seed = 3000;
  for (const MethodKind method : {MethodKind::lca, MethodKind::window}) {
    c.settings = settings_of(16, 128, 5, Mass::score);
    c.settings.method = method;
    for (const std::size_t which : kAllShapes) {
      for (const Kernels kernels : {Kernels::fast, Kernels::portable}) {
        c.name = std::string("short, ") + shapes()[which].name;
        c.shape = shapes()[which].shape;
        c.kernels = kernels;
        std::vector<double> token, entry;
        c.rotation = {};
        DecodeRun(c).go(&token);
        c.rotation = rotation_for(c.shape, which);
        DecodeRun(c).go(&entry);
        EXPECT_FALSE(token.empty());
        EXPECT_EQ(token, entry) << c.name;
      }
    }
  }
}

// Frequencies of thousands of radians stand for positions of millions.
TEST(CudaDecodeEntry, LargeAnglesAreExact) {
  LCA_NEEDS_GPU();
  DecodeCase c;
  c.settings = settings_of(16, 12, 4, Mass::score);
  c.lengths = {16 + 16 * 60 - 1};
  c.steps = 3;
  c.seed = 3100;
  for (const std::size_t which : kAllShapes) {
    c.name = std::string("large angles, ") + shapes()[which].name;
    c.shape = shapes()[which].shape;
    c.rotation = rotation_plain(c.shape.d_positional());
    for (double& frequency : c.rotation.frequencies) frequency *= 2345.678;
    ++c.seed;
    expect_right(c);
  }
}

}  // namespace
}  // namespace lca::test
