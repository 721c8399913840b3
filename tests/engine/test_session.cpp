// Sessions: results do not depend on chunks, a stopped session stays usable, and errors are
// reported.

#include <lca/cache.h>
#include <lca/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/golden_model.h"
#include "support/small_session.h"

namespace lca::test {
namespace {

using ::testing::HasSubstr;

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

class EveryArchitecture : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryArchitecture, AnswersTheSameHoweverThePromptIsCut) {
  const auto model = GoldenModel(GetParam()).load();
  const auto tokens = some_tokens(61, model->info().vocabulary);
  Settings window = small_settings();
  window.method = MethodKind::window;
  Settings scored = small_settings();
  scored.mass = Mass::score;
  scored.semantic_pool = Pool::select;
  for (const Settings& settings : {dense_settings(), small_settings(), scored, window}) {
    const auto whole = session_logits(model, tokens, {settings}, 0, 61);
    for (const std::int64_t chunk : {1, 3, 16, 60}) {
      EXPECT_LE(logits_error(whole, session_logits(model, tokens, {settings}, chunk, 61)),
                kSameLogits)
          << "chunks of " << chunk;
    }
    EXPECT_LE(logits_error(whole, session_logits(model, tokens, {settings}, 0, 0)), kSameLogits)
        << "token by token";
    EXPECT_LE(logits_error(whole, session_logits(model, tokens, {settings}, 7, 33)), kSameLogits)
        << "half prompt, half decoded";
  }
}

TEST_P(EveryArchitecture, PromptModeDoesNotDependOnTheChunks) {
  const auto model = GoldenModel(GetParam()).load();
  const auto tokens = some_tokens(61, model->info().vocabulary);
  Settings settings = small_settings();
  settings.summary = Summary::prompt;
  const auto whole = session_logits(model, tokens, {settings}, 0, 57);
  for (const std::int64_t chunk : {1, 3, 16, 56}) {
    EXPECT_LE(logits_error(whole, session_logits(model, tokens, {settings}, chunk, 57)),
              kSameLogits)
        << "chunks of " << chunk;
  }
}

TEST_P(EveryArchitecture, LayersMayDifferInTheirSettings) {
  const auto model = GoldenModel(GetParam()).load();
  const auto tokens = some_tokens(50, model->info().vocabulary);
  std::vector<Settings> settings(static_cast<std::size_t>(model->info().layers), small_settings());
  settings[0].summary = Summary::prompt;
  settings.back() = dense_settings();
  const auto whole = session_logits(model, tokens, settings, 0, 50);
  EXPECT_LE(logits_error(whole, session_logits(model, tokens, settings, 7, 50)), kSameLogits);
  settings[0] = settings.back();
  EXPECT_GT(logits_error(whole, session_logits(model, tokens, settings, 0, 50)), kSameLogits);
}

INSTANTIATE_TEST_SUITE_P(All, EveryArchitecture,
                         ::testing::Values("llama", "qwen2", "deepseek_v2", "deepseek_v2_q_lora",
                                           "minicpm3", "gguf_llama_q4_1", "gguf_deepseek2"),
                         [](const auto& one) { return one.param; });

TEST(Session, FrequenciesThatDependOnLengthFollowTheWholePrompt) {
  const auto model = GoldenModel("llama_dynamic").load();
  const auto tokens = some_tokens(50, model->info().vocabulary);
  const auto whole = session_logits(model, tokens, {dense_settings()}, 0, 50);
  EXPECT_LE(logits_error(whole, session_logits(model, tokens, {dense_settings()}, 7, 50)),
            kSameLogits);
}

TEST(Session, ReportsProgressUpToTheWholePrompt) {
  const auto model = GoldenModel("llama").load();
  for (const Summary summary : {Summary::streaming, Summary::prompt}) {
    Context context(1);
    SessionOptions options;
    options.settings = {small_settings()};
    options.settings[0].summary = summary;
    options.chunk = 8;
    Session session(model, context, options);
    std::vector<std::int64_t> done;
    session.prefill(some_tokens(40, 96), [&](PrefillProgress progress) {
      EXPECT_EQ(progress.total, 40);
      done.push_back(progress.done);
      return true;
    });
    EXPECT_GE(done.size(), 6U);
    EXPECT_EQ(done.front(), 0);
    EXPECT_EQ(done.back(), 40);
    EXPECT_TRUE(std::ranges::is_sorted(done));
  }
}

TEST(Session, CancelledStreamingPromptStaysAtTheLastWholeChunk) {
  const auto model = GoldenModel("deepseek_v2").load();
  const auto tokens = some_tokens(40, model->info().vocabulary);
  const auto whole = session_logits(model, tokens, {small_settings()}, 0, 40);
  Context context(1);
  SessionOptions options;
  options.settings = {small_settings()};
  options.chunk = 8;
  Session session(model, context, options);
  const std::string error = error_of([&] {
    session.prefill(tokens, [](PrefillProgress progress) { return progress.done < 16; });
  });
  EXPECT_THAT(error, HasSubstr("cancelled"));
  EXPECT_EQ(session.length(), 16);
  session.prefill(std::span(tokens).subspan(16));
  const auto last = std::span(whole).last(session.logits().size());
  EXPECT_LE(logits_error(last, session.logits()), kSameLogits);
}

TEST(Session, CancelledPromptModeLeavesTheSessionAsItWas) {
  const auto model = GoldenModel("llama").load();
  const auto tokens = some_tokens(60, model->info().vocabulary);
  Settings settings = small_settings();
  settings.summary = Summary::prompt;
  Context context(1);
  SessionOptions options;
  options.settings = {settings};
  options.chunk = 8;
  Session session(model, context, options);
  Session undisturbed(model, context, options);
  session.prefill(std::span(tokens).first(30));
  undisturbed.prefill(std::span(tokens).first(30));
  int calls = 0;
  const auto stop = [&](PrefillProgress) { return ++calls < 4; };
  EXPECT_THAT(error_of([&] { session.prefill(std::span(tokens).subspan(30), stop); }),
              HasSubstr("cancelled"));
  EXPECT_EQ(session.length(), 30);
  session.prefill(std::span(tokens).subspan(30));
  undisturbed.prefill(std::span(tokens).subspan(30));
  EXPECT_EQ(logits_error(undisturbed.logits(), session.logits()), 0);
}

TEST(Session, RefusesTokensThatAreNotInTheVocabulary) {
  const auto model = GoldenModel("llama").load();
  Context context(1);
  Session session(model, context);
  const std::vector<std::int32_t> high{1, 96};
  const std::vector<std::int32_t> low{-1};
  EXPECT_THAT(error_of([&] { session.prefill(high); }), HasSubstr("token 96"));
  EXPECT_THAT(error_of([&] { session.prefill(low); }), HasSubstr("token -1"));
  EXPECT_THAT(error_of([&] { session.prefill({}); }), HasSubstr("at least one token"));
  EXPECT_THAT(error_of([&] { session.decode(1000); }), HasSubstr("token 1000"));
  EXPECT_EQ(session.length(), 0);
}

TEST(Session, RefusesSettingsForAnotherNumberOfLayers) {
  const auto model = GoldenModel("llama").load();
  Context context(1);
  SessionOptions options;
  options.settings.assign(7, small_settings());
  EXPECT_THAT(error_of([&] { Session(model, context, options); }), HasSubstr("7 layers"));
}

TEST(Session, HoldsTheBytesOfTheLaw) {
  const auto model = GoldenModel("deepseek_v2").load();
  Context context(1);
  SessionOptions options;
  options.settings = {small_settings()};
  Session session(model, context, options);
  session.prefill(some_tokens(60, model->info().vocabulary));
  LayerSpec spec;
  spec.shape = model->info().attention;
  spec.settings = small_settings();
  const auto layers = static_cast<std::size_t>(model->info().layers);
  EXPECT_EQ(session.cache_bytes(), layers * cache_bytes(spec, 60));
  spec.settings = dense_settings();
  EXPECT_EQ(session.dense_bytes(), layers * cache_bytes(spec, 60));
  EXPECT_LT(session.cache_bytes(), session.dense_bytes());
}

// Ten sessions of different lengths and settings, in batches: results must equal those of each
// session alone, bit for bit.
TEST_P(EveryArchitecture, DecodesABatchAsIfEachSessionWereAlone) {
  for (const Precision precision : {Precision::f32, Precision::automatic}) {
    ModelOptions model_options;
    model_options.path = GoldenModel(GetParam()).path().native();
    model_options.precision = precision;
    const auto model = Model::load(model_options);
    Context context(2);
    std::vector<Session> alone;
    std::vector<Session> together;
    std::vector<Session*> batch;
    for (std::int64_t i = 0; i < 10; ++i) {
      SessionOptions options;
      options.settings = {small_settings()};
      if (i % 4 == 3) options.settings[0].method = MethodKind::dense;
      if (i % 4 == 2) options.settings[0].method = MethodKind::window;
      const auto prompt = some_tokens(1 + 5 * i, model->info().vocabulary);
      for (std::vector<Session>* list : {&alone, &together}) {
        list->emplace_back(model, context, options);
        list->back().prefill(prompt);
      }
    }
    for (Session& session : together) batch.push_back(&session);
    for (std::int32_t step = 0; step < 12; ++step) {
      std::vector<std::int32_t> tokens;
      for (std::int32_t i = 0; i < 10; ++i) tokens.push_back((step * 31 + i * 7) % 40);
      sessions_decode(batch, tokens);
      for (std::size_t i = 0; i < alone.size(); ++i) {
        alone[i].decode(tokens[i]);
        ASSERT_TRUE(std::ranges::equal(alone[i].logits(), together[i].logits()))
            << "session " << i << ", step " << step;
        ASSERT_EQ(alone[i].tokens(), together[i].tokens());
      }
    }
  }
}

TEST(Session, RefusesInvalidBatches) {
  const auto model = GoldenModel("llama").load();
  Context context(1);
  Context other(1);
  Session first(model, context);
  Session second(model, other);
  const std::vector<Session*> both = {&first, &second};
  const std::vector<Session*> twice = {&first, &first};
  const std::vector<std::int32_t> tokens = {1, 2};
  EXPECT_THAT(error_of([&] { sessions_decode(both, tokens); }), HasSubstr("different"));
  EXPECT_THAT(error_of([&] { sessions_decode(twice, tokens); }), HasSubstr("twice"));
  EXPECT_THAT(error_of([&] { sessions_decode(twice, std::span(tokens).first(1)); }),
              HasSubstr("2 sessions were given 1 tokens"));
  EXPECT_EQ(first.length(), 0);
}

TEST(ThreadsSession, GivesTheSameBitsWithAnyNumberOfThreads) {
  for (const char* name : {"deepseek_v2", "gguf_llama_q4_1"}) {
    const auto model = GoldenModel(name).load(Precision::automatic);
    const auto tokens = some_tokens(50, model->info().vocabulary);
    std::vector<std::vector<float>> results;
    for (const int threads : {1, 2, 5}) {
      Context context(threads);
      SessionOptions options;
      options.settings = {small_settings()};
      Session session(model, context, options);
      session.prefill(std::span(tokens).first(45));
      for (std::size_t i = 45; i < 50; ++i) session.decode(tokens[i]);
      results.emplace_back(session.logits().begin(), session.logits().end());
    }
    EXPECT_EQ(results[0], results[1]) << name;
    EXPECT_EQ(results[0], results[2]) << name;
  }
}

}  // namespace
}  // namespace lca::test
