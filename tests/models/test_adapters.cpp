// Adapters beside packed weights; what they take, and which are refused. That they compute what
// PEFT does is in test_conformance.cpp.

#include <lca/session.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "formats/byte_files.h"
#include "models/model_state.h"
#include "models/weight_packing.h"
#include "support/golden_model.h"

namespace lca::test {
namespace {

namespace fs = std::filesystem;

std::shared_ptr<const Model> adapted(const GoldenModel& golden, Precision precision,
                                     WeightPacking packing = WeightPacking::keep,
                                     std::optional<std::string> adapter = std::nullopt) {
  ModelOptions options;
  options.path = golden.path();
  options.adapter = adapter.value_or(golden.adapter());
  options.precision = precision;
  options.weights = packing;
  options.device = "cpu";
  return Model::load(options);
}

/// Logits of 30 tokens, the last of them decoded one by one.
std::vector<float> adapted_logits(const std::shared_ptr<const Model>& model) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < 30; ++i) tokens.push_back((i * 37 + 5) % 90);
  return session_logits(model, tokens, {dense_settings()}, 0, 20);
}

TEST(Adapters, BesidePackedWeightsRoundAsProductsDo) {
  for (const char* name : {"calm_adapter_llama", "calm_adapter_qwen2", "calm_adapter_minicpm3"}) {
    const GoldenModel golden(name);
    for (const WeightPacking packing : {WeightPacking::q8_0, WeightPacking::q4_0}) {
      const auto exact = adapted_logits(adapted(golden, Precision::f32, packing));
      const auto rounded = adapted_logits(adapted(golden, Precision::bf16, packing));
      const double error = logits_error(exact, rounded);
      EXPECT_LE(error, 2e-2) << name;
      EXPECT_GT(error, 0) << name << ": nothing was rounded";
      const auto bare = adapted_logits(adapted(golden, Precision::f32, packing, ""));
      EXPECT_GT(logits_error(exact, bare), 2 * error) << name << ": the adapter changed nothing";
    }
  }
}

TEST(Adapters, TheirBytesAreCountedBeforeLoadingAndAfter) {
  for (const char* name :
       {"adapter_llama", "adapter_llama_patterns", "adapter_gguf_q4_1", "adapter_deepseek_v2",
        "adapter_gguf_minicpm3", "calm_adapter_qwen2", "adapter_deepseek_v2_experts"}) {
    const GoldenModel golden(name);
    for (const Precision precision : {Precision::f32, Precision::bf16}) {
      const auto model = adapted(golden, precision);
      const ModelInfo& info = model->info();
      const ProductType type = model->state().product;
      EXPECT_EQ(info.adapter_bytes, adapter_bytes(*model->state().adapter, type)) << name;
      EXPECT_GT(info.adapter_bytes, 0U);
      EXPECT_EQ(model->memory().weights, info.weight_bytes + info.adapter_bytes);
      EXPECT_EQ(fs::path(info.adapter), fs::canonical(golden.adapter()));
    }
  }
  const GoldenModel plain("llama");
  EXPECT_EQ(adapted(plain, Precision::f32)->info().adapter_bytes, 0U);
  EXPECT_EQ(adapted(plain, Precision::f32)->info().adapter, "");
}

TEST(Adapters, OfStackedExpertsAreRefusedInOneLine) {
  const GoldenModel golden("adapter_deepseek_v2_stacked");
  expect_error([&] { adapted(golden, Precision::f32); }, {"target_parameters"});
}

/// An adapter of rank 1 on the module alone.
void adapter_write(const fs::path& folder, const std::string& module, std::int64_t out,
                   std::int64_t in, const std::string& extra = "") {
  const std::string stem = "base_model.model." + module;
  const std::string weights = FileBuilder()
                                  .add(stem + ".lora_A.weight", "F32", {1, in})
                                  .add(stem + ".lora_B.weight", "F32", {out, 1})
                                  .bytes();
  write_file(folder / "adapter_model.safetensors", weights);
  write_file(folder / "adapter_config.json",
             R"({"peft_type":"LORA","r":1,"lora_alpha":1,"bias":"none")" + extra + "}");
}

TEST(Adapters, ThatChangeWhatHasNoPlaceAreRefusedInOneLine) {
  const GoldenModel golden("gguf_deepseek2");
  const ScratchFolder folder;
  const auto refused = [&](const std::string& module, std::int64_t out, std::int64_t in,
                           const std::vector<std::string>& parts, const std::string& extra = "") {
    adapter_write(folder.path(), module, out, in, extra);
    expect_error([&] { adapted(golden, Precision::f32, WeightPacking::keep, folder.path()); },
                 parts);
  };
  const ModelConfig config = adapted(golden, Precision::f32)->state().config();
  const std::int64_t hidden = config.hidden;
  refused("model.layers.1.mlp.gate", config.experts.count, hidden, {"mlp.gate"});
  refused("model.layers.0.input_layernorm", hidden, 1, {"input_layernorm"});
  refused("model.layers.99.self_attn.o_proj", hidden, hidden, {"layers.99"});
  refused("model.layers.0.self_attn.o_proj", hidden + 1, hidden, {"o_proj", "another model"});
  refused("model.layers.0.self_attn.o_proj", hidden, hidden, {"bias"}, R"(,"bias":"lora_only")");
  refused("model.layers.0.self_attn.o_proj", hidden, hidden, {"use_dora"}, R"(,"use_dora":true)");
}

TEST(ShippedAdapter, IsSmallAndCarriesItsSettings) {
  const fs::path folder = fs::path(LCA_SOURCE_DIR) / "models" / "smollm2-lca";
  if (!fs::exists(folder)) GTEST_SKIP() << "no adapter is in models/ yet";
  constexpr std::int64_t kLayers = 30;
  const Adapter adapter = Adapter::open(folder, kLayers);
  EXPECT_EQ(adapter.base_model(), "HuggingFaceTB/SmolLM2-135M-Instruct");
  ASSERT_EQ(adapter.settings().size(), 30U);
  for (const Settings& settings : adapter.settings()) {
    EXPECT_EQ(settings.method, MethodKind::lca);
  }
  EXPECT_TRUE(fs::exists(folder / "README.md")) << "its card";
  EXPECT_LE(fs::file_size(folder / "adapter_model.safetensors"), 12U << 20);
}

}  // namespace
}  // namespace lca::test
