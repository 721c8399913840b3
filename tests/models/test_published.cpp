// Published golden values of real checkpoints. The tests run where the checkpoints are available:
// LCA_CHECKPOINTS names a folder that holds DeepSeek-V2-Lite and MiniCPM3-4B.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <vector>

#include "support/golden_model.h"

namespace lca::test {
namespace {

namespace fs = std::filesystem;

const std::vector<std::int32_t> kTokens{1, 306, 4658, 278, 6593, 310, 2834, 338};

/// Logits of the tokens above, dense, float32.
std::vector<float> published_logits(const fs::path& path, std::int64_t& vocabulary) {
  ModelOptions options;
  options.path = path;
  options.precision = Precision::f32;
  const auto model = Model::load(options);
  vocabulary = model->info().vocabulary;
  return session_logits(model, kTokens, {dense_settings()}, 0, std::ssize(kTokens));
}

/// The checkpoint's folder below LCA_CHECKPOINTS; empty where it is not there.
fs::path checkpoint_of(const char* name) {
  const char* root = std::getenv("LCA_CHECKPOINTS");
  if (root == nullptr) return {};
  const fs::path path = fs::path(root) / name;
  return fs::exists(path) ? path : fs::path();
}

TEST(Published, DeepSeekV2LiteGivesItsMeanLogits) {
  const fs::path path = checkpoint_of("DeepSeek-V2-Lite");
  if (path.empty()) GTEST_SKIP() << "LCA_CHECKPOINTS has no DeepSeek-V2-Lite";
  std::int64_t vocabulary = 0;
  const std::vector<float> logits = published_logits(path, vocabulary);
  const double means[] = {-6.1771, -5.0335, -3.9930, -2.5152, -2.1288, -2.4581, -3.7718, -3.6901};
  for (std::size_t row = 0; row < std::size(means); ++row) {
    const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(row) * vocabulary;
    const double mean =
        std::accumulate(begin, begin + vocabulary, 0.0) / static_cast<double>(vocabulary);
    EXPECT_NEAR(mean, means[row], 1e-2 * std::abs(means[row])) << row;
  }
  // Published from a bf16 run: each value has its rounding error.
  const double first[] = {-1.2188, -0.7422, -0.0201, -2.8281, 1.2500,  -2.6094, -0.7266, -2.9219,
                          -2.5313, -0.5469, -0.3223, -1.8281, -2.1094, -0.8125, -3.7813};
  for (std::size_t i = 0; i < std::size(first); ++i) EXPECT_NEAR(logits[i], first[i], 0.15) << i;
}

TEST(Published, MiniCpm3GivesItsLastLogits) {
  const fs::path path = checkpoint_of("MiniCPM3-4B");
  if (path.empty()) GTEST_SKIP() << "LCA_CHECKPOINTS has no MiniCPM3-4B";
  std::int64_t vocabulary = 0;
  const std::vector<float> logits = published_logits(path, vocabulary);
  // Two machines published values up to 0.1 apart: these are their means.
  const double last[] = {0.7500, 3.6484, -0.1478, -0.8496, -0.8496};
  const std::size_t row = (kTokens.size() - 1) * static_cast<std::size_t>(vocabulary);
  for (std::size_t i = 0; i < std::size(last); ++i)
    EXPECT_NEAR(logits[row + i], last[i], 0.15) << i;
}

}  // namespace
}  // namespace lca::test
