// Memory over a long life: ten thousand decoded tokens, hundreds of sessions. scripts/memcheck.sh
// runs the suite Flat under valgrind too.

#include <lca/session.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "support/allocation_count.h"
#include "support/golden_model.h"
#include "support/sanitized.h"
#include "support/small_session.h"

namespace lca::test {
namespace {

// Sanitizers are slow and count no bytes; they look for leaks and wrong accesses all the same.
constexpr std::int64_t kTokens = kSanitized ? 1000 : 10000;
constexpr int kSessions = 200;

/// Groups of the usual size, so that pages of representatives fill as they do in a long life.
Settings flat_settings(MethodKind method) {
  Settings settings = small_settings(method);
  settings.group = 16;
  settings.window = 32;
  settings.sink = 4;
  return settings;
}

SessionOptions options_of(const Settings& settings) {
  SessionOptions options;
  options.settings = {settings};
  return options;
}

class Flat : public testing::TestWithParam<const char*> {};

/// Valgrind runs one thread at a time, and waits for the others' turns: there one is enough.
int threads() {
  const char* set = std::getenv("LCA_FLAT_THREADS");
  return set == nullptr ? 2 : std::atoi(set);
}

/// Decodes until `length` tokens.
void decode_to(Session& session, std::int64_t length) {
  const std::int64_t vocabulary = session.model().info().vocabulary;
  while (session.length() < length) {
    session.decode(static_cast<std::int32_t>(session.length() * 31 % vocabulary));
  }
}

// A buffer that is full doubles: it holds at most twice what is in it, as does the list of tokens.
TEST_P(Flat, TenThousandTokensTakeWhatTheLawSaysAndNoMore) {
  const auto model = GoldenModel(GetParam()).load();
  for (const MethodKind method : {MethodKind::lca, MethodKind::window}) {
    Context context(threads());
    Session session(model, context, options_of(flat_settings(method)));
    session.prefill(some_tokens(64, model->info().vocabulary));
    decode_to(session, 200);
    const std::int64_t before = allocated_bytes();
    const auto law_before = static_cast<std::int64_t>(session.cache_bytes());
    decode_to(session, kTokens);
    const std::int64_t grown = allocated_bytes() - before;
    const auto law = static_cast<std::int64_t>(session.cache_bytes()) - law_before;
    if (method == MethodKind::window) {
      EXPECT_EQ(law, 0);
    }
    const auto list = static_cast<std::int64_t>(2 * kTokens * sizeof(std::int32_t));
    std::cout << GetParam() << (method == MethodKind::lca ? " lca" : " window") << ": grew by "
              << grown << " bytes over " << kTokens - 200 << " tokens; the law: " << law
              << ", the tokens: at most " << list << "\n";
    EXPECT_LE(grown, 2 * law + list + 4096);
  }
}

TEST_P(Flat, TwoHundredSessionsLeaveNothingBehind) {
  const auto model = GoldenModel(GetParam()).load();
  Context context(threads());
  const auto tokens = some_tokens(60, model->info().vocabulary);
  std::int64_t before = 0;
  for (int i = 0; i < kSessions; ++i) {
    if (i == 20) before = allocated_bytes();  // what is made once is there
    Session session(model, context,
                    options_of(flat_settings(i % 2 == 0 ? MethodKind::lca : MethodKind::dense)));
    session.prefill(std::span(tokens).first(40 + static_cast<std::size_t>(i % 5)));
    decode_to(session, 60);
  }
  const std::int64_t grown = allocated_bytes() - before;
  std::cout << GetParam() << ": " << grown << " bytes more after " << kSessions << " sessions\n";
  // Threads finish their first job at their own time: a little may come late, but no session's.
  EXPECT_LE(grown, 4096);
}

TEST_P(Flat, ModelsThatAreClosedLeaveNothingBehind) {
  std::int64_t before = 0;
  for (int i = 0; i < 12; ++i) {
    if (i == 4) before = allocated_bytes();
    const auto model = GoldenModel(GetParam()).load();
    Context context(1);
    Session session(model, context, options_of(flat_settings(MethodKind::lca)));
    session.prefill(some_tokens(40, model->info().vocabulary));
  }
  EXPECT_LE(allocated_bytes() - before, 4096);
}

/// Allocations of each of 200 decode steps after many others.
std::vector<std::int64_t> allocations_per_step(const char* name, Precision precision,
                                               Positions positions) {
  const auto model = GoldenModel(name).load(precision);
  Context context(threads());
  Settings settings = flat_settings(MethodKind::lca);
  settings.positions = positions;
  Session session(model, context, options_of(settings));
  session.prefill(some_tokens(64, model->info().vocabulary));
  decode_to(session, 300);
  std::vector<std::int64_t> counts;
  while (session.length() < 500) {
    const std::int64_t before = allocations();
    decode_to(session, session.length() + 1);
    counts.push_back(allocations() - before);
  }
  return counts;
}

TEST_P(Flat, ADecodeStepAllocatesNothing) {
  if (!allocations_are_counted()) GTEST_SKIP() << "sanitizers have allocators of their own";
  for (const Precision precision : {Precision::f32, Precision::automatic}) {
    for (const Positions positions : {Positions::token, Positions::entry}) {
      std::vector<std::int64_t> counts = allocations_per_step(GetParam(), precision, positions);
      std::ranges::sort(counts);
      std::cout << GetParam() << (precision == Precision::f32 ? " f32" : " automatic")
                << ": allocations per step, median " << counts[counts.size() / 2] << ", most "
                << counts.back() << "\n";
      // But for the few steps in which a full buffer doubles.
      EXPECT_EQ(counts[counts.size() * 9 / 10], 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Flat,
                         testing::Values("llama", "gguf_llama_q4_1", "minicpm3", "deepseek_v2"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace lca::test
