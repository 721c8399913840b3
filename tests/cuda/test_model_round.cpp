// A short round through all that a model does on the GPU: prompts in chunks, captured steps,
// batches, prompts that wait for their end, 8-bit representatives. Small enough for
// compute-sanitizer (scripts/gpu_check.sh), and compared with the CPU.
#include <gtest/gtest.h>

#include <optional>
#include <ostream>
#include <vector>

#include "cuda/model_pair.h"
#include "cuda/random_checkpoint.h"

namespace lca::test {
namespace {

struct RoundCase {
  const char* name;
  const char* golden;  ///< empty: random weights with attention of DeepSeek-V2-Lite's widths
  GroupStorage groups;
  double tolerance;  ///< of logits
};
std::ostream& operator<<(std::ostream& out, const RoundCase& one) { return out << one.name; }

class CudaModelRound : public ::testing::TestWithParam<RoundCase> {
 protected:
  void SetUp() override {
    LCA_NEEDS_GPU();
    if (*GetParam().golden == 0) {
      RandomMoe shape;
      shape.hidden = 256;
      shape.layers = 2;
      shape.heads = 2;
      shape.experts = 8;
      shape.per_token = 2;
      shape.width = 64;
      shape.vocabulary = 96;
      random_weights.emplace(shape);
    } else {
      golden.emplace(GetParam().golden);
    }
    const ModelPlace place = golden ? ModelPlace(*golden) : ModelPlace(random_weights->path());
    cpu = load_rounded(place);
    gpu = load_on(place, "cuda", Precision::bf16, GetParam().groups);
    Random random(71);
    tokens = random_tokens(random, *cpu, 48);
    settings.group = 3;
    settings.window = 6;
    settings.sink = 2;
    settings.summary_queries = 4;
    settings.positional_pool = Pool::weighted;
  }
  static void expect_near(const Session& expected, const Session& session, const char* what) {
    EXPECT_LE(logits_error(expected.logits(), session.logits()), GetParam().tolerance)
        << what << " at " << session.length();
  }
  /// One more token of two sessions at once.
  void step_both(Session& first, std::size_t at, Session& second, std::size_t other) const {
    Step steps[2];
    steps[0].session = &first;
    steps[0].tokens = std::span(tokens).subspan(at, 1);
    steps[1].session = &second;
    steps[1].tokens = std::span(tokens).subspan(other, 1);
    sessions_forward(steps);
  }

  std::optional<RandomCheckpoint> random_weights;
  std::optional<GoldenModel> golden;
  std::shared_ptr<const Model> cpu, gpu;
  std::vector<std::int32_t> tokens;
  Settings settings;
  Context context{2};
};

TEST_P(CudaModelRound, GivesWhatTheCpuGives) {
  const std::span<const std::int32_t> all(tokens);
  for (const Summary summary : {Summary::streaming, Summary::prompt}) {
    settings.summary = summary;
    const SessionOptions options{.settings = {settings}, .chunk = 13};
    Session expected(cpu, context, options), session(gpu, context, options);
    Session neighbour(gpu, context, options);
    for (Session* each : {&expected, &session, &neighbour}) each->prefill(all.first(30));
    expect_near(expected, session, "prompt");
    for (std::size_t i = 30; i < 34; ++i) {  // as it is, captured, replayed
      for (Session* each : {&expected, &session}) each->decode(tokens[i]);
      expect_near(expected, session, "token");
    }
    for (std::size_t i = 34; i < 37; ++i) {
      step_both(session, i, neighbour, i - 4);
      expected.decode(tokens[i]);
      expect_near(expected, session, "batch");
    }
    for (Session* each : {&expected, &session}) each->prefill(all.subspan(37, 11));
    expect_near(expected, session, "second prompt");
  }
}

// Single tokens alone: where rows have 64 values or more, no product is cuBLASLt's. Under racecheck
// kernels of cuBLASLt may fail by themselves, even if none is instrumented (those of CudaProduct
// do).
TEST_P(CudaModelRound, GivesWhatTheCpuGivesTokenByToken) {
  const SessionOptions options{.settings = {settings}};
  Session expected(cpu, context, options), session(gpu, context, options);
  Session neighbour(gpu, context, options);
  for (std::size_t i = 0; i < 15; ++i) {  // two groups are condensed
    expected.decode(tokens[i]);
    if (i % 4 == 3) {
      step_both(session, i, neighbour, i);
    } else {
      session.decode(tokens[i]);
    }
    expect_near(expected, session, "token");
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, CudaModelRound,
    ::testing::Values(RoundCase{"llama", "calm_llama", GroupStorage::bf16, 4e-2},
                      RoundCase{"qwen2", "calm_qwen2", GroupStorage::bf16, 4e-2},
                      RoundCase{"minicpm3", "calm_minicpm3", GroupStorage::bf16, 4e-2},
                      RoundCase{"deepseek_v2", "calm_deepseek_v2", GroupStorage::bf16, 4e-2},
                      RoundCase{"deepseek_v2_fp8", "calm_deepseek_v2", GroupStorage::fp8, 8e-2},
                      RoundCase{"llama_fp8", "calm_llama", GroupStorage::fp8, 8e-2},
                      RoundCase{"lite", "", GroupStorage::bf16, 4e-2},
                      RoundCase{"lite_fp8", "", GroupStorage::fp8, 8e-2},
                      RoundCase{"lite_int8", "", GroupStorage::int8, 8e-2}),
    [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace lca::test
