// One step of several sessions: each gets what it gets alone, and an error inside a step leaves all
// of them as they were.

#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <latch>
#include <thread>

#include "engine/saved_session.h"
#include "models/decoder.h"
#include "support/allocation_count.h"
#include "support/sanitized.h"

namespace lca::test {
namespace {

Step step_of(Session& session, std::span<const std::int32_t> tokens, bool prompt) {
  Step step;
  step.session = &session;
  step.tokens = tokens;
  step.prompt = prompt;
  return step;
}

/// Settings of the i-th session of a batch.
Settings varied(std::size_t i) {
  if (i % 4 == 3) return dense_settings();
  if (i % 4 == 2) return small_settings(MethodKind::window);
  Settings settings = small_settings();
  if (i % 4 == 1) {
    settings.mass = Mass::score;
    settings.semantic_pool = Pool::select;
  }
  return settings;
}

class StepOfMany : public testing::TestWithParam<const char*> {};

// Prompt chunks of all lengths around the switch of products, mixed with single tokens.
TEST_P(StepOfMany, GivesEachSessionWhatItGetsAlone) {
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    Bench bench(GetParam(), precision);
    const std::vector<std::int64_t> lengths = {1, 13, 1, 32, 5, 12, 40, 1, 3};
    std::vector<Session> alone;
    std::vector<Session> together;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      for (std::vector<Session>* list : {&alone, &together}) {
        list->push_back(bench.session({varied(i)}));
        if (i % 3 == 0) list->back().prefill(bench.tokens(20, 11));
      }
    }
    for (std::uint32_t round = 0; round < 3; ++round) {
      std::vector<std::vector<std::int32_t>> tokens;
      std::vector<Step> steps;
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        const std::int64_t count = lengths[(i + round) % lengths.size()];
        tokens.push_back(bench.tokens(count, 100 * round + static_cast<std::uint32_t>(i)));
      }
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        const bool prompt = tokens[i].size() > 1 || together[i].length() == 0;
        steps.push_back(step_of(together[i], tokens[i], prompt));
      }
      sessions_forward(steps);
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        Step step = steps[i];
        step.session = &alone[i];
        sessions_forward({&step, 1});
        ASSERT_EQ(logits_of(alone[i]), logits_of(together[i]))
            << GetParam() << ", session " << i << ", round " << round;
        ASSERT_EQ(image(alone[i]), image(together[i])) << i;
      }
    }
  }
}

TEST_P(StepOfMany, HandsOutTheLogitsOfEveryPositionWhereAsked) {
  Bench bench(GetParam());
  const auto prompt = bench.tokens(30);
  std::vector<float> expected;
  Session alone = bench.session({small_settings()}, 64);
  alone.prefill(prompt, {}, [&](std::int64_t, std::int64_t count, const float* logits) {
    expected.insert(expected.end(), logits, logits + count * bench.model->info().vocabulary);
  });
  Session one = bench.session({small_settings()});
  Session two = bench.spoken({small_settings()}, 9, 0);
  std::vector<float> got;
  const auto token = bench.tokens(1, 5);
  std::vector<Step> steps = {step_of(one, prompt, true), step_of(two, token, false)};
  steps[0].logits = [&](std::int64_t first, std::int64_t count, const float* logits) {
    EXPECT_EQ(first * bench.model->info().vocabulary, static_cast<std::int64_t>(got.size()));
    got.insert(got.end(), logits, logits + count * bench.model->info().vocabulary);
  };
  sessions_forward(steps);
  EXPECT_EQ(got, expected);
  EXPECT_EQ(logits_of(one), logits_of(alone));
  EXPECT_EQ(one.prompt_end(), 30);
  EXPECT_EQ(two.prompt_end(), 9);
}

