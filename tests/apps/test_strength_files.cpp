// Files that are cut short while the program runs, full disks and read-only folders.

#include "apps/limited_program.h"
#include "apps/tiny_model.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>

namespace lca::test {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

/// Whether its only error is one line that contains `part`; normal output before it is allowed.
testing::AssertionResult ended_in_one_line(const Finished& finished, int code,
                                           const std::string& part) {
  const std::size_t at = finished.err.find("lca: error: ");
  if (finished.code == code && at != std::string::npos && finished.err.back() == '\n' &&
      std::ranges::count(finished.err.substr(at), '\n') == 1 &&
      finished.err.find(part, at) != std::string::npos) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << "code " << finished.code << ": " << finished.err;
}

// --- a model that is cut short, deleted or replaced ----------------------------------------------

class CutUnderUse : public testing::Test {
 protected:
  CutUnderUse() { model.write(); }
  void cut() const { fs::resize_file(model / "model.safetensors", 5000); }

  TinyModel model;
};

/// Standard input that stays open.
class HeldInput {
 public:
  explicit HeldInput(const fs::path& path) : path_(path) {
    if (::mkfifo(path.c_str(), 0600) != 0) throw std::runtime_error("no pipe");
    file_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  }
  ~HeldInput() { ::close(file_); }
  HeldInput(const HeldInput&) = delete;
  HeldInput& operator=(const HeldInput&) = delete;
  std::string path() const { return path_.string(); }
  void type(const std::string& line) const {
    ASSERT_EQ(::write(file_, line.data(), line.size()), static_cast<ssize_t>(line.size()));
  }

 private:
  fs::path path_;
  int file_ = -1;
};

TEST_F(CutUnderUse, ChatSaysSoBetweenTurns) {
  const HeldInput input(model / "input");
  Program chat({"chat", model.path(), "-n", "4", "--ignore-eos"}, Program::Output::caught,
               input.path());
  input.type("hello\n");
  ASSERT_TRUE(chat.wait_for_output());
  cut();
  input.type("and again\n");
  EXPECT_TRUE(ended_in_one_line(chat.finish(), 1, "model.safetensors: was cut short"));
}

TEST_F(CutUnderUse, RunSaysSoInTheMiddleOfAReply) {
  Program run({"run", model.path(), "-p", "hello", "-n", "1000000", "--ignore-eos"});
  ASSERT_TRUE(run.wait_for_output());
  cut();
  EXPECT_TRUE(ended_in_one_line(run.finish(), 1, "model.safetensors: was cut short"));
}

TEST_F(CutUnderUse, RunGoesOnWhereTheModelIsDeleted) {
  Program run({"run", model.path(), "-p", "hello", "-n", "400", "--ignore-eos"});
  ASSERT_TRUE(run.wait_for_output());
  for (const auto& entry : fs::directory_iterator(model.path())) fs::remove(entry.path());
  EXPECT_EQ(run.finish().code, 0);
}

// --- where results cannot be written -------------------------------------------------------------

/// Every command that writes a file, and its inputs.
class Writing : public testing::Test {
 protected:
  Writing() { model.write(); }

  std::map<std::string, Words> commands(const std::string& out) const {
    const std::string golden =
        std::string(LCA_SOURCE_DIR) + "/tests/golden/op/gqa_pool_mean_mean.safetensors";
    return {
        {"op", {"op", "attention", golden, out}},
        {"logits", {"logits", model.path(), "--tokens", "1,2,3,4,5,6,7,8", "--out", out}},
        {"demo", {"demo", "attention", "--max-length", "1K", "--out", out}},
    };
  }

  TinyModel model;
};

std::size_t files_in(const fs::path& folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder)) ++count;
  return count;
}

/// A file system of a few pages; needs to be root.
class TinyDisk {
 public:
  TinyDisk() : mounted_(::mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, "size=4k") == 0) {}
  ~TinyDisk() {
    if (mounted_) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }
  TinyDisk(const TinyDisk&) = delete;
  TinyDisk& operator=(const TinyDisk&) = delete;
  bool is_there() const { return mounted_; }
  const fs::path& path() const { return folder_.path(); }

 private:
  ScratchFolder folder_;
  bool mounted_;
};

TEST_F(Writing, AFullDiskIsOneLineAndNothingIsLeft) {
  const TinyDisk disk;
  if (!disk.is_there()) GTEST_SKIP() << "only root may mount a small file system";
  write_file(disk.path() / "full", std::string(4096, 'x'));
  for (const auto& [name, words] : commands(disk.path() / "out")) {
    const Finished finished = program_run(words);
    EXPECT_TRUE(ended_in_one_line(finished, 1, "No space left on device")) << name;
    EXPECT_EQ(files_in(disk.path()), 1u) << name;
  }
}

TEST_F(Writing, AFileThatMayNotGrowIsOneLineAndNothingIsLeft) {
  const ScratchFolder folder;
  write_file(folder / "out", "what was there");
  for (const auto& [name, words] : commands(folder / "out")) {
    const Finished finished = program_run_limited(RLIMIT_FSIZE, 200, words);
    EXPECT_TRUE(ended_in_one_line(finished, 1, "File too large")) << name;
    EXPECT_EQ(files_in(folder.path()), 1u) << name;
    EXPECT_EQ(read_file(folder / "out"), "what was there") << name;
  }
}

TEST_F(Writing, AReadOnlyDiskIsOneLineBeforeTheWork) {
  const ScratchFolder folder;
  if (::mount("tmpfs", folder.path().c_str(), "tmpfs", MS_RDONLY, "size=64k") != 0) {
    GTEST_SKIP() << "only root may mount a file system";
  }
  for (const auto& [name, words] : commands(folder / "out")) {
    EXPECT_TRUE(ended_in_one_line(program_run(words), 2, "Read-only file system")) << name;
    EXPECT_EQ(files_in(folder.path()), 0u) << name;
  }
  ::umount2(folder.path().c_str(), MNT_DETACH);
}

TEST_F(Writing, AFolderThatIsMissingIsOneLine) {
  const ScratchFolder folder;
  for (const auto& [name, words] : commands(folder / "absent/out")) {
    EXPECT_TRUE(ended_in_one_line(program_run(words), 2, "No such file or directory")) << name;
    EXPECT_EQ(folder.count(), 0u) << name;
  }
}

}  // namespace
}  // namespace lca::test
