// What plans say of a GPU's memory, against what is allocated; and what happens where there is too
// little of it.

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "core/cuda/device_name.h"
#include "cuda/model_pair.h"
#include "cuda/resident_specs.h"
#include "formats/published.h"
#include "models/cuda/cuda_memory.h"
#include "models/weight_shapes.h"

namespace lca::test {
namespace {

constexpr double kMiB = 1024.0 * 1024;

Settings plan_dense() {
  Settings settings;
  settings.method = MethodKind::dense;
  return settings;
}

Settings plan_waiting() { return settings_preset("paper"); }

std::vector<LayerSpec> published_layers(const ModelConfig& config, const Settings& settings) {
  return std::vector<LayerSpec>(static_cast<std::size_t>(config.layers),
                                spec_of(config.attention, settings));
}

std::vector<std::int32_t> plan_tokens(std::int64_t count, std::int64_t vocabulary) {
  Random random(77);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (std::int32_t& token : tokens) {
    token = static_cast<std::int32_t>(random.integer(0, vocabulary - 1));
  }
  return tokens;
}

TEST(CudaMemoryPlan, WeightsAreTwoBytesAParameterAndTheTurnedProjections) {
  for (const char* name : {"deepseek-v2-lite", "minicpm3", "qwen-7b", "smollm2"}) {
    const ModelConfig config = published_config(name);
    const std::vector<LayerSpec> layers = published_layers(config, Settings{});
    const CudaMemory memory = CudaPlan(config).memory({.layers = layers, .length = 1024});
    const AttentionShape& shape = config.attention;
    const std::int64_t turned =
        shape.form == Form::mla ? config.layers * shape.heads * shape.d_nope * shape.d_latent : 0;
    const double expected = 2.0 * static_cast<double>(weight_shapes(config).parameters + turned);
    // Norms, biases and routers are float32, and pieces begin at multiples of 256 bytes.
    EXPECT_GE(static_cast<double>(memory.weights), expected) << name;
    EXPECT_LE(static_cast<double>(memory.weights), 1.002 * expected) << name;
  }
}

TEST(CudaMemoryPlan, CachesComeInWholeGranulesAndGrowWithEverything) {
  const ModelConfig config = published_config("deepseek-v2-lite");
  const CudaPlan plan(config);
  const std::vector<LayerSpec> lca = published_layers(config, settings_preset("training"));
  const std::vector<LayerSpec> dense = published_layers(config, plan_dense());
  const auto caches = [&](const std::vector<LayerSpec>& layers, std::int64_t length,
                          std::int64_t count, GroupStorage groups = GroupStorage::bf16) {
    return plan.memory({.layers = layers, .groups = groups, .length = length, .count = count})
        .caches;
  };
  // The spec's 0.265 GiB of entries at 128K, queries and one spare window beside them.
  const double one = static_cast<double>(caches(lca, 131072, 1)) / kMiB;
  EXPECT_GT(one, 0.265 * 1024);
  EXPECT_LT(one, 0.265 * 1024 + 80);
  const double many = static_cast<double>(caches(lca, 131072, 101) - caches(lca, 131072, 1)) / kMiB;
  EXPECT_NEAR(many / 100, 0.27 * 1024, 0.01 * 1024);
  EXPECT_LT(caches(lca, 131072, 8, GroupStorage::fp8), caches(lca, 131072, 8));
  // Two arrays of 27 layers, each at the beginning of a granule of its own.
  EXPECT_GE(caches(dense, 1, 1), std::size_t{54} * 2 << 20);
  EXPECT_NEAR(static_cast<double>(caches(dense, 131072, 1)) / kMiB, 3.80 * 1024, 130);
  std::size_t last = 0;
  for (std::int64_t length = 1; length < (1 << 20); length = length * 3 / 2 + 1) {
    const std::size_t now = caches(lca, length, 3);
    EXPECT_GE(now, last) << length;
    last = now;
  }
}

TEST(CudaMemoryPlan, PromptModeHoldsTheWholePromptUntilItsEnd) {
  const ModelConfig config = published_config("deepseek-v2-lite");
  const CudaPlan plan(config);
  const std::vector<LayerSpec> layers = published_layers(config, plan_waiting());
  constexpr std::int64_t kLong = 1 << 20;
  const CudaMemory memory = plan.memory({.layers = layers, .length = kLong});
  const std::size_t hidden = std::size_t{kLong} * 2048 * 4, entries = std::size_t{kLong} * 576 * 2;
  EXPECT_GT(memory.prompt, hidden + entries);
  EXPECT_LE(memory.kept, memory.prompt - hidden - entries);
}

TEST(CudaMemoryPlan, AStoreBacksWhatThePlanCounts) {
  LCA_NEEDS_GPU();
  const cuda::Stream stream(gpu());
  const cuda::StoreLimits limits{.sequences = 64, .longest = 1 << 20};
  for (const CachesShape& shape : caches_shapes()) {
    for (const cuda::GroupType type : {cuda::GroupType::bf16, cuda::GroupType::fp8}) {
      std::vector<LayerSpec> specs = mixed_specs(shape.shape);
      for (int i = 0; i < 7; ++i) specs.push_back(spec_of(shape.shape, Settings{}));
      for (const auto& [count, length] : {std::pair{1, 1}, {1, 700}, {3, 5000}, {5, 70001}}) {
        auto store = std::make_shared<cuda::CacheStore>(gpu(), specs, type, limits, stream);
        std::vector<std::unique_ptr<cuda::CacheSequence>> open;
        for (int i = 0; i < count; ++i) {
          open.push_back(std::make_unique<cuda::CacheSequence>(store));
          open.back()->replace(length, 0);
        }
        const cuda::StoreBytes backed = store->backed();
        const cuda::StoreBytes planned =
            cuda::store_backed(specs, type, limits, {.sequences = count, .length = length});
        const std::string which = fmt::format("{}, {} of {} tokens", shape.name, count, length);
        EXPECT_EQ(backed.groups, planned.groups) << which;
        EXPECT_EQ(backed.exact, planned.exact) << which;
        EXPECT_EQ(backed.queries, planned.queries) << which;
        EXPECT_EQ(backed.tables, planned.tables) << which;
      }
    }
  }
}

TEST(CudaMemoryPlan, BlocksTakeWhatTheySaidWasMissing) {
  LCA_NEEDS_GPU();
  const cuda::DeviceScope scope(gpu());
  const AttentionShape shape = AttentionShape::gqa(9, 3, 64, 64);
  for (const std::int64_t rows : {1040, 100000}) {
    cuda::ExactBlocks blocks(gpu(), shape, std::vector<std::int64_t>(30, rows), 8);
    for (const auto& [block, tokens] : {std::pair{0, 300}, {1, 5000}, {0, 5000}, {2, 70000}}) {
      const std::size_t before = blocks.backed();
      const std::size_t missing = blocks.missing(block, tokens);
      blocks.require(block, tokens, nullptr);
      EXPECT_EQ(blocks.backed() - before, missing) << rows << " rows, " << tokens << " tokens";
    }
  }
}

/// Loads a model, reads prompts one after another, decodes in all sessions; the peak of the GPU's
/// memory against the plan's.
void expect_planned(const ModelOptions& options, const Settings& settings, std::int64_t prompt,
                    int sessions, GroupStorage groups = GroupStorage::bf16) {
  const std::size_t before = cuda::memory_held();
  cuda::memory_peak_reset();
  ModelOptions chosen = options;
  chosen.device = "cuda";
  chosen.groups = groups;
  const auto model = Model::load(chosen);
  constexpr std::int64_t kDecoded = 4;
  const SessionOptions session_options{.settings = {settings}};
  std::vector<LayerSpec> layers;
  for (const Settings& layer : settings_per_layer(*model, session_options)) {
    layers.push_back(layer_spec(*model, layer));
  }
  {
    Context context(1);
    std::vector<Session> open;
    const std::vector<std::int32_t> tokens = plan_tokens(prompt, model->info().vocabulary);
    for (int i = 0; i < sessions; ++i) {
      open.emplace_back(model, context, session_options);
      open.back().prefill(tokens);
    }
    for (std::int64_t i = 0; i < kDecoded; ++i) {
      std::vector<Step> steps;
      for (Session& session : open) {
        Step step;
        step.session = &session;
        step.tokens = std::span(tokens).first(1);
        steps.push_back(step);
      }
      sessions_forward(steps);
    }
  }
  const auto peak = static_cast<double>(cuda::memory_peak() - before);
  const CudaPlan plan(model->state().config(), !options.random.empty());
  const CudaMemory memory = plan.memory(
      {.layers = layers, .groups = groups, .length = prompt + kDecoded, .count = sessions});
  const auto planned = static_cast<double>(memory.peak());
  fmt::print("{}: {} of {} tokens: peak {:.1f} MiB, planned {:.1f}, {:+.2f} %\n",
             options.random.empty() ? std::string("tiny") : options.random, sessions, prompt,
             peak / kMiB, planned / kMiB, 100 * (planned / peak - 1));
  EXPECT_LE(std::abs(planned / peak - 1), 0.05);
}

TEST(CudaMemoryPlan, ThePeakOfTinyModelsIsPlannedWithinFivePercent) {
  LCA_NEEDS_GPU();
  Settings small;
  small.group = 4;
  small.window = 64;
  for (const char* name : {"calm_llama", "calm_qwen2", "calm_minicpm3", "calm_deepseek_v2"}) {
    SCOPED_TRACE(name);
    ModelOptions options;
    const GoldenModel golden(name);
    options.path = golden.path();
    options.precision = Precision::bf16;
    for (const Settings& settings : {small, plan_dense(), plan_waiting()}) {
      expect_planned(options, settings, 3000, 1);
    }
    expect_planned(options, small, 500, 9);
  }
}

TEST(CudaMemoryPlan, ThePeakOfLargerModelsIsPlannedWithinFivePercent) {
  LCA_NEEDS_GPU();
  ModelOptions options;
  options.random = "smollm2";
  for (const Settings& settings : {settings_preset("training"), plan_dense(), plan_waiting()}) {
    for (const std::int64_t prompt : {300, 2000, 40000}) {
      expect_planned(options, settings, prompt, 1);
    }
  }
  expect_planned(options, settings_preset("training"), 3000, 70);
  expect_planned(options, settings_preset("training"), 30000, 5, GroupStorage::fp8);
  options.random = "deepseek-v2-lite";
  constexpr double kNeeded = 48.0 * 1024 * kMiB;
  if (static_cast<double>(cuda_memory_free(0)) < kNeeded) {
    GTEST_SKIP() << "deepseek-v2-lite needs 48 GiB of GPU memory";
  }
  expect_planned(options, settings_preset("training"), 50000, 2);
  expect_planned(options, plan_dense(), 20000, 1);
}

/// All but `bytes` of the GPU's memory, until the object ends.
class MemoryTaken {
 public:
  explicit MemoryTaken(std::size_t bytes) {
    constexpr std::size_t kPiece = std::size_t{64} << 20;
    for (std::size_t piece = std::size_t{4} << 30; piece >= kPiece; piece /= 4) {
      while (cuda_memory_free(0) > bytes + piece) {
        void* memory = nullptr;
        if (cudaMalloc(&memory, piece) != cudaSuccess) {
          cudaGetLastError();
          break;
        }
        pieces_.push_back(memory);
      }
    }
  }
  ~MemoryTaken() {
    for (void* memory : pieces_) cudaFree(memory);
  }
  MemoryTaken(const MemoryTaken&) = delete;
  MemoryTaken& operator=(const MemoryTaken&) = delete;

