// Memory that runs out while a prompt is read layer by layer.

#include <gtest/gtest.h>

#include "engine/saved_session.h"
#include "support/allocation_count.h"

namespace lca::test {
namespace {

// Chunks of few rows: oneDNN, which may crash, is not called.
TEST(StepMemory, EveryAllocationMayFailWhileAPromptWaitsForItsEnd) {
  if (!allocations_are_counted()) GTEST_SKIP() << "sanitizers have allocators of their own";
  Bench bench("llama");
  const auto prompt = bench.tokens(40, 3);
  const auto begun = [&](Context& context) {
    Session session(bench.model, context, {{prompt_settings()}, 8});
    session.prefill(bench.tokens(30));
    session.decode(1);
    return session;
  };
  Context other(1);
  Session control = begun(other);
  const std::string before = image(control);
  control.prefill(prompt);
  const std::string after = image(control);
  std::int64_t failures = 0;
  for (std::int64_t allowed = 0;; ++allowed) {
    Context context(1);
    Session session = begun(context);
    context.trim();
    bool failed = false;
    allocation_fail_after(allowed);
    try {
      session.prefill(prompt);
    } catch (const Error& error) {
      allocation_fail_after(-1);
      failed = true;
      EXPECT_EQ(error.kind(), ErrorKind::out_of_memory) << error.what();
    }
    allocation_fail_after(-1);
    if (!failed) break;
    ++failures;
    ASSERT_EQ(image(session), before) << allowed;
    session.prefill(prompt);
    ASSERT_EQ(image(session), after) << allowed;
  }
  EXPECT_GT(failures, 20);
}

}  // namespace
}  // namespace lca::test
