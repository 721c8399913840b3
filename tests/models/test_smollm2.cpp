// The real model, SmolLM2-135M-Instruct as Q4_1 in GGUF, against gguf's own unpacking of it run by
// transformers in float32; and LCA in it, against a separate PyTorch implementation.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "formats/checkpoint.h"
#include "formats/safetensors.h"
#include "formats/settings_json.h"
#include "support/compare.h"
#include "support/golden_model.h"
#include "support/sanitized.h"
#include "support/test_data.h"

namespace lca::test {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(LCA_SOURCE_DIR) / "tests/golden/models/smollm2";

#define SKIP_WITHOUT_MODEL() \
  if (!smollm2_path()) GTEST_SKIP() << kNoTestData

// Perplexities of long texts take minutes there, and test nothing about memory.
#define SKIP_UNDER_SANITIZERS() \
  if (kSanitized) GTEST_SKIP() << "measures accuracy; smaller tests run the same code"

template <typename T>
std::vector<T> values_of(const Safetensors& file, const char* name) {
  const TensorInfo* tensor = file.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  std::vector<T> values(tensor->bytes.size() / sizeof(T));
  std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
  return values;
}

std::shared_ptr<const Model> smollm2(Precision precision) {
  ModelOptions options;
  options.path = *smollm2_path();
  options.precision = precision;
  return Model::load(options);
}

TEST(SmolLM2, GivesTheLogitsOfItsUnpackedWeights) {
  SKIP_WITHOUT_MODEL();
  const Safetensors golden = Safetensors::open(kFolder / "golden.safetensors");
  const auto tokens = values_of<std::int32_t>(golden, "tokens");
  const auto columns = values_of<std::int32_t>(golden, "columns");
  const auto expected = values_of<float>(golden, "logits");
  const auto best = values_of<std::int32_t>(golden, "argmax");
  const auto sums = values_of<float>(golden, "logsumexp");
  const auto model = smollm2(Precision::f32);
  EXPECT_EQ(model->info().parameters, 134515008);
  const auto logits = session_logits(model, tokens, {dense_settings()}, 0, std::ssize(tokens));
  const auto vocabulary = static_cast<std::size_t>(model->info().vocabulary);
  std::vector<float> picked;
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(row * vocabulary);
    const auto end = begin + static_cast<std::ptrdiff_t>(vocabulary);
    EXPECT_EQ(std::max_element(begin, end) - begin, best[row]) << row;
    double sum = 0;
    for (auto at = begin; at != end; ++at) sum += std::exp(*at - sums[row]);
    EXPECT_NEAR(std::log(sum), 0, 1e-3) << row;
    for (const std::int32_t column : columns) picked.push_back(begin[column]);
  }
  EXPECT_LE(logits_error(expected, picked), 1e-3);
}

/// Mean negative log-likelihood in nats of the first `length` tokens of the golden text.
double text_nll(const std::shared_ptr<const Model>& model, const Settings& settings,
                std::int64_t length) {
  const Safetensors file = Safetensors::open(kFolder / "tokens.safetensors");
  auto tokens = values_of<std::int32_t>(file, "tokens");
  tokens.resize(static_cast<std::size_t>(length));
  Context context;
  SessionOptions options;
  options.settings = {settings};
  Session session(model, context, options);
  const std::int64_t vocabulary = model->info().vocabulary;
  double total = 0;
  session.prefill(tokens, {}, [&](std::int64_t first, std::int64_t count, const float* rows) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (first + i + 1 >= length) continue;
      const float* row = rows + i * vocabulary;
      const double highest = *std::max_element(row, row + vocabulary);
      double sum = 0;
      for (std::int64_t c = 0; c < vocabulary; ++c) sum += std::exp(row[c] - highest);
      total += highest + std::log(sum) - row[tokens[static_cast<std::size_t>(first + i + 1)]];
    }
  });
  return total / static_cast<double>(length - 1);
}