INSTANTIATE_TEST_SUITE_P(Models, StepOfMany,
                         testing::Values("llama", "gguf_llama_q4_1", "qwen2", "minicpm3",
                                         "deepseek_v2", "adapter_llama", "adapter_gguf_q4_1"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST(Step, RefusesInvalidSteps) {
  Bench bench("llama");
  Session session = bench.session({small_settings()});
  Session waiting = bench.session({prompt_settings()});
  const auto tokens = bench.tokens(3);
  const auto refused = [&](std::vector<Step> steps, const char* what) {
    expect_error([&] { sessions_forward(steps); }, {what});
    EXPECT_EQ(session.length(), 0);
  };
  refused({Step{}}, "no session");
  refused({step_of(session, {}, true)}, "at least one token");
  refused({step_of(session, tokens, false)}, "one at a time");
  refused({step_of(session, tokens, true), step_of(session, tokens, true)}, "twice");
  refused({step_of(session, tokens, true), step_of(waiting, tokens, true)},
          "summary mode `prompt`");
  sessions_forward({});
  // Alone it reads the whole prompt; among others it decodes.
  const Step whole = step_of(waiting, tokens, true);
  sessions_forward({&whole, 1});
  Session same = bench.session({prompt_settings()});
  same.prefill(tokens);
  EXPECT_EQ(logits_of(waiting), logits_of(same));
  const auto next = bench.tokens(1, 3);
  const std::vector<Step> mixed = {step_of(waiting, next, false), step_of(session, tokens, true)};
  sessions_forward(mixed);
  same.decode(next[0]);
  EXPECT_EQ(logits_of(waiting), logits_of(same));
}

TEST(Step, AnErrorInsideLeavesEverySessionAsItWas) {
  for (const char* name : {"llama", "deepseek_v2"}) {
    Bench bench(name);
    std::vector<Session> sessions;
    for (std::size_t i = 0; i < 4; ++i) {
      sessions.push_back(bench.spoken({varied(i)}, 30 + static_cast<std::int64_t>(i), 3));
    }
    std::vector<std::string> before;
    for (const Session& session : sessions) before.push_back(image(session));
    const auto prompt = bench.tokens(37, 3);
    std::vector<Step> steps;
    for (Session& session : sessions) steps.push_back(step_of(session, prompt, true));
    steps.back().logits = [](std::int64_t, std::int64_t, const float*) {
      throw std::runtime_error("the reader gave up");
    };
    EXPECT_THROW(sessions_forward(steps), std::runtime_error);
    for (std::size_t i = 0; i < sessions.size(); ++i) {
      EXPECT_EQ(image(sessions[i]), before[i]) << name << " " << i;
    }
    // And they continue as if nothing had happened.
    steps.back().logits = {};
    sessions_forward(steps);
    for (std::size_t i = 0; i < sessions.size(); ++i) {
      Session control = bench.spoken({varied(i)}, 30 + static_cast<std::int64_t>(i), 3);
      const Step step = step_of(control, prompt, true);
      sessions_forward({&step, 1});
      EXPECT_EQ(image(sessions[i]), image(control)) << name << " " << i;
    }
  }
}

TEST(Step, AStoppedPromptInPromptModeLeavesTheSessionAsItWas) {
  Bench bench("llama");
  Settings streaming = small_settings();
  // One layer waits for the prompt's end, the other does not.
  for (const std::vector<Settings>& settings :
       {std::vector<Settings>{prompt_settings()},
        std::vector<Settings>{prompt_settings(), streaming},
        std::vector<Settings>{dense_settings(), prompt_settings()}}) {
    Session session = bench.spoken(settings, 41, 2);
    const std::string before = image(session);
    const auto prompt = bench.tokens(50, 3);
    const auto stopped_at = [&](double share) {
      expect_error(
          [&] {
            session.prefill(prompt, [&](PrefillProgress at) {
              return static_cast<double>(at.done) < share * static_cast<double>(at.total);
            });
          },
          {"cancelled"}, ErrorKind::cancelled);
      EXPECT_EQ(image(session), before) << share;
    };
    for (const double share : {0.1, 0.5, 0.9, 1.0}) stopped_at(share);
    session.prefill(prompt);
    Session control = bench.spoken(settings, 41, 2);
    control.prefill(prompt);
    EXPECT_EQ(image(session), image(control));
  }
}

TEST(Step, EveryAllocationMayFail) {
  if (!allocations_are_counted()) GTEST_SKIP() << "sanitizers have allocators of their own";
  Bench bench("llama");
  const auto prompt = bench.tokens(11, 3);  // few rows: oneDNN, which may crash, is not called
  const auto token = bench.tokens(1, 4);
  {
    // Afterwards the one-time allocations of threads, which must not fail, are done.
    Session first = bench.session({small_settings()});
    Session second = bench.session({small_settings()});
    for (int i = 0; i < 4; ++i) first.prefill(bench.tokens(8, 1));
    sessions_forward(std::vector<Step>{step_of(first, prompt, true), step_of(second, token, true)});
  }
  std::int64_t failures = 0;
  for (std::int64_t allowed = 0;; ++allowed) {
    Context context(1);
    Session one(bench.model, context, {{small_settings()}, 16});
    Session two(bench.model, context, {{small_settings()}, 16});
    for (int i = 0; i < 4; ++i) one.prefill(bench.tokens(8, 1));
    const std::vector<Step> steps = {step_of(one, prompt, true), step_of(two, token, true)};
    const std::string before = image(one);
    allocation_fail_after(allowed);
    bool failed = false;
    try {
      sessions_forward(steps);
    } catch (const Error& error) {
      allocation_fail_after(-1);
      failed = true;
      EXPECT_EQ(error.kind(), ErrorKind::out_of_memory) << error.what();
    }
    allocation_fail_after(-1);
    if (!failed) break;
    ++failures;
    ASSERT_EQ(image(one), before) << allowed;
    ASSERT_EQ(two.length(), 0);
    sessions_forward(steps);
    Session control(bench.model, context, {{small_settings()}, 16});
    for (int i = 0; i < 4; ++i) control.prefill(bench.tokens(8, 1));
    sessions_forward(std::vector<Step>{step_of(control, prompt, true)});
    ASSERT_EQ(logits_of(one), logits_of(control)) << allowed;
  }
  EXPECT_GT(failures, 5);
}

/// Runs `work` in a process of its own, whose address space it may limit; true where it returns
/// true and nothing crashes.
bool in_child(const std::function<bool()>& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work() ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  return status == 0;
}

std::size_t address_space() {
  std::ifstream statm("/proc/self/statm");
  std::size_t pages = 0;
  statm >> pages;
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

TEST(Step, ASessionGoesOnAfterMemoryRanOut) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need address space of their own";
  for (const Settings& settings : {prompt_settings(), small_settings()}) {
    EXPECT_TRUE(in_child([&] {
      Bench bench("llama");
      Session session = bench.session({settings}, 1 << 22);
      session.prefill(bench.tokens(9));
      session.decode(1);
      rlimit all{};
      ::getrlimit(RLIMIT_AS, &all);
      const std::vector<std::int32_t> long_prompt = bench.tokens(4 << 20, 2);
      rlimit little = all;
      little.rlim_cur = address_space() + (std::size_t{8} << 20);
      ::setrlimit(RLIMIT_AS, &little);
      bool refused = false;
      try {
        session.prefill(long_prompt);
      } catch (const Error& error) {
        refused = error.kind() == ErrorKind::out_of_memory;
      }
      ::setrlimit(RLIMIT_AS, &all);
      session.decode(2);
      Session control = bench.session({settings});
      control.prefill(bench.tokens(9));
      control.decode(1);
      control.decode(2);
      return refused && logits_of(session) == logits_of(control);
    }));
  }
}

TEST(ThreadsStep, AContextInTwoThreadsIsAnErrorAndNothingElse) {
  Bench bench("llama");
  Session one = bench.session({small_settings()});
  Session two = bench.spoken({small_settings()}, 20, 0);
  const std::string before = image(two);
  const auto prompt = bench.tokens(10);
  std::latch inside(1);
  std::latch tried(1);
  std::thread other([&] {
    inside.wait();
    expect_error([&] { two.decode(1); }, {"in use by another thread"}, ErrorKind::busy);
    expect_error([&] { bench.context.trim(); }, {"in use"}, ErrorKind::busy);
    tried.count_down();
  });
  one.prefill(prompt, {}, [&](std::int64_t, std::int64_t, const float*) {
    inside.count_down();
    tried.wait();
  });
  other.join();
  EXPECT_EQ(image(two), before);
  two.decode(1);  // free again
  EXPECT_EQ(two.length(), 21);
}

/// Stages that only record the calls.
class FakeStages final : public Stages {
 public:
  FakeStages(std::stop_source source, std::size_t stops_in)
      : source_(source), stops_in_(stops_in) {}
  void begin(std::span<const SequenceRun>) override { last = 0; }
  void entries(std::size_t layer, RowRange) override { call(layer); }
  void attend(std::size_t layer, RowRange) override { call(layer); }
  void feed_forward(std::size_t layer, RowRange) override { call(layer); }
  const float* logits(std::span<const RowRange>) override { return nullptr; }
  std::int64_t vocabulary() const override { return 0; }

  std::size_t last = 0;

 private:
  void call(std::size_t layer) {
    last = std::max(last, layer);
    if (layer == stops_in_) source_.request_stop();
  }
  std::stop_source source_;
  std::size_t stops_in_;
};

TEST(Step, AStopIsSeenBetweenLayers) {
  const std::vector<std::int32_t> tokens(100, 1);
  SequenceRun run;
  run.tokens = tokens;
  for (std::size_t layer = 0; layer < 10; ++layer) {
    std::stop_source source;
    FakeStages stages(source, layer);
    expect_error(
        [&] {
          decoder_step(stages, 10, {&run, 1}, source.get_token());
        },
        {"cancelled"}, ErrorKind::cancelled);
    EXPECT_EQ(stages.last, layer);
    const std::vector<Settings> settings(10, prompt_settings());
    std::stop_source again;
    FakeStages prompt_stages(again, layer);
    expect_error([&] { decoder_prompt(prompt_stages, settings, run, 16, again.get_token(), {}); },
                 {"cancelled"}, ErrorKind::cancelled);
    EXPECT_EQ(prompt_stages.last, layer);
  }
}

TEST(Step, AStoppedStepLeavesTheSessionUsable) {
  Bench bench("llama");
  Session session = bench.spoken({small_settings()}, 20, 0);
  const std::string before = image(session);
  std::stop_source source;
  source.request_stop();
  expect_error([&] { session.decode(1, source.get_token()); }, {"cancelled"}, ErrorKind::cancelled);
  expect_error([&] { session.prefill(bench.tokens(40), {}, {}, source.get_token()); },
               {"cancelled"}, ErrorKind::cancelled);
  EXPECT_EQ(image(session), before);
  session.decode(1);
}

}  // namespace
}  // namespace lca::test
