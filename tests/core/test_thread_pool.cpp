// The thread pool when the system is out of threads, or tasks throw.

#include "core/threads.h"

#include "support/sanitized.h"

#include <gtest/gtest.h>

#include <sys/resource.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

namespace lca {
namespace {

/// Bytes of address space that this process uses.
std::size_t address_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmSize:")) return std::stoull(line.substr(7)) * 1024;
  }
  return 0;
}

TEST(ThreadPoolDeath, WorksWithTheThreadsItGets) {
  if (test::kSanitized) GTEST_SKIP() << "the sanitizers reserve too many addresses for a limit";
  const auto work = [] {
    // Enough for some stacks of 8 MiB, not for 63.
    const std::size_t limit = address_bytes() + (std::size_t{100} << 20);
    const rlimit little{limit, limit};
    if (::setrlimit(RLIMIT_AS, &little) != 0) std::_Exit(1);
    ThreadPool pool(64);
    if (pool.size() < 1 || pool.size() >= 64) std::_Exit(2);
    std::atomic<int> sum{0};
    pool.run(1000, [&](std::int64_t task, int worker) {
      if (worker >= pool.size()) std::_Exit(3);
      sum += static_cast<int>(task);
    });
    std::_Exit(sum == 999 * 500 ? 0 : 4);
  };
  EXPECT_EXIT(work(), testing::ExitedWithCode(0), "");
}

TEST(ThreadsThreadPool, PassesOnThatMemoryRanOut) {
  ThreadPool pool(4);
  for (int round = 0; round < 50; ++round) {
    EXPECT_THROW(pool.run(100,
                          [](std::int64_t task, int) {
                            if (task % 7 == 3) throw std::bad_alloc();
                          }),
                 std::bad_alloc);
    std::atomic<int> done{0};
    pool.run(100, [&](std::int64_t, int) { ++done; });
    EXPECT_EQ(done, 100);
  }
}

}  // namespace
}  // namespace lca
