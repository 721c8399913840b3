#include "core/file.h"

#include "formats/byte_files.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <thread>

namespace lca {
namespace {

using test::bytes_of;
using test::expect_error;
using test::read_file;
using test::ScratchFolder;
using test::write_file;

/// Permissions do not apply to root, so a test of them runs as another user.
class Unprivileged {
 public:
  Unprivileged() : changed_(::geteuid() == 0 && ::seteuid(65534) == 0) {}
  ~Unprivileged() {
    if (changed_ && ::seteuid(0) != 0) std::abort();
  }
  Unprivileged(const Unprivileged&) = delete;
  Unprivileged& operator=(const Unprivileged&) = delete;
  bool is_so() const { return ::geteuid() != 0; }

 private:
  bool changed_;
};

std::string content(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, ShowsTheWholeFile) {
  const ScratchFolder folder;
  write_file(folder / "in", "some bytes");
  EXPECT_EQ(content(MappedFile(folder / "in")), "some bytes");
}

TEST(MappedFile, TakesAnEmptyFile) {
  const ScratchFolder folder;
  write_file(folder / "in", "");
  EXPECT_TRUE(MappedFile(folder / "in").bytes().empty());
}

TEST(MappedFile, MovesWithItsBytes) {
  const ScratchFolder folder;
  write_file(folder / "a", "first");
  write_file(folder / "b", "second");
  MappedFile a(folder / "a");
  MappedFile b(std::move(a));
  EXPECT_EQ(content(b), "first");
  EXPECT_TRUE(a.bytes().empty());  // NOLINT(bugprone-use-after-move): that is the promise
  b = MappedFile(folder / "b");
  EXPECT_EQ(content(b), "second");
}

TEST(MappedFile, NamesAFileThatIsAbsent) {
  const ScratchFolder folder;
  expect_error([&] { MappedFile file(folder / "absent"); }, {"absent: No such file"},
               ErrorKind::not_found);
  expect_error([&] { MappedFile file(""); }, {"No such file"}, ErrorKind::not_found);
}

TEST(MappedFile, RefusesFoldersPipesSocketsAndDevicesWithoutWaiting) {
  const ScratchFolder folder;
  expect_error([&] { MappedFile file(folder.path()); }, {"is a folder, not a file"});
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_error([&] { MappedFile file(folder / "pipe"); }, {"pipe: is a pipe, not a file"});
  expect_error([&] { MappedFile file("/dev/zero"); }, {"/dev/zero: is a device, not a file"});

  const int number = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (folder / "socket").c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(number, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  expect_error([&] { MappedFile file(folder / "socket"); }, {"socket"});
  ::close(number);
}

TEST(MappedFile, NamesAFileThatMayNotBeRead) {
  const ScratchFolder folder;
  write_file(folder / "secret", "x");
  ASSERT_EQ(::chmod((folder / "secret").c_str(), 0), 0);
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  const Unprivileged user;
  if (!user.is_so()) GTEST_SKIP() << "root can read everything";
  expect_error([&] { MappedFile file(folder / "secret"); }, {"secret: Permission denied"});
}

TEST(MappedFile, KeepsAHostileNameOnOneLine) {
  expect_error([] { MappedFile file("no\nsuch\x1b[2Jfile\xff"); },
               {"no\\x0asuch\\x1b[2Jfile\\xff: No such file"}, ErrorKind::not_found);
}

TEST(FileWriter, PutsTheFileInPlaceOnlyAtCommit) {
  const ScratchFolder folder;
  {
    FileWriter writer(folder / "out");
    writer.write(bytes_of("one "));
    writer.write({});
    writer.write(bytes_of("two"));
    EXPECT_FALSE(std::filesystem::exists(folder / "out"));
    writer.commit();
    EXPECT_EQ(read_file(folder / "out"), "one two");
  }
  EXPECT_EQ(read_file(folder / "out"), "one two");
  EXPECT_EQ(folder.count(), 1u);
}

TEST(FileWriter, LeavesNothingBehindWithoutCommit) {
  const ScratchFolder folder;
  write_file(folder / "out", "old");
  {
    FileWriter writer(folder / "out");
    writer.write(bytes_of("new"));
  }
  EXPECT_EQ(read_file(folder / "out"), "old");
  EXPECT_EQ(folder.count(), 1u);
}

TEST(FileWriter, ReplacesAnOlderFile) {
  const ScratchFolder folder;
  write_file(folder / "out", "an older and longer file");
  FileWriter writer(folder / "out");
  writer.write(bytes_of("new"));
  writer.commit();
  EXPECT_EQ(read_file(folder / "out"), "new");
  EXPECT_EQ(folder.count(), 1u);
}

TEST(FileWriter, WritesThroughASymbolicLink) {
  const ScratchFolder folder;
  write_file(folder / "target", "old");
  std::filesystem::create_symlink(folder / "target", folder / "link");
  FileWriter writer(folder / "link");
  writer.write(bytes_of("new"));
  writer.commit();
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(read_file(folder / "target"), "new");
}

TEST(FileWriter, TakesANameAsLongAsNamesMayBe) {
  const ScratchFolder folder;
  const std::string name(255, 'x');
  FileWriter writer(folder / name);
  writer.commit();
  EXPECT_TRUE(std::filesystem::exists(folder / name));
}

TEST(ThreadsFileWriter, ManyWorkInOneFolder) {
  const ScratchFolder folder;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&folder, i] {
      FileWriter writer(folder / "out");
      writer.write(bytes_of(std::string(1000, static_cast<char>('a' + i))));
      writer.commit();
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string result = read_file(folder / "out");
  EXPECT_EQ(result, std::string(1000, result.at(0)));  // one of them, whole
  EXPECT_EQ(folder.count(), 1u);
}

TEST(FileWriter, SaysBadInputWhereThePathCannotBeCreated) {
  const ScratchFolder folder;
  write_file(folder / "file", "x");
  expect_error([&] { FileWriter writer(folder / "absent/out"); },
               {"absent/out", "No such file or directory"});
  expect_error([&] { FileWriter writer(folder / "file/out"); }, {"Not a directory"});
  expect_error([&] { FileWriter writer(folder.path()); }, {"is a folder, not a file"});
  expect_error([&] { FileWriter writer(folder / "new/"); }, {"folder"});
  expect_error([&] { FileWriter writer(""); }, {"output path is empty"});
  expect_error([&] { FileWriter writer(folder / std::string(300, 'x')); }, {"File name too long"});
  EXPECT_EQ(folder.count(), 1u);
}

TEST(FileWriter, NeverReplacesADeviceOrAPipe) {
  expect_error([] { FileWriter writer("/dev/null"); }, {"/dev/null: is a device, not a file"});
  const ScratchFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_error([&] { FileWriter writer(folder / "pipe"); }, {"is a pipe, not a file"});
}

TEST(FileWriter, SaysBadInputWhereTheFolderMayNotBeWritten) {
  const ScratchFolder folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0555), 0);
  const Unprivileged user;
  if (!user.is_so()) GTEST_SKIP() << "root can write everywhere";
  expect_error([&] { FileWriter writer(folder / "out"); }, {"out", "Permission denied"});
}

TEST(FileWriter, SaysFailureAndLeavesNothingWhereTheDiskIsFull) {
  const ScratchFolder folder;
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  expect_error(
      [&] {
        FileWriter writer(folder / "out");
        writer.write(bytes_of(std::string(10000, 'x')));
      },
      {"out: cannot be written: File too large"}, ErrorKind::io);
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(folder.count(), 0u);
}

mode_t mode_of(const std::filesystem::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
}

/// The umask while a test runs.
class Umask {
 public:
  explicit Umask(mode_t mask) : before_(::umask(mask)) {}
  ~Umask() { ::umask(before_); }
  Umask(const Umask&) = delete;
  Umask& operator=(const Umask&) = delete;

