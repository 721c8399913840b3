// LCA_CPU lowers the instructions that kernels use.

#include <gtest/gtest.h>

#include "core/cpu_level.h"
#include "program.h"
#include "support/variable.h"

namespace lca::test {
namespace {

const std::vector<std::string> kProduct{"bench",  "product", "--types", "q6_k",
                                        "--rows", "1,40",    "--size",  "256"};

TEST(CpuLevels, AWrongNameIsAnError) {
  const Variable asked("LCA_CPU", "fastest");
  const Finished finished = program_run(kProduct);
  EXPECT_EQ(finished.code, 2);
  EXPECT_NE(finished.err.find("LCA_CPU is fastest; it takes scalar"), std::string::npos)
      << finished.err;
}

TEST(CpuLevels, EveryLevelBelowTheProcessorsRunsAndIsPrinted) {
  const auto best = static_cast<int>(cpu_level());
  for (int level = 0; level <= best; ++level) {
    const std::string name(cpu_level_name(static_cast<CpuLevel>(level)));
    const Variable asked("LCA_CPU", name.c_str());
    const Finished finished = program_run(kProduct);
    EXPECT_EQ(finished.code, 0) << finished.err;
    EXPECT_NE(finished.out.find("(" + name + ")"), std::string::npos) << finished.out;
  }
}

TEST(CpuLevels, AWrongTypeOrSizeIsAnError) {
  EXPECT_EQ(program_run({"bench", "product", "--types", "q3"}).code, 2);
  EXPECT_EQ(program_run({"bench", "product", "--size", "300"}).code, 2);
}

}  // namespace
}  // namespace lca::test
