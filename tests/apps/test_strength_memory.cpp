// Too little memory: whatever the limit, the program works or reports it in one line.

#include "apps/limited_program.h"
#include "apps/tiny_model.h"
#include "machine.h"
#include "support/sanitized.h"
#include "support/test_data.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace lca::test {
namespace {

using Words = std::vector<std::string>;

constexpr std::uint64_t kMegabyte = std::uint64_t{1} << 20;
constexpr std::uint64_t kPlenty = 8192 * kMegabyte;

Finished run_in(std::uint64_t bytes, const Words& words) {
  return program_run_limited(RLIMIT_AS, bytes, words);
}

/// The smallest limit, to a quarter of a megabyte, with which the program works.
std::uint64_t least_memory(const Words& words) {
  std::uint64_t low = kMegabyte;
  std::uint64_t high = kPlenty;
  while (high - low > kMegabyte / 4) {
    const std::uint64_t middle = low + (high - low) / 2;
    (run_in(middle, words).code == 0 ? high : low) = middle;
  }
  return high;
}

/// Tries limits from what the program needs to start to what `words` need, and a little more.
void sweep(const Words& words, std::uint64_t steps) {
  ASSERT_EQ(run_in(kPlenty, words).code, 0) << run_in(kPlenty, words).err;
  const std::uint64_t start = least_memory({"--version"});
  const std::uint64_t end = least_memory(words);
  std::uint64_t failures = 0;
  for (std::uint64_t i = 0; i <= steps; ++i) {
    const std::uint64_t limit = start + (end + end / 20 - start) * i / steps;
    const Finished finished = run_in(limit, words);
    if (finished.code == 0) continue;
    ++failures;
    ASSERT_TRUE(finished.code == 1 || finished.code == 2)
        << "code " << finished.code << " with " << limit << " bytes: " << finished.err;
    EXPECT_TRUE(finished.err.starts_with("lca: error: ")) << finished.err;
    EXPECT_EQ(std::ranges::count(finished.err, '\n'), 1) << finished.err;
    EXPECT_NE(finished.err.find("memory"), std::string::npos) << finished.err;
  }
  EXPECT_GT(failures, steps / 4);
}

class LittleMemory : public testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "the sanitizers reserve terabytes of addresses";
  }
};

TEST_F(LittleMemory, RunWorksOrSaysSoInOneLine) {
  TinyModel model;
  model.write();
  sweep({"run", model.path(), "-p", "hello", "-n", "8", "--threads", "4"}, 60);
}

TEST_F(LittleMemory, ALongerPromptWorksOrSaysSoInOneLine) {
  TinyModel model;
  model.write();
  const std::string tokens = model / "tokens.txt";
  std::string text;
  for (int i = 0; i < 3000; ++i) text += std::to_string(i % TinyModel::kVocabulary) + " ";
  write_file(tokens, text);
  sweep({"logits", model.path(), "--tokens-file", tokens, "--out", model / "logits.safetensors"},
        40);
}

TEST_F(LittleMemory, OperatorsWorkOrSaySoInOneLine) {
  const ScratchFolder folder;
  sweep({"op", "attention", std::string(LCA_SOURCE_DIR) + "/tests/golden/op/mla_long.safetensors",
         folder / "out.safetensors"},
        40);
}

TEST_F(LittleMemory, TheRealModelWorksOrSaysSoInOneLine) {
  const auto path = smollm2_path();
  if (!path) GTEST_SKIP() << kNoTestData;
  sweep({"run", path->string(), "-p", "hello", "-n", "2", "--threads", "2"}, 40);
}

// --- what is available ---------------------------------------------------------------------------

/// Fake /proc and /sys.
class MemoryAvailable : public testing::Test {
 protected:
  void file(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((root / name).parent_path());
    write_file(root / name, text);
  }
  void machine_has(std::int64_t megabytes) const {
    file("proc/meminfo", "MemTotal:       99999999 kB\nMemFree:  1 kB\nMemAvailable:   " +
                             std::to_string(megabytes * 1024) + " kB\n");
  }
  /// The answer in megabytes.
  std::int64_t available() const {
    const std::int64_t bytes = cli::memory_available_in(root.path());
    return bytes < 0 ? bytes : bytes / static_cast<std::int64_t>(kMegabyte);
  }
  static std::string megabytes(std::uint64_t count) {
    return std::to_string(count * kMegabyte) + "\n";
  }

