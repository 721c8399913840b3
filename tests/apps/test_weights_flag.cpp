// `--weights`: a plain checkpoint packed while it is loaded, on every command that takes a model.

#include "apps/program.h"
#include "apps/tiny_model.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace lca::test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

class WeightsFlag : public testing::Test {
 protected:
  TinyModel model;

  WeightsFlag() { model.write(); }

  json printed(const Words& words) const {
    const Finished finished = program_run(words);
    EXPECT_EQ(finished.code, 0) << finished.err;
    return json::parse(finished.out);
  }
};

TEST_F(WeightsFlag, InspectAndPlanAndBenchAgreeOnTheSize) {
  const auto size = [&](const std::string& packing) {
    const json facts = printed({"inspect", model.path(), "--weights", packing, "--json"});
    EXPECT_EQ(facts["weight_packing"], packing);
    const json planned = printed({"plan", model.path(), "--weights", packing, "--json"});
    EXPECT_EQ(planned["lca"]["weights_bytes"], facts["weight_bytes"]);
    const json measured = printed({"bench", "model", model.path(), "--weights", packing, "--prompt",
                                   "8", "--depths", "none", "--repeat", "1", "--json"});
    EXPECT_EQ(measured["weight_bytes"], facts["weight_bytes"]);
    EXPECT_EQ(measured["weights"], packing);
    return facts["weight_bytes"].get<std::int64_t>();
  };
  const std::int64_t plain = size("keep");
  EXPECT_LT(size("q8_0"), plain);
  EXPECT_LT(size("q4_0"), size("q8_0"));
  EXPECT_EQ(printed({"inspect", model.path(), "--json"})["weight_bytes"], plain);
}

TEST_F(WeightsFlag, APackedModelGeneratesText) {
  const json reply = printed({"run", model.path(), "-p", "hello", "-n", "3", "--ignore-eos",
                              "--weights", "q8_0", "--json"});
  EXPECT_EQ(reply["tokens"], 3);
}

TEST_F(WeightsFlag, ErrorsAreOneLine) {
  for (const Words& words :
       {Words{"run", model.path(), "-p", "hello", "--weights", "q5_0"},
        {"run", model.path(), "-p", "hello", "--weights", ""},
        {"inspect", model.path(), "--weights", "8"},
        {"plan", model.path(), "--weights", "Q8_0"},
        {"plan", "--shape", "qwen-7b", "--weights", "q8_0"},
        {"inspect", LCA_SOURCE_DIR "/tests/golden/models/gguf_llama_q4_0/model.gguf", "--weights",
         "q8_0"}}) {
    EXPECT_TRUE(program_run(words).failed_in_one_line(2)) << words[0] << " " << words.back();
  }
}

}  // namespace
}  // namespace lca::test
