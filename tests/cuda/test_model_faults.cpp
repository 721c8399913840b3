// A kernel that fails on the GPU for good: sessions there end with an Error, the process, the CPU's
// sessions and the engine go on. Each case is a process of its own, since its GPU cannot be used
// afterwards.
#include <lca/engine.h>

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cuda/fault.h"
#include "cuda/model_pair.h"
#include "engine/byte_tokenizer.h"
#include "engine/engine_state.h"
#include "formats/byte_files.h"

namespace lca::test {
namespace {

constexpr int kEndedWell = 42;
constexpr const char* kFaultLine =
    "the GPU failed \\(an illegal memory access was encountered\\); sessions on it are lost";

void fault_require(bool right, const std::string& what) {
  if (right) return;
  std::fprintf(stderr, "not so: %s\n", what.c_str());
  std::exit(1);
}

/// The error of a call, which must be one clear line; nothing where it went well.
std::optional<std::string> fault_line(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string line = error.what();
    fault_require(line.find('\n') == std::string::npos, "one line: " + line);
    fault_require(error.kind() == ErrorKind::internal, "its kind: " + line);
    fault_require(line.find("the GPU failed (") != std::string::npos &&
                      line.find("or use the CPU") != std::string::npos,
                  "it says what happened and what to do: " + line);
    return line;
  }
  return std::nullopt;
}

void fault_expected(const char* what, const std::function<void()>& call) {
  const std::optional<std::string> line = fault_line(call);
  fault_require(line.has_value(), std::string(what) + " fails");
  std::fprintf(stderr, "%s: %s\n", what, line->c_str());
}

Settings fault_settings() {
  Settings settings;
  settings.group = 4;
  settings.window = 8;
  settings.summary_queries = 4;
  return settings;
}

/// Sessions before, at and after the fault; `broken` is how they meet it.
void sessions_through_a_fault(const std::function<void(Session&, std::int32_t)>& broken) {
  {
    const GoldenModel golden("calm_deepseek_v2");
    const ScratchFolder folder;
    const auto gpu = load_on(golden, "cuda");
    const auto cpu = load_on(golden, "cpu");
    Context context(1), other(1);
    Random random(41);
    const std::vector<std::int32_t> tokens = random_tokens(random, *cpu, 40);
    const std::span<const std::int32_t> all(tokens);
    const SessionOptions options{.settings = {fault_settings()}};
    Session first(gpu, context, options), second(gpu, context, options);
    Session host(cpu, other, options), twin(cpu, other, options);
    for (Session* session : {&first, &second, &host, &twin}) session->prefill(all.first(20));
    first.mark();
    for (std::size_t i = 20; i < 24; ++i) first.decode(tokens[i]);  // captured and replayed
    const std::int64_t length = first.length();
    fault_provoke(nullptr);
    fault_expected("a step", [&] { broken(first, tokens[24]); });
    fault_require(first.length() == length, "a step that failed changed nothing");
    fault_expected("the next step", [&] { first.decode(tokens[24]); });
    fault_expected("another session", [&] { second.decode(tokens[20]); });
    fault_expected("a prompt", [&] { second.prefill(all.subspan(20, 9)); });
    fault_expected("saving", [&] { first.save(folder / "session"); });
    fault_expected("a new session", [&] {
      Session fresh(gpu, context, options);
      fresh.prefill(all.first(9));
    });
    fault_expected("a fork", [&] {
      Session fork = first.fork(20);
      fork.decode(tokens[20]);
    });
    fault_expected("another model", [&] { load_on(golden, "cuda"); });
    // The CPU has nothing to do with it.
    for (std::size_t i = 20; i < 30; ++i) host.decode(tokens[i]);
    for (std::size_t i = 20; i < 30; ++i) twin.decode(tokens[i]);
    fault_require(std::ranges::equal(host.logits(), twin.logits()), "the CPU goes on");
    Session loaded(load_on(golden, "cpu"), other, options);
    loaded.prefill(all);
    fault_require(std::isfinite(loaded.logits()[0]), "the CPU loads models");
  }
  // All that was on the GPU is closed; so is the process, in the ordinary way.
  std::exit(kEndedWell);
}

TEST(CudaFaults, EndTheSessionsOfTheirGpuAndNothingElse) {
  LCA_NEEDS_GPU();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      sessions_through_a_fault([](Session& session, std::int32_t token) { session.decode(token); }),
      ::testing::ExitedWithCode(kEndedWell), kFaultLine);
}

TEST(CudaFaults, InAPromptEndSessionsAlike) {
  LCA_NEEDS_GPU();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(sessions_through_a_fault([](Session& session, std::int32_t token) {
                const std::vector<std::int32_t> prompt(30, token);
                session.prefill(prompt);
              }),
              ::testing::ExitedWithCode(kEndedWell), kFaultLine);
}

void engine_through_a_fault() {
  {
    const auto model = load_on(GoldenModel("calm_llama"), "cuda");
    Context context(1);
    Engine engine(model, context, {.most_sessions = 4, .step_tokens = 64});
    engine.state().tokenizer = byte_tokenizer({"<end>"});
    std::vector<std::string> failures;
    const auto ask = [&] {
      Request request;
      request.prompt = {1, 2, 3, 4, 5};
      request.options.settings = {fault_settings()};
      request.generate.max_tokens = 100;
      RequestCallbacks callbacks;
      callbacks.failed = [&](const Error& why, RequestResult) {
        failures.emplace_back(why.what());
      };
      engine.submit(std::move(request), std::move(callbacks));
    };
    for (int i = 0; i < 3; ++i) ask();
    for (int i = 0; i < 6; ++i) engine.step();
    fault_require(engine.counts().decoding == 3, "three requests run");
    fault_provoke(nullptr);
    while (engine.step()) {
    }
    fault_require(failures.size() == 3, "all requests fail");
    // A later request is refused, or fails.
    if (!fault_line(ask)) {
      while (engine.step()) {
      }
      fault_require(failures.size() == 4, "a later request fails");
    }
    for (const std::string& line : failures) std::fprintf(stderr, "request: %s\n", line.c_str());
    fault_require(engine.counts().decoding + engine.counts().waiting == 0, "nothing is left");
  }
  std::exit(kEndedWell);
}

TEST(CudaFaults, FailTheRequestsOfAnEngineThatGoesOn) {
  LCA_NEEDS_GPU();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(engine_through_a_fault(), ::testing::ExitedWithCode(kEndedWell), kFaultLine);
}

}  // namespace
}  // namespace lca::test