 private:
  mode_t before_;
};

/// The mode of the one hidden file in a folder: a writer's temporary.
mode_t temporary_mode(const ScratchFolder& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (entry.path().filename().native().starts_with(".")) return mode_of(entry.path());
  }
  return 0;
}

void write_once(const std::filesystem::path& path, FileMode policy = FileMode::usual) {
  FileWriter writer(path, policy);
  writer.write(bytes_of("new"));
  writer.commit();
}

TEST(FileWriter, GivesANewFileWhatTheUmaskAllows) {
  const ScratchFolder folder;
  for (const mode_t mask : {022, 077, 0}) {
    const Umask umask(mask);
    const auto path = folder / std::to_string(mask);
    write_once(path);
    EXPECT_EQ(mode_of(path), 0666 & ~mask);
  }
}

TEST(FileWriter, KeepsAPrivateFilePrivateFromTheFirstByte) {
  const ScratchFolder folder;
  const Umask umask(0);
  FileWriter writer(folder / "out", FileMode::owner_only);
  writer.write(bytes_of("secret"));
  EXPECT_EQ(temporary_mode(folder), 0600u);
  writer.commit();
  EXPECT_EQ(mode_of(folder / "out"), 0600u);
}

TEST(FileWriter, KeepsTheModeOfAFileItReplaces) {
  const ScratchFolder folder;
  const Umask umask(022);
  for (const FileMode policy : {FileMode::usual, FileMode::owner_only}) {
    for (const mode_t mode : {0600, 0640, 0666, 0444, 0755}) {
      const auto path = folder / "out";
      write_file(path, "old");
      ASSERT_EQ(::chmod(path.c_str(), mode), 0);
      {
        FileWriter writer(path, policy);
        EXPECT_EQ(temporary_mode(folder), 0600u);
        writer.write(bytes_of("new"));
        writer.commit();
      }
      EXPECT_EQ(mode_of(path), mode);
      EXPECT_EQ(read_file(path), "new");
      std::filesystem::remove(path);
    }
  }
}

TEST(FileWriter, KeepsTheOwnerAndGroupOfAFileItReplaces) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can change the owner of files";
  const ScratchFolder folder;
  const auto path = folder / "out";
  write_file(path, "old");
  ASSERT_EQ(::chown(path.c_str(), 65534, 65533), 0);
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  write_once(path);
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 65534u);
  EXPECT_EQ(info.st_gid, 65533u);
  EXPECT_EQ(mode_of(path), 0640u);
}

TEST(FileWriter, GivesAnotherGroupNothingWhereTheOldOneCannotBeKept) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can change its user";
  const ScratchFolder folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0777), 0);
  const auto path = folder / "out";
  write_file(path, "old");
  ASSERT_EQ(::chown(path.c_str(), 65533, 65533), 0);
  ASSERT_EQ(::chmod(path.c_str(), 0664), 0);
  const Unprivileged user;
  if (!user.is_so()) GTEST_SKIP() << "root keeps every group";
  write_once(path);
  EXPECT_EQ(mode_of(path), 0644u);
}

TEST(FileWriter, RefusesMoreAfterCommit) {
  const ScratchFolder folder;
  FileWriter writer(folder / "out");
  writer.commit();
  expect_error([&] { writer.write(bytes_of("x")); }, {"is complete"}, ErrorKind::internal);
  expect_error([&] { writer.commit(); }, {"is complete"}, ErrorKind::internal);
}

}  // namespace
}  // namespace lca
