// Values of LCA_CPU: levels by name, and what is said of the others.

#include "core/cpu_level.h"

#include <gtest/gtest.h>
#include <lca/error.h>

#include <string>
#include <vector>

namespace lca::test {
namespace {

#if defined(__x86_64__)
const std::vector<std::string> kOwn{"scalar", "avx2", "avx512"};
const std::vector<std::string> kOthers{"neon", "dotprod"};
#elif defined(__aarch64__)
const std::vector<std::string> kOwn{"scalar", "neon", "dotprod"};
const std::vector<std::string> kOthers{"avx2", "avx512"};
#else
const std::vector<std::string> kOwn{"scalar"};
const std::vector<std::string> kOthers{"avx2", "avx512", "neon", "dotprod"};
#endif

std::string refusal_of(const std::string& asked, ErrorKind kind) {
  try {
    cpu_level_asked(asked);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << asked;
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  ADD_FAILURE() << asked << " is a level here";
  return {};
}

TEST(CpuLevelNames, ThoseTheProcessorHasAreTakenAndHigherOnesRefused) {
  const CpuLevel best = cpu_level_asked("");
  for (std::size_t i = 0; i < kOwn.size(); ++i) {
    const auto level = static_cast<CpuLevel>(i);
    EXPECT_EQ(cpu_level_name(level), kOwn[i]);
    if (level <= best) {
      EXPECT_EQ(cpu_level_asked(kOwn[i]), level);
    } else {
      EXPECT_EQ(refusal_of(kOwn[i], ErrorKind::incompatible),
                "LCA_CPU is " + kOwn[i] + ", which this processor lacks; it has " +
                    std::string(cpu_level_name(best)));
    }
  }
}

TEST(CpuLevelNames, ThoseOfAnotherFamilyAreAnError) {
  std::string taken;
  for (const std::string& name : kOwn) taken += (taken.empty() ? "" : ", ") + name;
  std::vector<std::string> wrong = kOthers;
  wrong.insert(wrong.end(), {"fastest", "Scalar", " "});
  for (const std::string& name : wrong) {
    EXPECT_EQ(refusal_of(name, ErrorKind::bad_input),
              "LCA_CPU is " + name + "; it takes " + taken + " or nothing");
  }
}

}  // namespace
}  // namespace lca::test
