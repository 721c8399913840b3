// Which of the products for strips this processor takes.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "core/cpu_level.h"
#include "ops/cpu/strip_kernels.h"

namespace lca::test {
namespace {

// LCA_TEST_LEVEL is what run.py expects of the processor that it emulates, or of LCA_CPU.
TEST(ArmPath, IsTheOneExpected) {
  const char* variable = std::getenv("LCA_TEST_LEVEL");
  ASSERT_NE(variable, nullptr) << "LCA_TEST_LEVEL says which level is expected";
  const std::string expected = variable;
  const std::string level(cpu_level_name(cpu_level()));
  EXPECT_EQ(level, expected);

  const auto dot = strips_in_use().dot;
  ASSERT_NE(neon::kStrips.dot, nullptr);
  ASSERT_NE(neon_dotprod::kStrips.dot, nullptr) << "compiled without dot products";
  const std::string path = dot == neon_dotprod::kStrips.dot ? "dotprod"
                           : dot == neon::kStrips.dot       ? "neon"
                           : dot == nullptr                 ? "scalar"
                                                            : "unknown";
  EXPECT_EQ(path, expected);
  std::printf("PATH: %s\n", path.c_str());
}

}  // namespace
}  // namespace lca::test
