// Sessions of whole models on the GPU: batches, replayed steps, picks, `prompt` mode, files that
// move between devices, memory.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "cuda/model_pair.h"

namespace lca::test {
namespace {

constexpr double kNear = 4e-2;

Settings small_lca() {
  Settings settings;
  settings.group = 4;
  settings.window = 8;
  settings.sink = 2;
  settings.summary_queries = 4;
  return settings;
}

std::vector<float> row_of(const Session& session) {
  return {session.logits().begin(), session.logits().end()};
}

std::vector<std::string> families() {
  return {"calm_llama", "calm_qwen2", "calm_minicpm3", "calm_deepseek_v2"};
}

class CudaSessions : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    LCA_NEEDS_GPU();
    model = load_on(golden, "cuda");
  }
  Session open() { return {model, context, {.settings = {small_lca()}}}; }
  std::vector<std::int32_t> text(std::int64_t count) {
    return random_tokens(random, *model, count);
  }

  const GoldenModel golden{GetParam()};
  std::shared_ptr<const Model> model;
  Context context{2};
  Random random{11};
};

TEST_P(CudaSessions, ReplayedStepsGiveWhatStepsOneByOneGiveBitForBit) {
  const std::vector<std::int32_t> tokens = text(40);
  std::vector<std::vector<float>> rows[2];
  for (const bool graphs : {false, true}) {
    cuda_stages(*model, context).set_graphs(graphs);
    Session session = open();
    session.prefill(std::span(tokens).first(9));
    for (std::size_t i = 9; i < tokens.size(); ++i) {
      session.decode(tokens[i]);
      rows[graphs].push_back(row_of(session));
    }
  }
  for (std::size_t i = 0; i < rows[0].size(); ++i) {
    ASSERT_EQ(std::memcmp(rows[0][i].data(), rows[1][i].data(), rows[0][i].size() * sizeof(float)),
              0)
        << "step " << i;
  }
}

TEST_P(CudaSessions, EachOfABatchGetsWhatItGetsAlone) {
  // Two stores (settings), lengths of their own, single tokens beside chunks of prompts.
  constexpr std::size_t kSessions = 7;
  std::vector<std::vector<std::int32_t>> texts;
  std::vector<Session> alone, together;
  for (std::size_t i = 0; i < kSessions; ++i) {
    const SessionOptions options{.settings = {i % 3 == 2 ? dense_settings() : small_lca()}};
    texts.push_back(text(60));
    alone.emplace_back(model, context, options);
    together.emplace_back(model, context, options);
  }
  std::vector<std::size_t> at(kSessions, 0);
  for (int round = 0; round < 12; ++round) {
    std::vector<Step> steps;
    std::vector<std::size_t> members;
    for (std::size_t i = 0; i < kSessions; ++i) {
      if (random.integer(0, 4) == 0) continue;  // not in every step
      const bool prompt = at[i] == 0 || random.integer(0, 3) == 0;
      const std::size_t count =
          prompt ? static_cast<std::size_t>(random.integer(1, 5)) : std::size_t{1};
      Step step;
      step.session = &together[i];
      step.tokens = std::span(texts[i]).subspan(at[i], count);
      step.prompt = prompt;
      steps.push_back(step);
      members.push_back(i);
    }
    sessions_forward(steps);
    for (std::size_t k = 0; k < members.size(); ++k) {
      const std::size_t i = members[k];
      const Step& step = steps[k];
      if (step.prompt) {
        alone[i].prefill(step.tokens);
      } else {
        alone[i].decode(step.tokens[0]);
      }
      at[i] += step.tokens.size();
      ASSERT_EQ(together[i].length(), static_cast<std::int64_t>(at[i]));
      EXPECT_LE(logits_error(alone[i].logits(), together[i].logits()), kNear)
          << "session " << i << " round " << round;
    }
  }
}

