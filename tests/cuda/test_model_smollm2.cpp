// The real model, SmolLM2-135M-Instruct, on the GPU against the CPU: perplexity, greedy text.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "cuda/model_pair.h"
#include "cuda/perplexity.h"
#include "formats/byte_files.h"
#include "formats/safetensors.h"
#include "support/test_data.h"

namespace lca::test {
namespace {

namespace fs = std::filesystem;

#define SKIP_WITHOUT_SMOLLM2() \
  if (!smollm2_path()) GTEST_SKIP() << kNoTestData

std::shared_ptr<const Model> smollm2_on(const std::string& device, Precision precision,
                                        const std::string& adapter = "",
                                        GroupStorage groups = GroupStorage::bf16) {
  return load_on(ModelPlace(*smollm2_path(), adapter), device, precision, groups);
}

std::vector<std::int32_t> text_tokens() {
  const Safetensors file = Safetensors::open(fs::path(LCA_SOURCE_DIR) /
                                             "tests/golden/models/smollm2/tokens.safetensors");
  const TensorInfo* const tensor = file.find("tokens");
  std::vector<std::int32_t> tokens(tensor->bytes.size() / sizeof(std::int32_t));
  std::memcpy(tokens.data(), tensor->bytes.data(), tensor->bytes.size());
  return tokens;
}

std::vector<std::pair<const char*, Settings>> smollm2_settings() {
  Settings free = settings_preset("training-free");
  free.window = 128;
  Settings paper = settings_preset("paper");
  paper.window = 128;
  Settings entry = settings_preset("training");
  entry.window = 256;
  entry.sink = 4;
  entry.positions = Positions::entry;
  return {{"dense", dense_settings()},
          {"training-free, window 128", free},
          {"paper, window 128", paper},
          {"entry positions, window 256", entry}};
}

/// A random LoRA adapter of three projections, small enough that the model still reads.
void adapter_write(const fs::path& folder) {
  constexpr std::int64_t kRank = 8, kHidden = 576, kLayers = 30;
  struct Module {
    const char* name;
    std::int64_t out, in;
  };
  const Module modules[] = {{"self_attn.q_proj", kHidden, kHidden},
                            {"self_attn.v_proj", 192, kHidden},
                            {"mlp.down_proj", kHidden, 1536}};
  Random random(77);
  std::string header = "{", data;
  const auto add = [&](const std::string& name, std::int64_t rows, std::int64_t columns,
                       double size) {
    if (header.size() > 1) header += ",";
    const std::size_t begin = data.size();
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      const auto value = static_cast<float>(size * random.normal());
      data.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    header += fmt::format(R"("{}":{{"dtype":"F32","shape":[{},{}],"data_offsets":[{},{}]}})", name,
                          rows, columns, begin, data.size());
  };
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    for (const Module& module : modules) {
      const std::string name =
          fmt::format("base_model.model.model.layers.{}.{}", layer, module.name);
      add(name + ".lora_A.weight", kRank, module.in, 1 / std::sqrt(double(module.in)));
      add(name + ".lora_B.weight", module.out, kRank, 0.02);
    }
  }
  write_file(folder / "adapter_model.safetensors", safetensors_bytes(header + "}", data));
  write_file(folder / "adapter_config.json",
             R"({"peft_type":"LORA","r":8,"lora_alpha":16,"target_modules":["q_proj","v_proj",)"
             R"("down_proj"]})");
}

void expect_reads_alike(const std::string& adapter) {
  const auto cpu = smollm2_on("cpu", Precision::f32, adapter);
  const auto gpu = smollm2_on("cuda", Precision::bf16, adapter);
  const std::vector<std::int32_t> tokens = text_tokens();
  const auto text_nll = [&](const auto& model, const Settings& settings, std::size_t prompt,
                            std::size_t length, std::int64_t chunk) {
    return tokens_nll(model, std::span(tokens).first(length), settings, prompt, chunk);
  };
  for (const auto& [name, settings] : smollm2_settings()) {
    constexpr std::size_t kPrompt = 1000, kDecoded = 200;
    const double exact = text_nll(cpu, settings, kPrompt, kPrompt + 1, 0);
    const double whole = text_nll(gpu, settings, kPrompt, kPrompt + 1, 0);
    const double chunks = text_nll(gpu, settings, kPrompt, kPrompt + 1, 333);
    // In summary mode `prompt` (preset paper) where the prompt ends makes a difference.
    const double exact_decoded = text_nll(cpu, settings, kPrompt - kDecoded, kPrompt + 1, 0);
    const double decoded = text_nll(gpu, settings, kPrompt - kDecoded, kPrompt + 1, 512);
    std::printf(
        "%-28s perplexity %.4f on the CPU; GPU %+.3f %% at once, %+.3f %% in chunks, "
        "%+.3f %% decoded\n",
        name, std::exp(exact), 100 * (std::exp(whole - exact) - 1),
        100 * (std::exp(chunks - exact) - 1), 100 * (std::exp(decoded - exact_decoded) - 1));
    EXPECT_NEAR(std::exp(whole - exact), 1, 3e-3) << name;
    EXPECT_NEAR(std::exp(chunks - exact), 1, 3e-3) << name;
    EXPECT_NEAR(std::exp(decoded - exact_decoded), 1, 3e-3) << name;
  }
}

TEST(CudaSmolLM2, ReadsATextAsWellAsTheCpu) {
  LCA_NEEDS_GPU();
  SKIP_WITHOUT_SMOLLM2();
  expect_reads_alike("");
}

TEST(CudaSmolLM2, ReadsATextAsWellAsTheCpuWithAnAdapter) {
  LCA_NEEDS_GPU();
  SKIP_WITHOUT_SMOLLM2();
  const ScratchFolder folder;
  adapter_write(folder.path());
  expect_reads_alike(folder.path());
}

TEST(CudaSmolLM2, ReadsATextAsWellWithRepresentativesOf8Bits) {
  LCA_NEEDS_GPU();
  SKIP_WITHOUT_SMOLLM2();
  const auto wide = smollm2_on("cuda", Precision::bf16);
  const auto narrow = smollm2_on("cuda", Precision::bf16, "", GroupStorage::fp8);
  const std::vector<std::int32_t> tokens = text_tokens();
  for (const auto& [name, settings] : smollm2_settings()) {
    if (settings.method == MethodKind::dense) continue;  // no representatives
    const double change = nll_change(wide, narrow, std::span(tokens).first(1000), settings);
    std::printf("%-28s perplexity with fp8 representatives %+.3f %%\n", name, 100 * change);
    EXPECT_NEAR(change, 0, kQuantisedChange) << name;
    EXPECT_NE(change, 0) << name << ": nothing was quantised";
  }
}

std::int32_t likeliest(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
}

TEST(CudaSmolLM2, GreedyTextAgreesUntilANearTie) {
  LCA_NEEDS_GPU();
  SKIP_WITHOUT_SMOLLM2();
  const auto cpu = smollm2_on("cpu", Precision::f32);
  const auto gpu = smollm2_on("cuda", Precision::bf16);
  const std::vector<std::int32_t> tokens = text_tokens();
  Context context;
  for (const auto& [name, settings] : smollm2_settings()) {
    Session first(cpu, context, {.settings = {settings}}),
        second(gpu, context, {.settings = {settings}});
    for (Session* session : {&first, &second}) session->prefill(std::span(tokens).first(300));
    int same = 0;
    for (; same < 200; ++same) {
      const std::int32_t a = likeliest(first.logits()), b = likeliest(second.logits());
      if (a != b) {
        const auto gap = [&](const Session& of) {
          return std::abs(of.logits()[static_cast<std::size_t>(a)] -
                          of.logits()[static_cast<std::size_t>(b)]);
        };
        EXPECT_LT(gap(first), 0.25) << name;
        EXPECT_LT(gap(second), 0.25) << name;
        break;
      }
      first.decode(a);
      second.decode(b);
    }
    std::printf("%-28s %d of 200 tokens alike\n", name, same);
  }
}

}  // namespace
}  // namespace lca::test
