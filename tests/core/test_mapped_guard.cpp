// Files that are cut short, deleted or replaced while they are mapped.

#include "core/mapped_guard.h"

#include "core/error.h"
#include "core/file.h"
#include "core/threads.h"
#include "formats/byte_files.h"
#include "support/sanitized.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <deque>

namespace lca {
namespace {

using test::expect_error;
using test::ScratchFolder;
using test::write_file;

constexpr std::size_t kPages = 40;

std::size_t page() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

/// A file of pages full of ones.
std::filesystem::path ones(const ScratchFolder& folder, std::string_view name = "file") {
  write_file(folder / name, std::string(kPages * page(), '\1'));
  return folder / name;
}

void cut(const std::filesystem::path& path, std::size_t bytes) {
  ASSERT_EQ(::truncate(path.c_str(), static_cast<off_t>(bytes)), 0);
}

/// How many bytes from `first` on are one.
std::size_t count_ones(const MappedFile& file, std::size_t first = 0) {
  std::size_t count = 0;
  for (const std::byte byte : file.bytes().subspan(first)) count += byte == std::byte{1} ? 1 : 0;
  return count;
}

TEST(MappedGuard, ReadsZerosAndSaysSoWhereAFileIsCutShort) {
  const ScratchFolder folder;
  const auto path = ones(folder);
  const auto other_path = ones(folder, "other");
  const MappedFile file(path);
  const MappedFile other(other_path);
  EXPECT_EQ(count_ones(file), kPages * page());
  EXPECT_TRUE(file.intact());
  cut(path, 10 * page());
  EXPECT_EQ(count_ones(file), 10 * page());
  EXPECT_FALSE(file.intact());
  EXPECT_FALSE(mapped_all_intact());
  expect_error([&] { file.require_intact(); },
               {path.string(), "cut short by another program", "put the file back"}, ErrorKind::io);
  EXPECT_EQ(count_ones(other), kPages * page());
  other.require_intact();
}

TEST(MappedGuard, StaysLostWhereTheFileGrowsBack) {
  const ScratchFolder folder;
  const auto path = ones(folder);
  const MappedFile file(path);
  cut(path, 0);
  EXPECT_EQ(count_ones(file), 0u);
  ones(folder);
  EXPECT_FALSE(file.intact());
  EXPECT_TRUE(MappedFile(path).intact());
}

// The rest of a file's last page reads as zeros, without a signal.
TEST(MappedGuard, NoticesACutInsideTheLastPage) {
  const ScratchFolder folder;
  write_file(folder / "short", "some text");
  const MappedFile file(folder / "short");
  cut(folder / "short", 4);
  EXPECT_EQ(file.bytes()[5], std::byte{0});
  EXPECT_FALSE(file.intact());
  expect_error([&] { file.require_intact(); }, {"short: was cut short"}, ErrorKind::io);
}

TEST(MappedGuard, NoticesTheCutBeforeAnythingIsRead) {
  const ScratchFolder folder;
  const auto path = ones(folder);
  const MappedFile file(path);
  cut(path, 10 * page());
  EXPECT_FALSE(file.intact());
}

TEST(MappedGuard, DeletedAndReplacedFilesStayAsTheyWere) {
  const ScratchFolder folder;
  const auto path = ones(folder);
  const auto replaced_path = ones(folder, "replaced");
  const MappedFile file(path);
  const MappedFile replaced(replaced_path);
  std::filesystem::remove(path);
  write_file(folder / "new", "x");
  std::filesystem::rename(folder / "new", replaced_path);
  EXPECT_EQ(count_ones(file), kPages * page());
  EXPECT_EQ(count_ones(replaced), kPages * page());
  file.require_intact();
  replaced.require_intact();
}

TEST(MappedGuard, MovesWithTheFileAndGoesWithIt) {
  const ScratchFolder folder;
  const auto path = ones(folder);
  {
    MappedFile first(path);
    MappedFile second(std::move(first));
    MappedFile third(ones(folder, "third"));
    third = std::move(second);
    cut(path, page());
    EXPECT_EQ(count_ones(third), page());
    EXPECT_FALSE(third.intact());
  }
  EXPECT_TRUE(mapped_all_intact());
}

TEST(MappedGuard, GuardsAnyNumberOfFiles) {
  const ScratchFolder folder;
  std::deque<MappedFile> files;
  for (int i = 0; i < 300; ++i) {
    const std::string name = std::to_string(i);
    write_file(folder / name, std::string(2 * page(), '\1'));
    files.emplace_back(folder / name);
  }
  cut(folder / "250", page());
  cut(folder / "10", page());
  for (std::size_t i = 0; i < files.size(); ++i) {
    const bool whole = i != 10 && i != 250;
    EXPECT_EQ(count_ones(files[i]), (whole ? 2 : 1) * page());
    EXPECT_EQ(files[i].intact(), whole);
  }
  files.clear();
  EXPECT_TRUE(mapped_all_intact());
}

TEST(MappedGuard, TheCutIsTheErrorWhateverTheReaderFound) {
  const ScratchFolder folder;
  const auto path = ones(folder);
  const MappedFile file(path);
  EXPECT_EQ(mapped_read(file, [&] { return count_ones(file); }), kPages * page());
  expect_error([&] { mapped_read(file, [] { fail_input("file: is no such thing"); }); },
               {"is no such thing"});
  cut(path, page());
  expect_error([&] { mapped_read(file, [] { fail_input("file: is no such thing"); }); },
               {"cut short"}, ErrorKind::io);
  expect_error([&] { mapped_read(file, [] { return 1; }); }, {"cut short"}, ErrorKind::io);
}

TEST(ThreadsMappedGuard, ManyReadersRunIntoTheEndAtOnce) {
  for (int round = 0; round < 20; ++round) {
    const ScratchFolder folder;
    const auto path = ones(folder);
    const MappedFile file(path);
    ThreadPool pool(4);
    std::atomic<std::size_t> found{0};
    cut(path, 7 * page());
    pool.run(kPages, [&](std::int64_t task, int) {
      const std::size_t at = static_cast<std::size_t>(task) * page();
      found += file.bytes()[at] == std::byte{1} ? 1 : 0;
      found += file.bytes()[at + page() - 1] == std::byte{1} ? 1 : 0;
    });
    EXPECT_EQ(found, 2 * 7u);
    EXPECT_FALSE(file.intact());
  }
  EXPECT_TRUE(mapped_all_intact());
}

TEST(ThreadsMappedGuard, FilesComeAndGoWhileOthersAreCut) {
  const ScratchFolder folder;
  ThreadPool pool(4);
  std::atomic<int> wrong{0};
  pool.run(64, [&](std::int64_t task, int) {
    const auto path = folder / std::to_string(task);
    for (int round = 0; round < 5; ++round) {
      write_file(path, std::string(3 * page(), '\1'));
      const MappedFile file(path);
      if (count_ones(file) != 3 * page() || !file.intact()) ++wrong;
      if (::truncate(path.c_str(), static_cast<off_t>(page())) != 0) ++wrong;
      if (count_ones(file) != page() || file.intact()) ++wrong;
    }
  });
  EXPECT_EQ(wrong, 0);
}

/// Reads a mapped page beyond the end of a file that is not guarded.
void fault_elsewhere(const ScratchFolder& folder) {
  const int file = ::open(ones(folder, "unguarded").c_str(), O_RDONLY);
  void* memory = ::mmap(nullptr, kPages * page(), PROT_READ, MAP_PRIVATE, file, 0);
  if (memory == MAP_FAILED || ::ftruncate(file, 0) == 0) std::_Exit(3);  // read-only
  if (::truncate((folder / "unguarded").c_str(), 0) != 0) std::_Exit(4);
  std::_Exit(static_cast<volatile const char*>(memory)[0] == 0 ? 5 : 6);
}

class MappedGuardDeath : public testing::Test {
 protected:
  // Each in a process of its own, where nothing was mapped before.
  MappedGuardDeath() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(MappedGuardDeath, FaultsElsewhereStillKill) {
  if (test::kSanitized) GTEST_SKIP() << "the sanitizers handle the signal themselves";
  const ScratchFolder folder;
  const auto work = [&] {
    const MappedFile file(ones(folder));
    fault_elsewhere(folder);
  };
  EXPECT_EXIT(work(), testing::KilledBySignal(SIGBUS), "");
}

TEST_F(MappedGuardDeath, ASignalThatIsSentStillKills) {
  if (test::kSanitized) GTEST_SKIP() << "the sanitizers handle the signal themselves";
  const ScratchFolder folder;
  const auto work = [&] {
    const MappedFile file(ones(folder));
    ::raise(SIGBUS);
    std::_Exit(0);
  };
  EXPECT_EXIT(work(), testing::KilledBySignal(SIGBUS), "");
}

TEST_F(MappedGuardDeath, FaultsElsewhereGoToTheEarlierHandler) {
  const ScratchFolder folder;
  const auto work = [&] {
    struct sigaction action {};
    action.sa_handler = [](int) { std::_Exit(40); };
    ::sigaction(SIGBUS, &action, nullptr);
    const auto path = ones(folder);
    const MappedFile file(path);
    cut(path, 0);
    if (count_ones(file) != 0 || file.intact()) std::_Exit(1);
    fault_elsewhere(folder);
  };
  EXPECT_EXIT(work(), testing::ExitedWithCode(40), "");
}

TEST_F(MappedGuardDeath, TheEarlierHandlerReceivesTheAddress) {
  const ScratchFolder folder;
  const auto work = [&] {
    struct sigaction action {};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = [](int, siginfo_t* info, void*) {
      std::_Exit(info->si_code == BUS_ADRERR && info->si_addr != nullptr ? 42 : 43);
    };
    ::sigaction(SIGBUS, &action, nullptr);
    const MappedFile file(ones(folder));
    fault_elsewhere(folder);
  };
  EXPECT_EXIT(work(), testing::ExitedWithCode(42), "");
}

}  // namespace
}  // namespace lca
