// `lca plan`: the sizes the mechanism page states, and the longest context that fits.

#include "apps/program.h"
#include "core/cuda/device_name.h"
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

TEST(PlanCommand, SessionsMultiplyTheCacheAlone) {
  const auto with = [](const char* sessions) {
    return plan({"--shape", "deepseek-v2-lite", "--length", "32K", "--sessions", sessions});
  };
  const json one = with("1"), many = with("200");
  EXPECT_EQ(many["sessions"], 200);
  for (const char* method : {"dense", "lca"}) {
    const auto bytes = [&](const json& made, const char* name) {
      return made[method][name].get<std::int64_t>();
    };
    EXPECT_EQ(bytes(many, "cache_bytes"), 200 * bytes(one, "cache_bytes")) << method;
    EXPECT_EQ(bytes(many, "workspace_bytes"), bytes(one, "workspace_bytes")) << method;
    EXPECT_EQ(bytes(many, "total_bytes"),
              bytes(one, "total_bytes") + 199 * bytes(one, "cache_bytes"))
        << method;
  }
  EXPECT_EQ(many["cache_ratio"], one["cache_ratio"]);
}

TEST(PlanCommand, SessionsThatFitFitAndOneMoreDoesNot) {
  const auto with = [](std::int64_t sessions) {
    return plan({"--shape", "smollm2", "--length", "8K", "--budget", "4GiB", "--sessions",
                 std::to_string(sessions)});
  };
  const json made = with(1);
  for (const char* method : {"dense", "lca"}) {
    // A session may be larger on its way than at its end: what fits is counted at its largest.
    const auto sessions = made[method]["sessions_that_fit"].get<std::int64_t>();
    ASSERT_GT(sessions, 2) << method;
    EXPECT_GE(with(sessions)[method]["longest_context"], 8192) << method;
    EXPECT_LT(with(sessions + 1)[method]["longest_context"], 8192) << method;
    EXPECT_FALSE(with(2)[method].contains("sessions_that_fit")) << method;
  }
  EXPECT_GT(made["lca"]["sessions_that_fit"], made["dense"]["sessions_that_fit"]);
}

TEST(PlanCommand, TheTableSaysHowManySessions) {
  const Finished finished = program_run(
      {"plan", "--shape", "smollm2", "--length", "8K", "--sessions", "200", "--budget", "24GiB"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  for (const char* part : {"200 sessions of 8K tokens", "| caches of all sessions "}) {
    EXPECT_NE(finished.out.find(part), std::string::npos) << part << " is not in\n" << finished.out;
  }
}

/// A plan for a GPU needs a build with CUDA, not a GPU.
bool plans_gpus() { return cuda::device_missing().find("build has no CUDA") == std::string::npos; }

json cuda_plan(const std::vector<std::string>& more) {
  std::vector<std::string> words = {"--device", "cuda"};
  words.insert(words.end(), more.begin(), more.end());
  return plan(words);
}

TEST(CudaPlanCommand, ABuildWithoutCudaSaysSo) {
  if (plans_gpus()) GTEST_SKIP() << "this build has CUDA";
  const Finished finished = program_run({"plan", "--shape", "smollm2", "--device", "cuda"});
  EXPECT_NE(finished.code, 0);
  EXPECT_NE(finished.err.find("this build has no CUDA"), std::string::npos) << finished.err;
}

TEST(CudaPlanCommand, CountsWeightsCachesWorkAndTheDriver) {
  if (!plans_gpus()) GTEST_SKIP() << "this build has no CUDA";
  const json made = cuda_plan({"--shape", "deepseek-v2-lite", "--preset", "training", "--budget",
                               "139GiB", "--length", "128K"});
  const json& lca = made["lca"];
  EXPECT_NEAR(gib(lca["weights_bytes"]), 29.3, 0.05);
  EXPECT_NEAR(gib(made["dense"]["cache_bytes"]), 3.80, 0.13);
  EXPECT_GT(gib(lca["cache_bytes"]), 0.265);
  EXPECT_LT(gib(lca["cache_bytes"]), 0.33);
  const auto bytes = [&](const char* name) { return lca[name].get<std::int64_t>(); };
  EXPECT_EQ(bytes("peak_bytes"),
            bytes("weights_bytes") + bytes("cache_bytes") + bytes("work_bytes"));
  EXPECT_EQ(bytes("total_bytes"), bytes("peak_bytes") + bytes("driver_bytes"));
  EXPECT_EQ(lca["fits"], true);
  EXPECT_GE(lca["sessions_that_fit"], 370);
  const json narrow = cuda_plan({"--shape", "deepseek-v2-lite", "--preset", "training", "--budget",
                                 "139GiB", "--length", "128K", "--groups", "fp8"});
  EXPECT_GE(narrow["lca"]["sessions_that_fit"], 600);
}

TEST(CudaPlanCommand, WhatFitsFitsAndOneMoreDoesNot) {
  if (!plans_gpus()) GTEST_SKIP() << "this build has no CUDA";
  for (const char* preset : {"paper", "training"}) {
    SCOPED_TRACE(preset);
    const auto with = [&](std::int64_t length, std::int64_t sessions) {
      return cuda_plan({"--shape", "deepseek-v2-lite", "--preset", preset, "--budget", "33.5GiB",
                        "--length", std::to_string(length), "--sessions",
                        std::to_string(sessions)});
    };
    const json made = with(65536, 1);
    for (const char* method : {"dense", "lca"}) {
      const auto longest = made[method]["longest_context"].get<std::int64_t>();
      EXPECT_EQ(with(longest, 1)[method]["fits"], true) << method;
      EXPECT_EQ(with(longest + 1, 1)[method]["fits"], false) << method;
      const auto sessions = made[method]["sessions_that_fit"].get<std::int64_t>();
      if (sessions > 0) {
        EXPECT_EQ(with(65536, sessions)[method]["fits"], true) << method;
      }
      EXPECT_EQ(with(65536, sessions + 1)[method]["fits"], false) << method;
    }
  }
}

TEST(CudaPlanCommand, PackedWeightsAreCountedAsBf16) {
  if (!plans_gpus()) GTEST_SKIP() << "this build has no CUDA";
  const std::string models = std::string(LCA_SOURCE_DIR) + "/tests/golden/models/";
  const auto weights = [&](const std::string& name) {
    return cuda_plan({models + name + "/model.gguf"})["lca"]["weights_bytes"];
  };
  EXPECT_EQ(weights("gguf_llama_q4_0"), weights("gguf_llama_q8_0"));
}

TEST(CudaPlanCommand, FlagsOfTheOtherDeviceAreErrors) {
  const std::vector<std::vector<std::string>> wrong = {{"--groups", "fp8"},
                                                       {"--sessions", "0"},
                                                       {"--device", "gpu"},
                                                       {"--device", "cuda:x"},
                                                       {"--device", "cuda", "--dtype", "f32"},
                                                       {"--device", "cuda", "--length", "4M"},
                                                       {"--device", "cuda", "--sessions", "0"}};
  for (const std::vector<std::string>& flags : wrong) {
    std::vector<std::string> words = {"plan", "--shape", "smollm2"};
    words.insert(words.end(), flags.begin(), flags.end());
    EXPECT_NE(program_run(words).code, 0) << flags.back();
  }
}

}  // namespace
}  // namespace lca::test
