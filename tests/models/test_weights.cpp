// Checkpoints that are damaged or do not fit, and adapters of other models: one line that names the
// tensor or file.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lca/error.h>

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "models/cpu/experts.h"
#include "support/golden_model.h"

namespace lca::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// A copy of a golden checkpoint that a test may damage before it is loaded.
class SpoiledCheckpoint {
 public:
  explicit SpoiledCheckpoint(const std::string& name)
      : folder_(fs::temp_directory_path() / ("lca-spoiled-" + std::to_string(::getpid()))) {
    const fs::path from = GoldenModel(name).path();
    fs::create_directories(folder_);
    std::ifstream stream(from / "config.json");
    std::ostringstream text;
    text << stream.rdbuf();
    config = text.str();
    const Safetensors file = Safetensors::open(from / "model.safetensors");
    for (const TensorInfo& tensor : file.tensors()) {
      tensors[tensor.name] = {tensor.dtype, tensor.shape,
                              std::vector<std::byte>(tensor.bytes.begin(), tensor.bytes.end())};
    }
  }
  ~SpoiledCheckpoint() { fs::remove_all(folder_); }
  SpoiledCheckpoint(const SpoiledCheckpoint&) = delete;
  SpoiledCheckpoint& operator=(const SpoiledCheckpoint&) = delete;

  struct Tensor {
    TensorType dtype;
    std::vector<std::int64_t> shape;
    std::vector<std::byte> bytes;

    void set(std::size_t index, float value) {
      std::memcpy(bytes.data() + index * sizeof(float), &value, sizeof(float));
    }
  };
  std::string config;
  std::map<std::string, Tensor> tensors;

  void replace(const std::string& from, const std::string& to) {
    const std::size_t at = config.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    config.replace(at, from.size(), to);
  }

  std::shared_ptr<const Model> load(const std::string& adapter = "") const {
    std::ofstream(folder_ / "config.json") << config;
    std::vector<TensorInfo> infos;
    for (const auto& [name, tensor] : tensors) {
      infos.push_back({name, tensor.dtype, tensor.shape, tensor.bytes});
    }
    FileWriter writer(folder_ / "model.safetensors");
    safetensors_write(writer, infos, {});
    writer.commit();
    ModelOptions options;
    options.path = folder_;
    options.adapter = adapter;
    options.precision = Precision::f32;
    return Model::load(options);
  }

  /// The error of loading it; "loads" if there is none.
  std::string complaint(const std::string& adapter = "") const {
    try {
      load(adapter);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input);
      return error.what();
    }
    return "loads";
  }

 private:
  fs::path folder_;
};

const char* const kUp = "model.layers.1.mlp.up_proj.weight";

TEST(Weights, AnUntouchedCopyLoads) { EXPECT_EQ(SpoiledCheckpoint("llama").complaint(), "loads"); }

TEST(Weights, AMissingTensorIsNamed) {
  SpoiledCheckpoint checkpoint("llama");
  checkpoint.tensors.erase(kUp);
  EXPECT_THAT(checkpoint.complaint(), AllOf(HasSubstr(kUp), HasSubstr("missing")));
}

TEST(Weights, AWrongShapeIsNamedWithBothShapes) {
  SpoiledCheckpoint checkpoint("llama");
  auto& tensor = checkpoint.tensors.at(kUp);
  std::swap(tensor.shape[0], tensor.shape[1]);
  EXPECT_THAT(checkpoint.complaint(),
              AllOf(HasSubstr(kUp), HasSubstr("[64,96]"), HasSubstr("[96,64]")));
}

TEST(Weights, NaNAndInfinityAreFound) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    SpoiledCheckpoint checkpoint("llama");
    checkpoint.tensors.at(kUp).set(4711, bad);
    EXPECT_THAT(checkpoint.complaint(), AllOf(HasSubstr(kUp), HasSubstr("NaN or an infinity")));
  }
  SpoiledCheckpoint checkpoint("llama");
  checkpoint.tensors.at("model.norm.weight").set(0, std::numeric_limits<float>::quiet_NaN());
  EXPECT_THAT(checkpoint.complaint(), HasSubstr("model.norm.weight"));
}