 private:
  std::vector<void*> pieces_;
};

TEST(CudaMemoryPlan, TooLittleMemoryIsOneLineWithNumbersAndNothingIsLost) {
  LCA_NEEDS_GPU();
  const cuda::DeviceScope scope(gpu());
  ModelOptions options;
  options.random = "smollm2";
  options.device = "cuda";
  const auto model = Model::load(options);
  Context context(1);
  const std::vector<std::int32_t> tokens = plan_tokens(200000, model->info().vocabulary);
  for (const Settings& settings : {plan_dense(), settings_preset("training")}) {
    Session session(model, context, {.settings = {settings}});
    Session other(model, context, {.settings = {settings}});
    session.prefill(std::span(tokens).first(600));
    other.prefill(std::span(tokens).first(700));
    Session twin = other.fork(other.length());
    const std::size_t held = cuda::memory_held();
    {
      const MemoryTaken taken(std::size_t{160} << 20);
      try {
        session.prefill(tokens);
        ADD_FAILURE() << "a prompt that cannot fit was read";
      } catch (const Error& error) {
        const std::string line = error.what();
        fmt::print("{}\n", line);
        EXPECT_EQ(error.kind(), ErrorKind::out_of_memory);
        for (const char* part : {" needs ", " are free", " tokens of this session fit"}) {
          EXPECT_NE(line.find(part), std::string::npos) << line;
        }
        EXPECT_EQ(line.find('\n'), std::string::npos);
      }
      EXPECT_LE(session.length(), 600 + 16384 * 12);
      // The other session goes on as if nothing had happened.
      other.decode(tokens[0]);
    }
    EXPECT_GE(cuda::memory_held(), held);
    twin.decode(tokens[0]);
    ASSERT_EQ(other.logits().size(), twin.logits().size());
    EXPECT_TRUE(std::equal(other.logits().begin(), other.logits().end(), twin.logits().begin()));
    // With memory again the session continues where it stood.
    session.prefill(std::span(tokens).first(20000));
    EXPECT_FALSE(std::isnan(session.logits()[0]));
  }
}

}  // namespace
}  // namespace lca::test
