// Session files with concurrent programs, and programs that are killed.

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "engine/saved_session.h"
#include "engine/session_lock.h"

namespace lca::test {
namespace {

TEST(SessionSafetyDeathTest, AModelThatWasReadLoadsSessionsWithoutASignalHandler) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a fresh process, which has mapped nothing
  const auto handler = [] {
    struct sigaction action {};
    ::sigaction(SIGBUS, nullptr, &action);
    return action.sa_handler;
  };
  const auto load = [&](FileAccess of_model, FileAccess of_session) {
    const auto before = handler();
    ModelOptions options;
    options.path = GoldenModel("llama").path().string();
    options.precision = Precision::f32;
    options.access = of_model;
    const std::string file = std::string(LCA_SOURCE_DIR) + "/tests/engine/version1_llama.session";
    Context context(1);
    const Session session = Session::load(Model::load(options), context, file);
    if (of_session == FileAccess::map) session_read(file);
    std::_Exit(session.length() > 0 && handler() == before ? 0 : 1);
  };
  EXPECT_EXIT(load(FileAccess::read, FileAccess::read), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(load(FileAccess::read, FileAccess::map), testing::ExitedWithCode(1), "");
}

TEST(SessionLock, TheSecondProgramGetsAnError) {
  const ScratchFolder folder;
  const std::string path = folder / "s";
  {
    const SessionLock lock(path);
    expect_error([&] { SessionLock second(path); },
                 {path + ": is in use by another program", std::to_string(::getpid())},
                 ErrorKind::busy);
    std::filesystem::create_symlink(folder / "s", folder / "link");
    write_file(path, "x");
    expect_error([&] { SessionLock second(folder / "link"); }, {"in use"}, ErrorKind::busy);
    const SessionLock other(folder / "t");
  }
  EXPECT_EQ(folder.count(), 2u) << "the session and the link";
  const SessionLock again(path);
}

TEST(SessionLock, IsReadableByItsOwnerAlone) {
  const ScratchFolder folder;
  const SessionLock lock(folder / "s");
  EXPECT_EQ(std::filesystem::status(lock.path()).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

// `--session Cargo` in a Rust project must not touch its Cargo.lock.
TEST(SessionLock, LeavesOtherProgramsLocksAlone) {
  const ScratchFolder folder;
  write_file(folder / "Cargo.lock", "version = 4\n");
  { const SessionLock lock(folder / "Cargo"); }
  EXPECT_EQ(read_file(folder / "Cargo.lock"), "version = 4\n");
}

TEST(SessionLock, RefusesAFileOfItsNameThatIsNotALock) {
  const ScratchFolder folder;
  const std::string path = folder / "s";
  const std::filesystem::path place = session_lock_path(path);
  for (const std::string& text : {std::string("my notes\n"), std::string("4711\n"),
                                  "lca session lock\n" + std::string(100, 'x')}) {
    write_file(place, text);
    expect_error([&] { SessionLock lock(path); }, {place.string(), "is in the way"});
    EXPECT_EQ(read_file(place), text);
  }
  std::filesystem::remove(place);
  write_file(folder / "elsewhere", "");
  std::filesystem::create_symlink(folder / "elsewhere", place);
  expect_error([&] { SessionLock lock(path); }, {"no session can be kept there"});
  EXPECT_TRUE(std::filesystem::is_symlink(place));
}

TEST(SessionLock, DoesNotRemoveALockThatTookItsPlace) {
  const ScratchFolder folder;
  const std::string path = folder / "s";
  auto first = std::make_unique<SessionLock>(path);
  std::filesystem::remove(first->path());
  const SessionLock second(path);
  first.reset();
  EXPECT_TRUE(std::filesystem::exists(second.path()));
}

TEST(SessionLock, WhatAKilledProgramLeftLocksNothing) {
  const ScratchFolder folder;
  const std::string path = folder / "s";
  for (const char* left : {"lca session lock\nprocess 4711\n", ""}) {
    write_file(session_lock_path(path), left);
    { const SessionLock lock(path); }
    EXPECT_EQ(folder.count(), 0u);
  }
}

TEST(SessionLock, APlaceWhereNothingCanBeKeptIsFoundOutAtOnce) {
  const ScratchFolder folder;
  expect_error([&] { SessionLock lock(folder / "no/s"); }, {"no session can be kept there"});
  expect_error([&] { SessionLock lock("/proc/s"); }, {"/proc/s: no session can be kept there"});
}

TEST(SessionLock, ManyProgramsInARaceNeverHoldItTogether) {
  const ScratchFolder folder;
  const std::string path = folder / "s";
  const std::string holding = folder / "holding";
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      int bad = 0;
      for (int round = 0; round < 300; ++round) {
        try {
          const SessionLock lock(path);
          // Only one process at a time can create this folder.
          if (::mkdir(holding.c_str(), 0700) != 0) ++bad;
          ::rmdir(holding.c_str());
        } catch (const Error&) {
          ::sched_yield();
        }
      }
      ::_exit(bad > 0 ? 1 : 0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
}

TEST(SessionSafety, AKillAtAnyMomentLeavesTheOldOrTheNewSession) {
  const ScratchFolder folder;
  const std::string path = folder / "s";
  Bench bench("llama");
  Session first = bench.spoken({dense_settings()}, 900, 0);
  Session second = first.fork(900);
  second.decode(3);
  first.save(path);
  std::mt19937 random(11);
  int replaced = 0;
  int leftovers = 0;
  for (int round = 0; round < 100; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int i = 0;; ++i) (i % 2 == 0 ? second : first).save(path);
    }
    ::usleep(static_cast<useconds_t>(random() % 20000));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_EQ(WTERMSIG(status), SIGKILL);
    const Session found = Session::load(bench.model, bench.context, path);
    ASSERT_TRUE(found.length() == 900 || found.length() == 901) << round;
    const Session& same = found.length() == 900 ? first : second;
    ASSERT_EQ(found.tokens(), same.tokens());
    ASSERT_EQ(logits_of(found), logits_of(same));
    replaced += found.length() == 901 ? 1 : 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      if (entry.path().filename() == "s") continue;
      std::filesystem::remove(entry.path());
      ++leftovers;
    }
  }
  // Otherwise no kill came while a file was being written, and the test shows nothing.
  EXPECT_GT(leftovers, 10);
  EXPECT_GT(replaced, 5);
}

}  // namespace
}  // namespace lca::test
