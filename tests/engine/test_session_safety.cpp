// What happens around a session file: two programs, and being killed.

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "engine/saved_session.h"
#include "engine/session_lock.h"

namespace lca::test {
namespace {

TEST(SessionLock, TheSecondProgramIsTold) {
  const ScratchFolder folder;
  const std::string path = folder / "s";
  {
    const SessionLock lock(path);
    expect_error([&] { SessionLock second(path); },
                 {path + ": is in use by another program", std::to_string(::getpid())});
    std::filesystem::create_symlink(folder / "s", folder / "link");
    write_file(path, "x");
    expect_error([&] { SessionLock second(folder / "link"); }, {"in use"});
    const SessionLock other(folder / "t");
  }
  EXPECT_FALSE(std::filesystem::exists(path + ".lock"));
  const SessionLock again(path);
}

TEST(SessionLock, WhatAKilledProgramLeftLocksNothing) {
  const ScratchFolder folder;
  const std::string path = folder / "s";
  write_file(path + ".lock", "4711\n");
  const SessionLock lock(path);
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
          // Only one at a time can make this folder.
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
  // Else no kill came while a file was being written, and this showed nothing.
  EXPECT_GT(leftovers, 10);
  EXPECT_GT(replaced, 5);
}

}  // namespace
}  // namespace lca::test
