// Continuous batching on the GPU: requests that join, leave and are cancelled at random each get
// the text they get alone, up to near ties.
#include <lca/engine.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "cuda/model_pair.h"
#include "engine/byte_tokenizer.h"
#include "engine/engine_state.h"

namespace lca::test {
namespace {

/// Where two greedy texts part, both tokens must be about as likely.
constexpr float kNearLogits = 0.25f;

const Tokenizer& bytes_tokenizer() {
  static const Tokenizer made = byte_tokenizer({"<end>"});
  return made;
}

struct Asked {
  std::vector<std::int32_t> prompt;
  SessionOptions options;
  GenerateOptions generate;
  std::vector<std::int32_t> ids;
  std::optional<StopReason> reason;
  std::optional<Error> error;
  bool cancelled = false;
};

Settings settings_number(std::int64_t i) {
  Settings settings;
  settings.group = 4;
  settings.window = i % 4 == 1 ? 16 : 8;
  settings.sink = 2;
  settings.summary_queries = 4;
  if (i % 4 == 2) settings.method = MethodKind::dense;
  if (i % 4 == 3) settings.summary = Summary::prompt;
  return settings;
}

class CudaEngine : public ::testing::TestWithParam<std::string> {};

TEST_P(CudaEngine, RequestsThatJoinAndLeaveAtRandomGetTheTextTheyGetAlone) {
  LCA_NEEDS_GPU();
  const auto model = load_on(GoldenModel(GetParam()), "cuda");
  Context context(2);
  Engine engine(model, context, {.most_sessions = 24, .step_tokens = 128});
  engine.state().tokenizer = bytes_tokenizer();
  Random random(31);
  constexpr std::int64_t kRequests = 64;
  std::deque<Asked> all;
  std::vector<RequestId> running;
  for (std::int64_t i = 0; i < kRequests; ++i) {
    Asked& asked = all.emplace_back();
    const std::int64_t length = random.integer(1, 90);
    for (std::int64_t k = 0; k < length; ++k) {
      asked.prompt.push_back(
          static_cast<std::int32_t>(random.integer(0, model->info().vocabulary - 1)));
    }
    asked.options.settings = {settings_number(i)};
    asked.options.chunk = 16 + 8 * (i % 3);
    asked.generate.max_tokens = random.integer(1, 40);
    // Some are drawn at random: they share steps with the others, which are compared.
    if (i % 5 == 4) asked.generate.sampling = {.temperature = 0.8, .seed = 7};
    Request request;
    request.prompt = asked.prompt;
    request.options = asked.options;
    request.generate = asked.generate;
    running.push_back(engine.submit(
        std::move(request),
        {.piece =
             [&asked](const GeneratePiece& piece) {
               asked.ids.insert(asked.ids.end(), piece.ids.begin(), piece.ids.end());
               return true;
             },
         .finished = [&asked](RequestResult made) { asked.reason = made.generated.reason; },
         .failed = [&asked](const Error& why, RequestResult) { asked.error = why; }}));
    for (std::int64_t k = random.integer(0, 3); k > 0; --k) engine.step();
    if (i % 9 == 8) {
      const auto at = static_cast<std::size_t>(random.integer(0, i));
      if (engine.cancel(running[at])) all[at].cancelled = true;
    }
  }
  while (engine.step()) {
  }
  std::int64_t parted = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Asked& asked = all[i];
    ASSERT_FALSE(asked.error) << i << ": " << asked.error->what();
    ASSERT_TRUE(asked.reason) << i;
    if (!asked.cancelled) {
      EXPECT_EQ(std::ssize(asked.ids), asked.generate.max_tokens) << i;
    }
    if (asked.generate.sampling.temperature > 0) continue;
    Session session(model, context, asked.options);
    session.prefill(asked.prompt);
    for (const std::int32_t id : asked.ids) {
      const std::span<const float> logits = session.logits();
      const auto best = std::ranges::max_element(logits) - logits.begin();
      if (best != id) {
        EXPECT_LT(logits[static_cast<std::size_t>(best)] - logits[static_cast<std::size_t>(id)],
                  kNearLogits)
            << "request " << i;
        ++parted;
        break;
      }
      session.decode(id);
    }
  }
  // Near ties are rare: most texts are alike to the end.
  EXPECT_LE(parted, kRequests / 8);
}

INSTANTIATE_TEST_SUITE_P(All, CudaEngine,
                         ::testing::Values("calm_llama", "calm_minicpm3", "calm_deepseek_v2"),
                         [](const auto& one) { return one.param; });

}  // namespace
}  // namespace lca::test