TEST(SmolLM2, ReadsATextAsWellAsTheReferences) {
  SKIP_UNDER_SANITIZERS();
  SKIP_WITHOUT_MODEL();
  std::ifstream stream(kFolder / "perplexity.json");
  const auto golden = nlohmann::json::parse(stream);
  const std::int64_t longest = test_scale() < 1 ? 512 : 2048;
  const auto model = smollm2(Precision::f32);
  EXPECT_NEAR(text_nll(model, dense_settings(), longest),
              golden["dense"][std::to_string(longest)].get<double>(), 1e-4);
  for (const auto& [name, entry] : golden["lca"].items()) {
    const Settings settings =
        settings_from_json(entry["settings"].dump(), name, SettingsScope::layer).settings;
    // The default settings over all of it; a window of 256 condenses in a quarter of it as well.
    const std::int64_t length = name.starts_with("training-free") ? longest : 512;
    // Real text has near ties, where either representative is correct: this is their effect.
    EXPECT_NEAR(text_nll(model, settings, length), entry[std::to_string(length)].get<double>(),
                2e-3)
        << name;
  }
}

TEST(SmolLM2, FastPathReadsAsWellAsFloat32) {
  SKIP_UNDER_SANITIZERS();
  SKIP_WITHOUT_MODEL();
  const std::int64_t length = test_scale() < 1 ? 256 : 1024;
  for (const char* preset : {"training-free", "paper"}) {
    Settings settings = settings_preset(preset);
    settings.window = 128;
    const double exact = text_nll(smollm2(Precision::f32), settings, length);
    const double fast = text_nll(smollm2(Precision::bf16), settings, length);
    EXPECT_NEAR(std::exp(fast - exact), 1, 5e-3) << preset;
  }
}

/// The same for tokens that are taken one by one after a prompt, as in decoding.
double decoded_nll(const std::shared_ptr<const Model>& model, std::int64_t prompt,
                   std::int64_t length) {
  const Safetensors file = Safetensors::open(kFolder / "tokens.safetensors");
  const auto tokens = values_of<std::int32_t>(file, "tokens");
  Context context;
  SessionOptions options;
  options.settings = {settings_preset("training-free")};
  options.settings[0].window = 128;
  Session session(model, context, options);
  session.prefill(std::span(tokens).first(static_cast<std::size_t>(prompt)));
  double total = 0;
  for (std::int64_t at = prompt; at < length; ++at) {
    const std::span<const float> row = session.logits();
    const double highest = *std::ranges::max_element(row);
    double sum = 0;
    for (const float logit : row) sum += std::exp(logit - highest);
    const std::int32_t token = tokens[static_cast<std::size_t>(at)];
    total += highest + std::log(sum) - row[static_cast<std::size_t>(token)];
    session.decode(token);
  }
  return total / static_cast<double>(length - prompt);
}

TEST(SmolLM2, FastPathDecodesAsWellAsFloat32) {
  SKIP_UNDER_SANITIZERS();
  SKIP_WITHOUT_MODEL();
  const std::int64_t length = test_scale() < 1 ? 240 : 600;
  const double exact = decoded_nll(smollm2(Precision::f32), 200, length);
  const double fast = decoded_nll(smollm2(Precision::bf16), 200, length);
  EXPECT_NEAR(std::exp(fast - exact), 1, test_scale() < 1 ? 2e-2 : 5e-3);
  RecordProperty("change", std::to_string(std::exp(fast - exact) - 1));
}

TEST(SmolLM2, TokenizesItsTextAsTheReferenceDoes) {
  SKIP_WITHOUT_MODEL();
  const Tokenizer tokenizer = Checkpoint::open(*smollm2_path()).tokenizer();
  std::ifstream stream(kFolder / "text.txt", std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  const Safetensors file = Safetensors::open(kFolder / "tokens.safetensors");
  EXPECT_EQ(tokenizer.encode(text), values_of<std::int32_t>(file, "tokens"));
}

}  // namespace
}  // namespace lca::test
