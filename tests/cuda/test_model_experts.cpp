// Mixtures of experts of more than tiny size, layer by layer on the GPU against the CPU, whose
// experts are forced; how often the GPU alone would have chosen others is counted.
#include <gtest/gtest.h>

#include <cstdio>
#include <vector>

#include "cuda/model_pair.h"
#include "cuda/random_checkpoint.h"

namespace lca::test {
namespace {

constexpr double kLargerTolerance = 1.5e-2;

/// Rows whose best experts are so close that rounding their normed activations to bf16 decides: on
/// the CPU 0.3 to 1.3 % of the rows of a layer.
constexpr double kElsewhere = 0.03;
/// From the same rounded rows the GPU and the CPU choose alike, but for sums in another order.
constexpr double kApart = 0.002;

class CudaLargerExperts : public ::testing::TestWithParam<RandomMoe> {};

TEST_P(CudaLargerExperts, AddWhatTheCpusAddAndChooseAlike) {
  LCA_NEEDS_GPU();
  const RandomCheckpoint checkpoint(GetParam());
  const PairModels models(ModelPlace(checkpoint.path()));
  ASSERT_EQ(models.gpu->info().layers, GetParam().layers);
  Settings condensed;
  condensed.group = 8;
  condensed.window = 64;
  condensed.sink = 4;
  condensed.summary_queries = 8;
  condensed.positional_pool = Pool::weighted;
  for (const auto& [what, settings] :
       {std::pair<const char*, Settings>{"dense", dense_settings()}, {"lca", condensed}}) {
    ModelPair pair(models, settings);
    Random random(901);
    const std::vector<std::int32_t> tokens = random_tokens(random, *models.cpu, 520);
    const std::span<const std::int32_t> all(tokens);
    StageErrors errors;
    // All kinds of kernels: a large chunk, one of tens of rows, a few rows, single tokens.
    std::size_t at = 0;
    for (const std::size_t count : {400, 90, 20, 7, 1, 1, 1}) {
      pair.step(all.subspan(at, count), std::ssize(tokens), errors);
      at += count;
    }
    const auto share = [&](std::int64_t rows) {
      return static_cast<double>(rows) / static_cast<double>(errors.rows_routed);
    };
    std::printf(
        "%-24s %-6s attention %.1e (float32 %.1e) feed-forward %.1e logits %.1e, other "
        "experts in %.2f %% of rows (%.2f %% from the same rounded rows)\n",
        GetParam().name, what, errors.attention, errors.attention_wide, errors.feed_forward,
        errors.logits, 100 * share(errors.rows_elsewhere), 100 * share(errors.rows_apart));
    EXPECT_LE(errors.attention, kLargerTolerance) << what;
    EXPECT_LE(errors.attention_wide, kLargerTolerance) << what;
    EXPECT_LE(errors.feed_forward, kLargerTolerance) << what;
    EXPECT_LE(errors.logits, kLargerTolerance) << what;
    EXPECT_LE(share(errors.rows_elsewhere), kElsewhere) << what;
    EXPECT_LE(share(errors.rows_apart), kApart) << what;
  }
}

RandomMoe larger_grouped() {
  RandomMoe shape;
  shape.name = "group-limited, 32 of 1024";
  shape.hidden = 1024;
  shape.heads = 8;
  shape.query_latent = 384;
  shape.experts = 32;
  shape.per_token = 4;
  shape.width = 256;
  shape.groups = 8;
  shape.top_groups = 3;
  return shape;
}

RandomMoe larger_greedy() {
  RandomMoe shape;
  shape.name = "greedy, 64 of 512";
  return shape;
}

INSTANTIATE_TEST_SUITE_P(All, CudaLargerExperts,
                         ::testing::Values(larger_greedy(), larger_grouped()), [](const auto& one) {
                           return one.param.groups > 0 ? "Grouped" : "Greedy";
                         });

}  // namespace
}  // namespace lca::test
