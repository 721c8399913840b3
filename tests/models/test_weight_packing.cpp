// Weights packed while they are loaded: the same as a file that was packed before, and close to the
// unpacked model.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lca/error.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "models/model_state.h"
#include "models/weight_packing.h"
#include "support/golden_model.h"

namespace lca::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::shared_ptr<const Model> load(const std::string& name, WeightPacking packing) {
  const GoldenModel golden(name);
  ModelOptions options;
  options.path = golden.path();
  options.adapter = golden.adapter();
  options.precision = Precision::f32;
  options.weights = packing;
  return Model::load(options);
}

std::vector<float> logits(const std::shared_ptr<const Model>& model) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < 40; ++i) tokens.push_back((i * 37 + 5) % 90);
  return session_logits(model, tokens, {dense_settings()}, 0, 40);
}

TEST(WeightPacking, EqualsAFileThatWasPackedBefore) {
  EXPECT_LT(logits_error(logits(load("gguf_llama_q8_0", WeightPacking::keep)),
                         logits(load("llama", WeightPacking::q8_0))),
            1e-5);
  EXPECT_LT(logits_error(logits(load("gguf_llama_q4_0", WeightPacking::keep)),
                         logits(load("llama", WeightPacking::q4_0))),
            1e-5);
}

std::ptrdiff_t threads_running() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

TEST(LoadingThreads, AreAsManyAsAskedForAndDoNotChangeTheModel) {
  const GoldenModel golden("llama");
  std::vector<std::vector<float>> found;
  for (const int threads : {1, 4}) {
    ModelOptions options;
    options.path = golden.path();
    options.weights = WeightPacking::q4_0;
    options.threads = threads;
    const std::ptrdiff_t before = threads_running();
    std::ptrdiff_t most = 0;
    options.progress = [&](double) { most = std::max(most, threads_running() - before); };
    found.push_back(logits(Model::load(options)));
    EXPECT_EQ(most, threads - 1);
  }
  EXPECT_EQ(found[0], found[1]);

  ModelOptions negative;
  negative.path = golden.path();
  negative.threads = -1;
  EXPECT_THROW(Model::load(negative), Error);
}

TEST(WeightPacking, StaysCloseToTheUnpackedModel) {
  for (const char* name : {"calm_llama", "calm_qwen2", "calm_deepseek_v2", "calm_minicpm3"}) {
    const std::vector<float> plain = logits(load(name, WeightPacking::keep));
    EXPECT_LT(logits_error(plain, logits(load(name, WeightPacking::q8_0))), 0.02) << name;
    EXPECT_LT(logits_error(plain, logits(load(name, WeightPacking::q4_0))), 0.5) << name;
  }
}

TEST(WeightPacking, EveryPlainTypeAndArchitectureIsPacked) {
  // These models have peaked distributions, so that small changes of weights are visible.
  for (const char* name :
       {"llama", "llama_bf16", "llama_f16", "qwen2", "deepseek_v2", "deepseek_v2_bf16", "minicpm3",
        "gguf_llama_f16", "gguf_deepseek2", "adapter_llama", "adapter_deepseek_v2"}) {
    const std::vector<float> plain = logits(load(name, WeightPacking::keep));
    const double error = logits_error(plain, logits(load(name, WeightPacking::q8_0)));
    EXPECT_LT(error, 0.3) << name;
    EXPECT_GT(error, 0) << name << ": nothing was packed";
  }
}

TEST(WeightPacking, TheSizeIsKnownBeforeLoadingAndRightAfter) {
  for (const char* name : {"llama", "deepseek_v2", "minicpm3", "gguf_deepseek2"}) {
    const auto plain = load(name, WeightPacking::keep);
    for (const WeightPacking packing : {WeightPacking::q8_0, WeightPacking::q4_0}) {
      const auto packed = load(name, packing);
      const Checkpoint& checkpoint = packed->state().checkpoint;
      EXPECT_EQ(packed->info().weight_bytes, weight_bytes(checkpoint, packing)) << name;
      EXPECT_LT(packed->info().weight_bytes, plain->info().weight_bytes) << name;
      EXPECT_EQ(packed->info().parameters, plain->info().parameters) << name;
      EXPECT_EQ(packed->info().weights, packing);
    }
  }
}

TEST(WeightPacking, WhatIsNotMultipliedByRowsStaysAsItIs) {
  const auto model = load("deepseek_v2", WeightPacking::q8_0);
  const DecoderWeights& weights = model->state().weights;
  EXPECT_EQ(weights.embedding.type, PackedType::q8_0);
  EXPECT_EQ(weights.head.weight.type, PackedType::q8_0);
  bool experts = false;
  for (const DecoderLayer& layer : weights.layers) {
    EXPECT_EQ(layer.o.weight.type, layer.o.in() % 32 == 0 ? PackedType::q8_0 : PackedType::f32);
    if (layer.router.empty()) continue;
    experts = true;
    EXPECT_EQ(layer.router.weight.type, PackedType::f32);
    for (const FeedForwardWeights& expert : layer.experts) {
      EXPECT_EQ(expert.gate.weight.type,
                expert.gate.in() % 32 == 0 ? PackedType::q8_0 : PackedType::f32);
    }
  }
  EXPECT_TRUE(experts);
}

TEST(WeightPacking, TheBytesCountedAreTheBytesBound) {
  const auto model = load("deepseek_v2", WeightPacking::q4_0);
  const DecoderWeights& weights = model->state().weights;
  std::size_t packed = weights.embedding.bytes();
  const auto add = [&](const Linear& layer) {
    if (!layer.empty() && layer.weight.type == PackedType::q4_0) packed += layer.weight.bytes();
  };
  const auto add_feed_forward = [&](const FeedForwardWeights& part) {
    add(part.gate);
    add(part.up);
    add(part.down);
  };
  if (weights.head.weight.data != weights.embedding.data) add(weights.head);
  for (const DecoderLayer& layer : weights.layers) {
    for (const Linear* part :
         {&layer.q, &layer.q_a, &layer.q_b, &layer.k, &layer.v, &layer.kv_a, &layer.o}) {
      add(*part);
    }
    add_feed_forward(layer.feed_forward);
    for (const FeedForwardWeights& expert : layer.experts) add_feed_forward(expert);
  }
  const std::size_t plain = load("deepseek_v2", WeightPacking::keep)->info().weight_bytes;
  const std::size_t values = packed / 18 * 32;  // a block of Q4_0 is 18 bytes
  EXPECT_EQ(model->info().weight_bytes, plain - values * sizeof(float) + packed);
}

TEST(WeightPacking, WhatIsPackedAlreadyIsNotPackedAgain) {
  for (const char* name : {"gguf_llama_q8_0", "gguf_llama_q4_1", "gguf_llama_k"}) {
    try {
      load(name, WeightPacking::q4_0);
      ADD_FAILURE() << name << " loads";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("nothing to pack"), HasSubstr("q4_0")));
    }
  }
}

TEST(WeightPacking, ProgressGrowsToOne) {
  const GoldenModel golden("llama");
  ModelOptions options;
  options.path = golden.path();
  options.weights = WeightPacking::q8_0;
  std::vector<double> told;
  options.progress = [&](double share) { told.push_back(share); };
  Model::load(options);
  ASSERT_GT(told.size(), 3u);
  for (const double share : told) EXPECT_LE(share, 1.0);
  EXPECT_GT(told.back(), 0.99);
}

}  // namespace
}  // namespace lca::test
