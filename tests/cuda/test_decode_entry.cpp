// What is true of decode steps with entry positions alone (mechanism §10); test_decode.cpp has all
// that both kinds of positions do.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cuda/decode_cases.h"

namespace lca::test {
namespace {

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
