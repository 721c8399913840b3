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

class CudaModelRound : public ::testing::TestWithParam<RoundCase> {};

TEST_P(CudaModelRound, GivesWhatTheCpuGives) {
  LCA_NEEDS_GPU();
  const RoundCase& one = GetParam();
  std::optional<RandomCheckpoint> random_weights;
  std::optional<GoldenModel> golden;
  if (*one.golden == 0) {
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
    golden.emplace(one.golden);
  }
  const ModelPlace place = golden ? ModelPlace(*golden) : ModelPlace(random_weights->path());
  const auto cpu = load_rounded(place);
  const auto gpu = load_on(place, "cuda", Precision::bf16, one.groups);
  Context context(2);
  Random random(71);
  const std::vector<std::int32_t> tokens = random_tokens(random, *cpu, 48);
  const std::span<const std::int32_t> all(tokens);
  Settings settings;
  settings.group = 3;
  settings.window = 6;
  settings.sink = 2;
  settings.summary_queries = 4;
  settings.positional_pool = Pool::weighted;
  for (const Summary summary : {Summary::streaming, Summary::prompt}) {
    settings.summary = summary;
    const SessionOptions options{.settings = {settings}, .chunk = 13};
    Session expected(cpu, context, options), session(gpu, context, options);
    Session neighbour(gpu, context, options);
    const auto near = [&](const char* what) {
      EXPECT_LE(logits_error(expected.logits(), session.logits()), one.tolerance)
          << what << " at " << session.length();
    };
    for (Session* each : {&expected, &session, &neighbour}) each->prefill(all.first(30));
    near("prompt");
    for (std::size_t i = 30; i < 34; ++i) {  // as it is, captured, replayed
      for (Session* each : {&expected, &session}) each->decode(tokens[i]);
      near("token");
    }
    for (std::size_t i = 34; i < 37; ++i) {
      Step steps[2];
      steps[0].session = &session;
      steps[0].tokens = all.subspan(i, 1);
      steps[1].session = &neighbour;
      steps[1].tokens = all.subspan(i - 4, 1);
      sessions_forward(steps);
      expected.decode(tokens[i]);
      near("batch");
    }
    for (Session* each : {&expected, &session}) each->prefill(all.subspan(37, 11));
    near("second prompt");
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
