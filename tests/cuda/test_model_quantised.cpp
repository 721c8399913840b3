// Representatives of 8 bits in whole models: texts are read as well as with those of bf16. The real
// model has its own test (test_model_smollm2.cpp).
#include <gtest/gtest.h>

#include <cstdio>
#include <vector>

#include "cuda/perplexity.h"
#include "cuda/random_checkpoint.h"
#include "cuda/rounded_model.h"
#include "cuda/support.h"

namespace lca::test {
namespace {

/// The model reads what it wrote itself: random weights expect no other text.
void expect_reads_quantised(const ModelPlace& place, const char* name, std::size_t length) {
  const auto wide = load_on(place, "cuda");
  Settings settings;
  settings.group = 8;
  settings.window = 32;
  settings.sink = 4;
  settings.summary_queries = 8;
  Random random(61);
  const std::vector<std::int32_t> tokens = text_drawn(wide, settings, length, random);
  for (const auto& [storage, kind] :
       {std::pair{GroupStorage::fp8, "fp8"}, std::pair{GroupStorage::int8, "int8"}}) {
    const auto narrow = load_on(place, "cuda", Precision::bf16, storage);
    const double change = nll_change(wide, narrow, tokens, settings);
    std::printf("%-24s perplexity %.2f, with representatives of %s %+.3f %%\n", name,
                std::exp(tokens_nll(wide, tokens, settings, length / 2, 128)), kind, 100 * change);
    EXPECT_NEAR(change, 0, kQuantisedChange) << name << " " << kind;
    EXPECT_NE(change, 0) << "nothing was quantised";
  }
}

TEST(CudaQuantisedModels, ReadTheirOwnTextAsWell) {
  LCA_NEEDS_GPU();
  // Not calm_minicpm3, which is certain of one token whatever it has read.
  for (const char* name : {"calm_llama", "calm_qwen2", "calm_deepseek_v2"}) {
    expect_reads_quantised(GoldenModel(name), name, 400);
  }
}

TEST(CudaQuantisedModels, OfLargerMlaReadTheirOwnTextAsWell) {
  LCA_NEEDS_GPU();
  RandomMoe shape;
  shape.head_size = 3;  // a text that can be foreseen
  shape.experts = 16;
  const RandomCheckpoint checkpoint(shape);
  expect_reads_quantised(ModelPlace(checkpoint.path()), "MLA of 512", 800);
}

}  // namespace
}  // namespace lca::test
