#include "models/weight_shapes.h"

#include <gtest/gtest.h>

#include <lca/error.h>
#include <lca/shape.h>

#include "formats/checkpoint.h"
#include "formats/published.h"

namespace lca {
namespace {

TEST(PublishedModels, HaveTheAttentionOfTheirNamedShapes) {
  for (const NamedShape& shape : named_shapes()) {
    const ModelConfig config = published_config(shape.name);
    EXPECT_EQ(config.attention, shape.shape) << shape.name;
    EXPECT_EQ(config.layers, shape.layers) << shape.name;
    EXPECT_EQ(config.hidden, shape.hidden) << shape.name;
    EXPECT_NEAR(config.softmax_scale(), shape.scale, 1e-9) << shape.name;
  }
}

TEST(PublishedModels, AnUnknownNameIsAnErrorWithTheNamesThereAre) {
  try {
    published_config("gpt-5");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    EXPECT_NE(std::string(error.what()).find("deepseek-v2-lite"), std::string::npos);
  }
}

TEST(PublishedModels, ACheckpointOfOneHasNoTensorsAndNoTokenizer) {
  const Checkpoint checkpoint = Checkpoint::published("smollm2");
  EXPECT_FALSE(checkpoint.find("model.norm.weight").has_value());
  EXPECT_TRUE(checkpoint.tensors().empty());
  EXPECT_THROW(checkpoint.tokenizer(), Error);
  EXPECT_EQ(checkpoint.chat_template(), "");
}

TEST(WeightShapes, AddUpToThePublishedNumbersOfParameters) {
  const auto count = [](const char* name) {
    return weight_shapes(published_config(name)).parameters;
  };
  EXPECT_EQ(count("smollm2"), 134'515'008);
  EXPECT_EQ(count("qwen-7b"), 7'615'616'512);
  EXPECT_EQ(count("deepseek-v2-lite"), 15'706'484'224);
}

TEST(WeightShapes, ATiedHeadIsTheEmbeddingAndAnotherIsNot) {
  const DecoderWeights tied = weight_shapes(published_config("smollm2"));
  EXPECT_EQ(tied.head.weight.data, tied.embedding.data);
  const DecoderWeights apart = weight_shapes(published_config("qwen-7b"));
  EXPECT_NE(apart.head.weight.data, apart.embedding.data);
  EXPECT_NE(apart.layers[0].q.bias, nullptr);
  EXPECT_TRUE(apart.layers[0].kv_a.empty());
  EXPECT_FALSE(apart.layers[0].feed_forward.gate.empty());
}

}  // namespace
}  // namespace lca