TEST_P(CudaSessions, PicksAreTheLikeliestTokens) {
  const std::vector<std::int32_t> tokens = text(30);
  Session plain = open();
  Session picked = open();
  for (std::size_t i = 0; i < tokens.size();) {
    const std::size_t count = i == 0 ? 11 : 1;
    const auto some = std::span(tokens).subspan(i, count);
    std::int32_t pick = -7;
    Step step;
    step.session = &picked;
    step.tokens = some;
    step.prompt = i == 0;
    step.greedy = &pick;
    sessions_forward({&step, 1});
    if (i == 0) {
      plain.prefill(some);
    } else {
      plain.decode(tokens[i]);
    }
    const auto best = std::ranges::max_element(plain.logits());
    EXPECT_EQ(pick, best - plain.logits().begin()) << "after token " << i;
    i += count;
  }
}

TEST_P(CudaSessions, PromptModeInChunksAndLaterTurnsMatchesTheCpu) {
  const auto cpu = load_on(golden, "cpu");
  const std::vector<std::int32_t> tokens = text(70);
  Settings settings = small_lca();
  settings.summary = Summary::prompt;
  settings.positional_pool = Pool::weighted;  // in near ties the devices may select other keys
  for (const std::int64_t chunk : {0, 13}) {
    const SessionOptions options{.settings = {settings}, .chunk = chunk};
    Session expected(cpu, context, options), actual(model, context, options);
    std::size_t at = 0;
    for (const std::size_t turn : {std::size_t{31}, std::size_t{1}, std::size_t{22}}) {
      for (Session* session : {&expected, &actual}) {
        session->prefill(std::span(tokens).subspan(at, turn));
      }
      at += turn;
      EXPECT_LE(logits_error(expected.logits(), actual.logits()), kNear) << "at " << at;
      for (int i = 0; i < 3; ++i, ++at) {
        for (Session* session : {&expected, &actual}) session->decode(tokens[at]);
        EXPECT_LE(logits_error(expected.logits(), actual.logits()), kNear) << "at " << at;
      }
    }
  }
}

TEST_P(CudaSessions, FilesMoveBetweenDevices) {
  const std::shared_ptr<const Model> models[] = {load_on(golden, "cpu"), model};
  const auto path = std::filesystem::temp_directory_path() /
                    ("lca-cuda-" + std::to_string(::getpid()) + ".session");
  const std::vector<std::int32_t> tokens = text(50);
  const SessionOptions options{.settings = {small_lca()}};
  for (const int from : {0, 1}) {
    Session first(models[from], context, options);
    first.prefill(std::span(tokens).first(33));
    first.save(path);
    Session second = Session::load(models[1 - from], context, path);
    EXPECT_EQ(second.length(), 33);
    EXPECT_EQ(second.tokens(), first.tokens());
    for (std::size_t i = 33; i < 40; ++i) {
      first.decode(tokens[i]);
      second.decode(tokens[i]);
      EXPECT_LE(logits_error(first.logits(), second.logits()), kNear) << "at " << i;
    }
    for (Session* session : {&first, &second}) session->prefill(std::span(tokens).subspan(40));
    EXPECT_LE(logits_error(first.logits(), second.logits()), kNear);
  }
  std::filesystem::remove(path);
}

TEST_P(CudaSessions, MarksAndForksReturnToWhatWas) {
  const std::vector<std::int32_t> tokens = text(60);
  Session session = open();
  session.prefill(std::span(tokens).first(30));
  session.mark();
  session.decode(tokens[30]);
  const std::vector<float> expected = row_of(session);
  session.prefill(std::span(tokens).subspan(31, 20));
  Session fork = session.fork(30);
  fork.decode(tokens[30]);
  EXPECT_EQ(row_of(fork), expected);
  session.truncate(30);
  session.decode(tokens[30]);
  EXPECT_EQ(row_of(session), expected);
}

TEST_P(CudaSessions, AStepThatIsCancelledLeavesTheSessionAsItWas) {
  const std::vector<std::int32_t> tokens = text(40);
  Session session = open();
  Session twin = open();
  for (Session* one : {&session, &twin}) one->prefill(std::span(tokens).first(20));
  std::stop_source stop;
  stop.request_stop();
  for (std::size_t i = 20; i < 26; ++i) {  // before, while and after steps are captured
    EXPECT_THROW(session.decode(tokens[i], stop.get_token()), Error);
    EXPECT_THROW(session.prefill(std::span(tokens).subspan(i, 9), {}, {}, stop.get_token()), Error);
    session.decode(tokens[i]);
    twin.decode(tokens[i]);
    ASSERT_EQ(row_of(session), row_of(twin)) << "at " << i;
  }
}

