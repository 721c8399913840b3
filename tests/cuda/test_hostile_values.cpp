// Values that are no ordinary numbers: infinities, negative zeros and NaN in keys, values and
// latents. A step condenses them as a prompt does, and nothing hides them.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "cuda/layer_path.h"

namespace lca::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Settings selecting() {
  Settings settings;
  settings.group = 4;
  settings.window = 6;
  settings.sink = 1;
  settings.summary_queries = 4;
  settings.semantic_pool = Pool::select;
  settings.positional_pool = Pool::select;
  return settings;
}

/// The representatives of a sequence whose first tokens are a prompt and the rest decoded.
HostGroups condensed(const Layer& layer, const Tokens& tokens, std::int64_t prompt,
                     const cuda::LayerOptions& options) {
  Path path;
  path.tokens = tokens;
  const AttentionShape& shape = layer.spec.shape;
  path.out.assign(static_cast<std::size_t>(tokens.count * shape.heads * shape.d_value), 0);
  path.lse.assign(static_cast<std::size_t>(tokens.count * shape.heads), 0);
  cuda::Layer gpu(layer.spec, layer.weights(), 1, tokens.count, options);
  const cuda::HostRun first = path.run(0, prompt);
  gpu.prefill({&first, 1});
  while (path.position < tokens.count) {
    const cuda::HostRun run = path.run(0, 1);
    gpu.decode({&run, 1});
  }
  return HostGroups(gpu.to_host(0));
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

const std::vector<AttentionShape>& gqa_shapes() {
  static const std::vector<AttentionShape> all = {AttentionShape::gqa(4, 2, 64, 64),
                                                  AttentionShape::gqa(3, 1, 128, 128),
                                                  AttentionShape::gqa(4, 2, 20, 12)};
  return all;
}

TEST(CudaHostileValues, SelectCopiesInfinitiesAndNegativeZeros) {
  LCA_NEEDS_GPU();
  std::uint64_t seed = 8500;
  for (const AttentionShape& shape : gqa_shapes()) {
    for (const bool portable : {false, true}) {
      Random random(++seed);
      const Layer layer = random_layer(spec_of(shape, selecting()), random);
      Tokens tokens = random_tokens(layer.spec, 40, random);
      // Of GQA's values, which no score reads: one infinite, one a negative zero, in every token.
      for (std::int64_t t = 0; t < tokens.count; ++t) {
        for (std::int64_t kv = 0; kv < shape.kv_heads; ++kv) {
          tokens.entry.set(t, kv, 3, t % 2 == 0 ? kInfinity : -kInfinity);
          tokens.entry.set(t, kv, 4, -0.0);
        }
      }
      tokens.split();
      const HostGroups groups = condensed(layer, tokens, 2, {.portable = portable});
      ASSERT_GT(groups.count, 5);
      for (std::int64_t i = 0; i < groups.count * shape.kv_heads; ++i) {
        const float* row = groups.semantic.data() + i * shape.d_value;
        EXPECT_TRUE(std::isinf(row[3])) << row[3];
        EXPECT_TRUE(row[4] == 0 && std::signbit(row[4])) << row[4];
        for (std::int64_t d = 0; d < shape.d_value; ++d) EXPECT_FALSE(std::isnan(row[d]));
      }
      const HostGroups at_once = condensed(layer, tokens, tokens.count, {.portable = portable});
      EXPECT_TRUE(same_bits(groups.semantic, at_once.semantic));
    }
  }
}

TEST(CudaHostileValues, ScoresThatAreNoNumbersSelectTheSameRowAsAPrompt) {
  LCA_NEEDS_GPU();
  std::uint64_t seed = 8600;
  for (const AttentionShape& shape :
       {AttentionShape::gqa(4, 2, 64, 64), AttentionShape::gqa(4, 2, 20, 12),
        AttentionShape::mla(3, 128, 64, 512, 128), AttentionShape::mla(3, 16, 8, 40, 24)}) {
    for (const bool portable : {false, true}) {
      Random random(++seed);
      Settings settings = selecting();
      settings.group = 8;
      const Layer layer = random_layer(spec_of(shape, settings), random);
      Tokens tokens = random_tokens(layer.spec, 60, random);
      const std::int64_t key = shape.form == Form::mla ? 0 : shape.d_value;  // a column of the key
      for (std::int64_t t = 0; t < tokens.count; ++t) {
        for (std::int64_t kv = 0; kv < shape.kv_heads; ++kv) {
          if (t % 8 == 3) tokens.entry.set(t, kv, key, std::nan(""));
          if (t % 8 == 5) tokens.entry.set(t, kv, key + 1, 3e38);  // overflows with its query
        }
      }
      tokens.split();
      const HostGroups steps = condensed(layer, tokens, 4, {.portable = portable});
      const HostGroups prompt = condensed(layer, tokens, tokens.count, {.portable = portable});
      ASSERT_EQ(steps.count, prompt.count);
      ASSERT_GT(steps.count, 3);
      EXPECT_TRUE(same_bits(steps.semantic, prompt.semantic)) << "seed " << seed;
      EXPECT_TRUE(same_bits(steps.positional, prompt.positional)) << "seed " << seed;
    }
  }
}

TEST(CudaHostileValues, QuantisedRepresentativesKeepNaNVisible) {
  LCA_NEEDS_GPU();
  std::uint64_t seed = 8700;
  for (const cuda::GroupStorage storage :
       {cuda::GroupStorage::bf16, cuda::GroupStorage::fp8, cuda::GroupStorage::int8}) {
    for (const AttentionShape& shape :
         {AttentionShape::gqa(4, 2, 64, 64), AttentionShape::gqa(4, 2, 20, 12),
          AttentionShape::mla(3, 64, 32, 256, 64)}) {
      for (const std::int64_t prompt : {std::int64_t{2}, std::int64_t{40}}) {
        Random random(++seed);
        Settings settings = selecting();
        settings.semantic_pool = settings.positional_pool = Pool::mean;
        const Layer layer = random_layer(spec_of(shape, settings), random);
        Tokens tokens = random_tokens(layer.spec, 40, random);
        // One value of one token of group 1: positions 5 … 8.
        tokens.entry.set(6, shape.kv_heads - 1, 9, std::nan(""));
        tokens.split();
        const HostGroups groups = condensed(layer, tokens, prompt, {.groups = storage});
        ASSERT_GT(groups.count, 3);
        const auto nans = [&](std::int64_t j) {
          std::int64_t count = 0;
          const std::int64_t values = shape.kv_heads * shape.d_semantic();
          for (std::int64_t i = 0; i < values; ++i) {
            count += std::isnan(groups.semantic[static_cast<std::size_t>(j * values + i)]);
          }
          return count;
        };
        EXPECT_GE(nans(1), 1) << "the NaN of group 1 is gone, seed " << seed;
        EXPECT_EQ(nans(0) + nans(2), 0) << "seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace lca::test
