// `lca plan`: the sizes the mechanism page states, and the longest context that fits.

#include "apps/program.h"
#include "support/compare.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace lca::test {
namespace {

using nlohmann::json;

json plan(const std::vector<std::string>& more) {
  std::vector<std::string> words = {"plan", "--json", "--threads", "2"};
  words.insert(words.end(), more.begin(), more.end());
  const Finished finished = program_run(words);
  EXPECT_EQ(finished.code, 0) << finished.err;
  return json::parse(finished.out);
}

double gib(const json& bytes) { return bytes.get<double>() / (1024.0 * 1024 * 1024); }

struct Stated {
  const char* shape;
  double lca, dense;  // GiB
  double digit;       // of the last digit stated
};

TEST(PlanCommand, StatesTheSizesOfTheSpecAt128K) {
  for (const Stated& stated :
       {Stated{"deepseek-v2-lite", 0.265, 3.80, 0.001}, Stated{"minicpm3", 0.30, 4.36, 0.01},
        Stated{"qwen-7b", 0.49, 7.00, 0.01}}) {
    SCOPED_TRACE(stated.shape);
    const json made = plan({"--shape", stated.shape, "--length", "128K", "--preset", "training"});
    EXPECT_NEAR(gib(made["lca"]["cache_bytes"]), stated.lca, stated.digit / 2);
    EXPECT_NEAR(gib(made["dense"]["cache_bytes"]), stated.dense, 0.005);
    EXPECT_EQ(made["lca"]["entries_per_layer"], 9152);
    EXPECT_EQ(made["dense"]["entries_per_layer"], 131072);
    EXPECT_EQ(made["lca"]["hidden_bytes"], 0);
  }
}

TEST(PlanCommand, PromptModeKeepsTheHiddenStatesOfTheWholePrompt) {
  const json made = plan({"--shape", "deepseek-v2-lite", "--length", "1M", "--preset", "paper"});
  EXPECT_EQ(made["lca"]["hidden_bytes"], 1048576LL * 2048 * 2);
  EXPECT_GE(made["lca"]["workspace_bytes"].get<std::int64_t>(), 1000000LL * 576 * 2);
  EXPECT_EQ(made["dense"]["hidden_bytes"], 0);
}

TEST(PlanCommand, TheLongestContextFitsAndOneTokenMoreDoesNot) {
  for (const char* preset : {"paper", "training", "training-free"}) {
    for (const char* budget : {"100MiB", "1GB", "24GiB"}) {
      if (test_scale() < 1 && budget != std::string_view("1GB")) continue;
      SCOPED_TRACE(std::string(preset) + " " + budget);
      const std::vector<std::string> words = {"--shape", "qwen-7b",  "--preset",
                                              preset,    "--budget", budget};
      const auto total = [&](const json& length, const char* method) {
        std::vector<std::string> more = words;
        more.insert(more.end(), {"--length", std::to_string(length.get<std::int64_t>())});
        return plan(more)[method]["total_bytes"].get<std::int64_t>();
      };
      const json made = plan(words);
      const auto bytes = made["budget_bytes"].get<std::int64_t>();
      for (const char* method : {"dense", "lca"}) {
        const json& longest = made[method]["longest_context"];
        EXPECT_LE(total(longest, method), bytes) << method;
        EXPECT_GT(total(longest.get<std::int64_t>() + 1, method), bytes) << method;
      }
      EXPECT_GT(made["lca"]["longest_context"], made["dense"]["longest_context"]);
    }
  }
}

TEST(PlanCommand, AbsurdNumbersStayNumbers) {
  const json made =
      plan({"--shape", "qwen-7b", "--length", "1024G", "--budget", "1000000TiB", "--dtype", "f32"});
  EXPECT_GT(made["dense"]["total_bytes"].get<double>(), 1e17);
  EXPECT_EQ(made["dense"]["longest_context"], 1099511627776);
  const json none = plan({"--shape", "qwen-7b", "--budget", "1"});
  EXPECT_EQ(none["lca"]["longest_context"], 0);
  EXPECT_EQ(none["lca"]["fits"], false);
}

TEST(PlanCommand, KnobsAndMethodsChangeThePlan) {
  const json base = plan({"--shape", "smollm2"});
  const json coarse = plan({"--shape", "smollm2", "--group", "64"});
  const json window = plan({"--shape", "smollm2", "--method", "window", "--window", "2K"});
  EXPECT_LT(coarse["lca"]["cache_bytes"], base["lca"]["cache_bytes"]);
  EXPECT_EQ(window["window"]["entries_per_layer"], 2048);
  EXPECT_EQ(plan({"--shape", "smollm2", "--dtype", "f32"})["dense"]["cache_bytes"],
            2 * base["dense"]["cache_bytes"].get<std::int64_t>());
}

TEST(PlanCommand, PrintsATable) {
  const Finished finished =
      program_run({"plan", "--shape", "deepseek-v2-lite", "--budget", "24GiB"});
  EXPECT_EQ(finished.code, 0);
  for (const char* part :
       {"| cache, all layers ", "3.80 GiB", "0.265 GiB", "14.3×", "longest context in 24.0 GiB"}) {
    EXPECT_NE(finished.out.find(part), std::string::npos) << part << " is not in\n" << finished.out;
  }
}

}  // namespace
}  // namespace lca::test