TEST_P(CudaSessions, ThreadsTakeTurns) {
  constexpr std::size_t kThreads = 3;
  std::vector<std::vector<std::int32_t>> texts;
  std::vector<std::vector<std::vector<float>>> alone(kThreads), together(kThreads);
  for (std::size_t i = 0; i < kThreads; ++i) texts.push_back(text(60));
  const auto talk = [&](std::size_t i, std::vector<std::vector<float>>& rows) {
    Context own(1);
    Session session(model, own, {.settings = {small_lca()}});
    session.prefill(std::span(texts[i]).first(20));
    for (std::size_t at = 20; at < texts[i].size(); ++at) {
      session.decode(texts[i][at]);
      rows.push_back(row_of(session));
    }
  };
  for (std::size_t i = 0; i < kThreads; ++i) talk(i, alone[i]);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] { talk(i, together[i]); });
    }
  }
  for (std::size_t i = 0; i < kThreads; ++i) EXPECT_EQ(alone[i], together[i]) << "thread " << i;
}

INSTANTIATE_TEST_SUITE_P(All, CudaSessions, ::testing::ValuesIn(families()),
                         [](const auto& one) { return one.param; });

TEST(CudaModelMemory, AThousandSessionsLeaveMemoryWhereItWas) {
  LCA_NEEDS_GPU();
  const auto model = load_on(GoldenModel("calm_deepseek_v2"), "cuda");
  Context context(1);
  Random random(18);
  const std::vector<std::int32_t> tokens = random_tokens(random, *model, 64);
  const auto used = [] {
    std::size_t free = 0, all = 0;
    cuda::check(cudaDeviceSynchronize(), "waiting");
    cuda::check(cudaMemGetInfo(&free, &all), "memory");
    return all - free;
  };
  const auto some = [&](int count) {
    for (int i = 0; i < count; ++i) {
      Session session(model, context, {.settings = {small_lca()}});
      session.prefill(std::span(tokens).first(static_cast<std::size_t>(random.integer(2, 60))));
      session.decode(tokens[0]);
    }
  };
  some(100);
  const std::size_t before = used();
  some(1000);
  EXPECT_LE(used(), before + (std::size_t{4} << 20));
}

TEST(CudaModelMemory, AFullGpuIsOneErrorAndNothingIsLost) {
  LCA_NEEDS_GPU();
  const auto model = load_on(GoldenModel("calm_llama"), "cuda");
  Context context(1);
  Random random(19);
  const std::vector<std::int32_t> tokens = random_tokens(random, *model, 8192);
  Session session(model, context, {.settings = {dense_settings()}, .chunk = 4096});
  session.prefill(tokens);
  std::size_t free = 0, all = 0;
  cuda::check(cudaMemGetInfo(&free, &all), "memory");
  {
    const cuda::Buffer hog(free - std::min(free, std::size_t{24} << 20));
    try {
      for (int i = 0; i < 200; ++i) session.prefill(tokens);
      ADD_FAILURE() << "no memory was needed";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::out_of_memory);
      const std::string text = error.what();
      EXPECT_EQ(text.find('\n'), std::string::npos) << text;
      EXPECT_NE(text.find("tokens of this session fit"), std::string::npos) << text;
      std::printf("%s\n", text.c_str());
    }
  }
  EXPECT_EQ(session.length() % 4096, 0);
  const std::int64_t before = session.length();
  session.prefill(tokens);
  session.decode(tokens[0]);
  EXPECT_EQ(session.length(), before + 8193);
  for (const float logit : session.logits()) ASSERT_TRUE(std::isfinite(logit));
}

TEST(CudaModelMemory, WhatTheGpuCannotRunIsOneError) {
  LCA_NEEDS_GPU();
  const GoldenModel golden("calm_llama");
  try {
    load_on(golden, "cuda", Precision::f32);
    ADD_FAILURE() << "float32 on the GPU";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::incompatible);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
  EXPECT_THROW(load_on(golden, "cuda:77"), Error);
  EXPECT_EQ(load_on(golden, "auto")->info().device, "cuda:0");
  EXPECT_EQ(load_on(golden, "auto", Precision::f32)->info().device, "cpu");
}

}  // namespace
}  // namespace lca::test
