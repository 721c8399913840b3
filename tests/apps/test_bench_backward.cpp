// `lca bench attention --backward`: what it reports, on contexts short enough for a test.

#include "apps/program.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>

#include "support/sanitized.h"

namespace lca::test {
namespace {

TEST(BenchBackward, ReportsATrainingStepOfEveryMethodAndShape) {
  for (const char* shape : {"smollm2", "deepseek-v2-lite"}) {
    for (const char* dtype : {"f32", "bf16"}) {
      if (kSanitized && (std::string(shape) == "smollm2") != (std::string(dtype) == "f32"))
        continue;
      const Finished finished = program_run({"bench",
                                             "attention",
                                             "--backward",
                                             "--shape",
                                             shape,
                                             "--dtype",
                                             dtype,
                                             "--lengths",
                                             "40,96",
                                             "--window",
                                             "16",
                                             "--group",
                                             "8",
                                             "--mass",
                                             "score",
                                             "--methods",
                                             "lca,dense,window",
                                             "--json",
                                             "--threads",
                                             "2"});
      ASSERT_EQ(finished.code, 0) << finished.err;
      const nlohmann::json report = nlohmann::json::parse(finished.out);
      ASSERT_EQ(report["rows"].size(), 6u);
      for (const nlohmann::json& row : report["rows"]) {
        for (const char* field : {"attend_ms", "attend_backward_ms", "condense_backward_ms", "ms",
                                  "gflops", "scratch_bytes"}) {
          ASSERT_TRUE(row.contains(field)) << field;
          EXPECT_GT(row[field].get<double>(), 0) << field;
        }
      }
    }
  }
}

TEST(BenchBackward, PrintsATable) {
  const Finished finished = program_run({"bench", "attention", "--backward", "--shape", "smollm2",
                                         "--lengths", "64", "--window", "16", "--threads", "1"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_NE(finished.out.find("| 64     |    lca |"), std::string::npos) << finished.out;
  EXPECT_NE(finished.out.find("attend backward"), std::string::npos) << finished.out;
}

}  // namespace
}  // namespace lca::test
