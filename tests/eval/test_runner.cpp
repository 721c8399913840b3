// Replies to many prompts: the same as one by one, in any order, made lazily.

#include "engine/reply.h"
#include "eval/runner.h"
#include "support/small_session.h"
#include "tiny_loaded.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace lca::test {
namespace {

using eval::EvalPrompt;
using eval::EvalReply;
using eval::replies_run;

struct RunnerBench {
  RunnerBench() {
    model = tiny_loaded(tiny);
    options.session.settings = {small_settings()};
    options.session.chunk = 16;
  }

  EvalPrompt prompt(std::size_t index) const {
    const auto length = static_cast<std::int64_t>(5 + 13 * (index % 7));
    return {some_tokens(length, TinyModel::kVocabulary, static_cast<std::uint32_t>(index)),
            static_cast<std::int64_t>(4 + index % 3)};
  }
  Generated alone(std::size_t index) {
    Session session(model, context, options.session);
    GenerateOptions generate;
    const EvalPrompt made = prompt(index);
    generate.max_tokens = made.max_tokens;
    generate.end_tokens = model->end_tokens();
    return lca::generate(session, made.ids, generate);
  }

  TinyModel tiny;
  std::shared_ptr<const Model> model;
  Context context{1};
  eval::RunnerOptions options;
};

TEST(Runner, RepliesAreThoseOfEachPromptAlone) {
  RunnerBench bench;
  std::vector<std::size_t> which = {3, 1, 4, 15, 9, 2, 6, 5, 30, 35, 8, 97};
  std::vector<std::size_t> made;
  std::set<std::size_t> done;
  eval::RunnerProgress last;
  bench.options.most_sessions = 3;
  bench.options.progress = [&](const eval::RunnerProgress& progress) { last = progress; };
  replies_run(
      bench.model, bench.context, which,
      [&](std::size_t i) {
        made.push_back(i);
        return bench.prompt(i);
      },
      [&](std::size_t i, EvalReply reply) {
        EXPECT_TRUE(done.insert(i).second) << i;
        const Generated alone = bench.alone(i);
        EXPECT_EQ(reply.text, alone.text) << i;
        EXPECT_EQ(reply.tokens, alone.tokens) << i;
        EXPECT_EQ(reply.prompt_tokens, alone.prompt_tokens) << i;
        EXPECT_EQ(reply.ended, alone.reason == StopReason::end_token) << i;
      },
      bench.options);
  EXPECT_EQ(made, which);
  EXPECT_EQ(done.size(), which.size());
  EXPECT_EQ(last.done, which.size());
  EXPECT_EQ(last.total, which.size());
  std::int64_t read = 0;
  for (const std::size_t i : which) read += std::ssize(bench.prompt(i).ids);
  EXPECT_EQ(last.read_tokens, read);
}

TEST(Runner, PromptsAreMadeOnlyWhenTheyAreNeeded) {
  RunnerBench bench;
  bench.options.most_sessions = 2;
  std::vector<std::size_t> which(400);
  std::iota(which.begin(), which.end(), 0u);
  constexpr std::int64_t kLength = 200;
  std::size_t made = 0, done = 0, ahead = 0;
  replies_run(
      bench.model, bench.context, which,
      [&](std::size_t i) {
        ahead = std::max(ahead, ++made - done);
        return EvalPrompt{
            some_tokens(kLength, TinyModel::kVocabulary, static_cast<std::uint32_t>(i)), 2};
      },
      [&](std::size_t, const EvalReply&) { ++done; }, bench.options);
  EXPECT_EQ(done, which.size());
  EXPECT_LT(ahead, 100u);
}

TEST(Runner, AStopKeepsWhatIsDone) {
  RunnerBench bench;
  std::stop_source stop;
  bench.options.stop = stop.get_token();
  bench.options.most_sessions = 1;
  std::vector<std::size_t> which(50);
  std::iota(which.begin(), which.end(), 0u);
  std::size_t done = 0;
  try {
    replies_run(
        bench.model, bench.context, which, [&](std::size_t i) { return bench.prompt(i); },
        [&](std::size_t, const EvalReply&) {
          if (++done == 3) stop.request_stop();
        },
        bench.options);
    ADD_FAILURE() << "the run was not stopped";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::cancelled);
  }
  EXPECT_GE(done, 3u);
  EXPECT_LT(done, 20u);
}

TEST(Runner, ThePromptThatFailsEndsTheRun) {
  RunnerBench bench;
  const std::vector<std::size_t> which = {0, 1, 2};
  const auto run = [&](std::vector<std::int32_t> ids) {
    replies_run(
        bench.model, bench.context, which,
        [&](std::size_t i) {
          return i == 1 ? EvalPrompt{ids, 2} : bench.prompt(i);
        },
        [](std::size_t, const EvalReply&) {}, bench.options);
  };
  expect_error([&] { run({}); }, {});
  expect_error([&] { run({5, TinyModel::kVocabulary}); }, {"807"});
  replies_run(
      bench.model, bench.context, {}, [](std::size_t) { return EvalPrompt(); },
      [](std::size_t, const EvalReply&) { ADD_FAILURE(); }, bench.options);
}

}  // namespace
}  // namespace lca::test