  ScratchFolder root;
};

TEST_F(MemoryAvailable, IsWhatTheMachineHas) {
  EXPECT_EQ(available(), -1);
  machine_has(700);
  EXPECT_EQ(available(), 700);
  file("proc/meminfo", "MemAvailable:   99999999999999999999999 kB\n");
  EXPECT_EQ(available(), -1);
  file("proc/meminfo", "MemAvailable:   lots\n");
  EXPECT_EQ(available(), -1);
}

TEST_F(MemoryAvailable, IsLessInAGroup) {
  machine_has(700);
  file("proc/self/cgroup", "0::/user/work\n");
  EXPECT_EQ(available(), 700);
  file("sys/fs/cgroup/user/work/memory.max", megabytes(300));
  file("sys/fs/cgroup/user/work/memory.current", megabytes(100));
  EXPECT_EQ(available(), 200);
  file("sys/fs/cgroup/user/memory.max", megabytes(250));
  file("sys/fs/cgroup/user/memory.current", megabytes(150));
  EXPECT_EQ(available(), 100);
  file("sys/fs/cgroup/user/work/memory.max", "max\n");
  EXPECT_EQ(available(), 100);
  file("sys/fs/cgroup/user/memory.max", "max\n");
  EXPECT_EQ(available(), 700);
}

TEST_F(MemoryAvailable, CountsReclaimableFilePages) {
  machine_has(700);
  file("proc/self/cgroup", "0::/\n");
  file("sys/fs/cgroup/memory.max", megabytes(300));
  file("sys/fs/cgroup/memory.current", megabytes(280));
  file("sys/fs/cgroup/memory.stat",
       "anon 5\nfile 6\ninactive_anon 7\ninactive_file " + megabytes(80) + "active_file 9\n");
  EXPECT_EQ(available(), 100);
  file("sys/fs/cgroup/memory.stat", "inactive_file 99999999999999\n");
  EXPECT_EQ(available(), 300);
}

TEST_F(MemoryAvailable, IsNeverNegative) {
  machine_has(700);
  file("proc/self/cgroup", "0::/work\n");
  file("sys/fs/cgroup/work/memory.max", megabytes(100));
  file("sys/fs/cgroup/work/memory.current", megabytes(130));
  EXPECT_EQ(available(), 0);
}

TEST_F(MemoryAvailable, ReadsGroupsOfVersion1) {
  machine_has(700);
  file("proc/self/cgroup", "12:cpu,cpuacct:/x\n4:hugetlb,memory:/docker/abc\n0::/\n");
  file("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", megabytes(400));
  file("sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", megabytes(100));
  file("sys/fs/cgroup/memory/docker/abc/memory.stat", "total_inactive_file " + megabytes(50));
  file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  file("sys/fs/cgroup/memory/memory.usage_in_bytes", megabytes(100));
  EXPECT_EQ(available(), 350);
}

TEST_F(MemoryAvailable, AContainerSeesItsGroupAtTheTop) {
  machine_has(700);
  file("proc/self/cgroup", "0::/not/visible/here\nbroken line\n\n7:memory\n");
  file("sys/fs/cgroup/memory.max", megabytes(64));
  file("sys/fs/cgroup/memory.current", megabytes(4));
  EXPECT_EQ(available(), 60);
  file("proc/self/cgroup", "0::/../../elsewhere\n");
  EXPECT_EQ(available(), 60);
}

TEST(MemoryAvailableHere, IsAtMostWhatTheMachineHas) {
  EXPECT_GT(cli::memory_available(), 0);
  EXPECT_LE(cli::memory_available(), cli::memory_available_in("/") + (std::int64_t{1} << 30));
}

}  // namespace
}  // namespace lca::test
