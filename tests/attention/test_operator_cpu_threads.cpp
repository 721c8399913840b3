// The operators' results never depend on the number of threads. Small enough to run under the
// thread sanitizer as well.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "support/compare.h"
#include "support/operator_runs.h"

namespace lca::test {
namespace {

void expect_same_bits(const OperatorResults& expected, const OperatorResults& actual) {
  ASSERT_EQ(expected.bytes.size(), actual.bytes.size());
  for (std::size_t i = 0; i < expected.bytes.size(); ++i) {
    EXPECT_EQ(expected.bytes[i], actual.bytes[i]) << expected.tensors[i].name;
  }
}

TEST(ThreadsOperator, AnyNumberOfThemGivesTheSameBits) {
  Context one(1);
  Context two(2);
  Context four(4);
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(scaled(60)); ++i) {
    Random random(165000 + i);
    const OperatorCase a_case = random_operator_case(random, 130);
    SCOPED_TRACE(describe(a_case));
    const OperatorResults expected = cpu_results(a_case, one);
    expect_same_bits(expected, cpu_results(a_case, two));
    expect_same_bits(expected, cpu_results(a_case, four));
    expect_same_bits(expected, cpu_results(a_case, four));
  }
}

TEST(ThreadsOperator, SumsOverSeveralChunksGiveTheSameBits) {
  for (const AttentionShape& shape :
       {AttentionShape::gqa(4, 2, 8, 8), AttentionShape::mla(3, 8, 4, 16, 8)}) {
    for (const MethodKind method : {MethodKind::lca, MethodKind::dense}) {
      const bool turn = (shape.form == Form::gqa) == (method == MethodKind::lca);
      if (test_scale() < 1 && !turn) continue;
      Random random(166);
      LayerSpec layer;
      layer.shape = shape;
      layer.settings.method = method;
      layer.settings.group = 2;
      layer.settings.window = 20;
      layer.settings.sink = 4;
      layer.settings.mass = Mass::score;
      const OperatorCase a_case = operator_case(layer, {0, 1600, 1700}, DType::f32, random);
      Context one(1);
      const OperatorResults expected = cpu_results(a_case, one);
      for (int threads : {4, 3, 2}) {
        if (threads < 4 && test_scale() < 1) break;
        Context context(threads);
        expect_same_bits(expected, cpu_results(a_case, context));
      }
    }
  }
}

}  // namespace
}  // namespace lca::test
