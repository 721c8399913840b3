// Logits of tiny random checkpoints against transformers (and peft, and gguf's own unpacking).

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/golden_model.h"

namespace lca::test {
namespace {

namespace fs = std::filesystem;

// max|Δ| / max|logit|: float32 activations, and the fast path, which rounds every factor to bf16.
constexpr double kLogitToleranceF32 = 1e-3;
constexpr double kLogitToleranceBf16 = 2e-2;

std::vector<fs::path> golden_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("golden") && name.ends_with(".safetensors")) files.push_back(entry.path());
  }
  return files;
}

class Conformance : public ::testing::TestWithParam<std::string> {};

TEST_P(Conformance, MatchesTransformersInFloat32) {
  const GoldenModel golden(GetParam());
  const auto model = golden.load();
  for (const fs::path& file : golden_files(golden.golden())) {
    const GoldenLogits expected = golden_logits(file, model->info().layers);
    const std::vector<float> actual = session_logits(model, expected.tokens, expected.settings,
                                                     /*chunk=*/0, expected.prompt);
    const double error = logits_error(expected.logits, actual);
    EXPECT_LE(error, kLogitToleranceF32) << file.filename();
    RecordProperty("error", std::to_string(error));
  }
}

std::vector<std::string> conformance_cases() {
  std::vector<std::string> names;
  for (const std::string& name : golden_model_names()) {
    // The real model has a test of its own; adapters of stacked experts are refused.
    if (name != "smollm2" && name != "adapter_deepseek_v2_stacked") names.push_back(name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, Conformance, ::testing::ValuesIn(conformance_cases()),
                         [](const auto& one) { return one.param; });

class FastPath : public ::testing::TestWithParam<std::string> {};

// Weights scaled as trained models have them, and no router near a tie: the other checkpoints
// exaggerate on purpose, and with it the rounding.
TEST_P(FastPath, StaysCloseWhenProductsAreBf16) {
  const GoldenModel golden(GetParam());
  const auto model = golden.load(Precision::bf16);
  EXPECT_EQ(model->cache_dtype(), DType::bf16);
  const GoldenLogits expected =
      golden_logits(golden.golden() / "golden.safetensors", model->info().layers);
  for (const std::int64_t prompt : {expected.prompt, std::int64_t{0}}) {
    const std::vector<float> actual =
        session_logits(model, expected.tokens, expected.settings, /*chunk=*/0, prompt);
    const double error = logits_error(expected.logits, actual);
    EXPECT_LE(error, kLogitToleranceBf16) << prompt << " tokens at once";
    EXPECT_GT(error, 0) << "nothing was rounded";
  }
}

INSTANTIATE_TEST_SUITE_P(All, FastPath, ::testing::ValuesIn(golden_model_names("calm_")),
                         [](const auto& one) { return one.param; });

TEST(ConformanceCases, CoverEveryArchitectureAndFormat) {
  const std::vector<std::string> names = conformance_cases();
  EXPECT_GE(names.size(), 70U);
  for (const char* prefix : {"llama", "qwen2", "deepseek_v2", "minicpm3", "gguf_llama",
                             "gguf_qwen2", "gguf_deepseek2", "gguf_minicpm3", "adapter_"}) {
    EXPECT_FALSE(golden_model_names(prefix).empty()) << prefix;
  }
}

}  // namespace
}  // namespace lca::test