TEST(Weights, AMissingHeadIsAnErrorWhereTheConfigSaysItIsNotTied) {
  SpoiledCheckpoint checkpoint("llama");
  checkpoint.tensors.erase("lm_head.weight");
  EXPECT_THAT(checkpoint.complaint(),
              AllOf(HasSubstr("tie_word_embeddings is false"), HasSubstr("lm_head.weight")));
}

TEST(Weights, AMissingHeadMeansTiedWhereTheConfigSaysNothing) {
  SpoiledCheckpoint checkpoint("llama");
  checkpoint.tensors.erase("lm_head.weight");
  checkpoint.replace("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": null");
  const auto model = checkpoint.load();
  const std::vector<std::int32_t> tokens{1, 2, 3};
  const auto logits = session_logits(model, tokens, {dense_settings()}, 0, 3);
  SpoiledCheckpoint tied("llama");
  tied.tensors["lm_head.weight"] = tied.tensors.at("model.embed_tokens.weight");
  EXPECT_EQ(logits, session_logits(tied.load(), tokens, {dense_settings()}, 0, 3));
}

TEST(Weights, SettingsOfTheCheckpointAreTheModels) {
  SpoiledCheckpoint checkpoint("llama");
  EXPECT_EQ(checkpoint.load()->settings().at(0), settings_preset("training-free"));
  checkpoint.replace("{", R"({"lca": {"group": [4, 8], "window": 32},)");
  const auto model = checkpoint.load();
  ASSERT_EQ(model->settings().size(), 2U);
  EXPECT_EQ(model->settings()[0].group, 4);
  EXPECT_EQ(model->settings()[1].group, 8);
  EXPECT_EQ(model->settings()[1].window, 32);
}

TEST(Weights, AConfigThatAsksForOtherSizesNamesTheTensor) {
  SpoiledCheckpoint checkpoint("llama");
  checkpoint.replace("\"intermediate_size\": 96", "\"intermediate_size\": 128");
  EXPECT_THAT(checkpoint.complaint(), AllOf(HasSubstr("mlp."), HasSubstr("[128,64]")));
}

TEST(Weights, AnAdapterOfAnotherModelIsRefused) {
  const std::string adapter = GoldenModel("adapter_deepseek_v2").adapter();
  EXPECT_THAT(SpoiledCheckpoint("llama").complaint(adapter), HasSubstr("another model"));
  const std::string wide = GoldenModel("adapter_llama").adapter();
  EXPECT_THAT(SpoiledCheckpoint("llama_linear").complaint(wide), HasSubstr("another model"));
}

TEST(Experts, GroupLimitedRouterLooksOnlyIntoTheBestGroups) {
  ExpertConfig config;
  config.count = 6;
  config.per_token = 2;
  config.router = Router::group_limited;
  config.groups = 3;
  config.top_groups = 1;
  config.scale = 2;
  const float logits[6] = {1, -3, 0.9F, 0.8F, 0, 0};
  std::vector<ExpertChoice> chosen(2);
  experts_choose(config, logits, chosen);
  EXPECT_EQ(chosen[0].expert, 0);
  EXPECT_EQ(chosen[1].expert, 1);  // of the same group, though the lowest of all
  config.router = Router::greedy;
  config.normalise = true;
  experts_choose(config, logits, chosen);
  EXPECT_EQ(chosen[1].expert, 2);
  EXPECT_NEAR(chosen[0].weight + chosen[1].weight, 2, 1e-6);
}

TEST(Experts, TiesGoToTheLowerNumber) {
  ExpertConfig config;
  config.count = 4;
  config.per_token = 2;
  const float logits[4] = {0, 1, 1, 1};
  std::vector<ExpertChoice> chosen(2);
  experts_choose(config, logits, chosen);
  EXPECT_EQ(chosen[0].expert, 1);
  EXPECT_EQ(chosen[1].expert, 2);
}

}  // namespace
}  // namespace lca::test
