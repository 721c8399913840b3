#include "core/file.h"

#include "core/descriptor.h"
#include "core/error.h"
#include "core/text.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <random>
#include <system_error>
#include <utility>

namespace lca {
namespace {

std::string error_text(int code) { return std::generic_category().message(code); }

std::string printable(const std::filesystem::path& path) { return path_printable(path.native()); }

const char* file_kind(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

/// The descriptor, or the error's number negated.
int open_retrying(const std::filesystem::path& path, int flags, mode_t mode = 0) {
  for (;;) {
    const int number = ::open(path.c_str(), flags | O_CLOEXEC, mode);
    if (number >= 0) return number;
    if (errno != EINTR) return -errno;
  }
}

/// 0 or the error. File systems that cannot sync are not an error: there is nothing more to do.
int sync_descriptor(int number) {
  while (::fsync(number) != 0) {
    if (errno == EINTR) continue;
    if (errno == EINVAL || errno == ENOTSUP || errno == EROFS) return 0;
    return errno;
  }
  return 0;
}

void unmap(std::span<const std::byte> bytes) {
  if (!bytes.empty()) ::munmap(const_cast<std::byte*>(bytes.data()), bytes.size());
}

/// Fills `memory` from the beginning of a file; throws Error where there is less.
void read_whole(int descriptor, std::span<std::byte> memory, const std::filesystem::path& path) {
  constexpr std::size_t kLargestRead = std::size_t{1} << 30;  // the kernel reads less than 2 GiB
  std::size_t done = 0;
  while (done < memory.size()) {
    const ssize_t count =
        ::read(descriptor, memory.data() + done, std::min(memory.size() - done, kLargestRead));
    if (count > 0) {
      done += static_cast<std::size_t>(count);
    } else if (count == 0) {
      fail_io("{}: was cut short by another program while it was read; try again", printable(path));
    } else if (const int code = errno; code != EINTR) {
      fail_io("{}: cannot be read: {}", printable(path), error_text(code));
    }
  }
}

/// A unique name. It does not contain the final name, which may already have the maximum length.
std::string temporary_name() {
  static std::atomic<std::uint64_t> counter{0};
  std::random_device random;
  return fmt::format(".lca-{}-{}-{:08x}.tmp", ::getpid(), counter++, random());
}

/// The file that `path` names: what a symbolic link leads to, so that the link itself survives.
std::filesystem::path resolve_link(std::filesystem::path path) {
  std::error_code code;
  if (!std::filesystem::is_symlink(path, code)) return path;
  std::filesystem::path target = std::filesystem::canonical(path, code);
  return code ? path : target;
}

/// Gives an open file the owner, group and permissions of the one it replaces. What the system does
/// not allow is left out, on the safe side: the file then stays readable by its owner alone.
void access_copy(const std::filesystem::path& from, int to) {
  struct stat old {};
  if (::stat(from.c_str(), &old) != 0) return;
  const bool group_kept = ::fchown(to, old.st_uid, old.st_gid) == 0 ||
                          ::fchown(to, static_cast<uid_t>(-1), old.st_gid) == 0;
  mode_t mode = old.st_mode & 0777;
  // Another group must not get what was the old one's.
  if (!group_kept) mode &= ~mode_t{070} | (mode & 07) << 3;
  static_cast<void>(::fchmod(to, mode));
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path, FileAccess access) : path_(path) {
  // Without O_NONBLOCK opening a pipe waits for a writer.
  Descriptor file(open_retrying(path, O_RDONLY | O_NONBLOCK | O_NOCTTY));
  if (const int code = -file.number(); code == ENOENT || code == ENOTDIR) {
    fail_not_found("{}: {}", printable(path), error_text(code));
  } else if (code > 0) {
    fail_input("{}: {}", printable(path), error_text(code));
  }

  struct stat info {};
  if (::fstat(file.number(), &info) != 0) {
    const int code = errno;
    fail_input("{}: {}", printable(path), error_text(code));
  }
  if (!S_ISREG(info.st_mode)) {
    fail_input("{}: is {}, not a file", printable(path), file_kind(info.st_mode));
  }
  if (info.st_size == 0) return;  // an empty range cannot be mapped

  const auto size = static_cast<std::size_t>(info.st_size);
  const bool is_read = access == FileAccess::read;
  void* memory =
      is_read ? ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
              : ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number(), 0);
  if (memory == MAP_FAILED) {
    const int code = errno;
    if (code == ENOMEM) {
      fail_memory(
          "not enough memory: {} cannot be {}, which takes {} bytes of {}; try a smaller model, or "
          "a higher limit (ulimit -v)",
          printable(path), is_read ? "read" : "mapped", size, is_read ? "memory" : "address space");
    }
    fail_io("{}: cannot map {} bytes: {}", printable(path), size, error_text(code));
  }
  const std::span mapped(static_cast<const std::byte*>(memory), size);
  try {
    if (is_read) {
      read_whole(file.number(), {static_cast<std::byte*>(memory), size}, path);
      ::mprotect(memory, size, PROT_READ);  // as a map would be: a stray write is a fault
    } else {
      guard_ = MappedGuard(mapped);
    }
  } catch (...) {
    unmap(mapped);
    throw;
  }
  bytes_ = mapped;
  if (!is_read) descriptor_ = file.release();
}

MappedFile::~MappedFile() {
  guard_ = {};  // before its addresses can be used again
  unmap(bytes_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      bytes_(std::exchange(other.bytes_, {})),
      guard_(std::move(other.guard_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(bytes_, other.bytes_);
  std::swap(guard_, other.guard_);
  return *this;
}

bool MappedFile::intact() const {
  if (bytes_.empty() || descriptor_ < 0) return true;
  if (!mapped_all_intact() && !guard_.intact()) return false;
  // The rest of the page in which a file ends reads as zeros, without a signal: hence the size.
  struct stat info {};
  return ::fstat(descriptor_, &info) != 0 || std::cmp_greater_equal(info.st_size, bytes_.size());
}

void MappedFile::fail_lost() const {
  fail_io(
      "{}: was cut short by another program while in use, or its disk failed; put the file back "
      "and start again",
      printable(path_));
}

FileWriter::FileWriter(std::filesystem::path path, FileMode mode)
    : path_(resolve_link(std::move(path))) {
  if (path_.empty()) fail_input("the output path is empty");
  // Checked now rather than after all the work: a rename would fail on a folder, and would replace
  // a device (/dev/null!) by an ordinary file.
  struct stat info {};
  if (::stat(path_.c_str(), &info) == 0) {
    if (!S_ISREG(info.st_mode)) {
      fail_input("{}: is {}, not a file", printable(path_), file_kind(info.st_mode));
    }
    mode = FileMode::owner_only;  // until `commit` copies the old file's
  } else if (const int code = errno; code != ENOENT) {
    fail_input("{}: {}", printable(path_), error_text(code));
  }
  if (!path_.has_filename()) fail_input("{}: names a folder, not a file", printable(path_));

  const std::filesystem::path folder = folder_of(path_);
  const mode_t bits = mode == FileMode::owner_only ? 0600 : 0666;
  for (int attempt = 0; attempt < 16; ++attempt) {
    temporary_ = folder / temporary_name();
    descriptor_ = open_retrying(temporary_, O_WRONLY | O_CREAT | O_EXCL, bits);
    if (descriptor_ != -EEXIST) break;
  }
  if (descriptor_ >= 0) return;
  const int code = -descriptor_;
  if (code == ENOSPC || code == EDQUOT || code == EIO || code == EMFILE || code == ENFILE) {
    fail_io("{}: cannot be created: {}", printable(path_), error_text(code));
  }
  fail_input("{}: cannot be created in folder {}: {}", printable(path_), printable(folder),
             error_text(code));
}

FileWriter::~FileWriter() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void FileWriter::write(std::span<const std::byte> bytes) {
  if (descriptor_ < 0) fail_internal("{}: is complete, no more can be written", printable(path_));
  constexpr std::size_t kLargestWrite = std::size_t{1} << 30;  // the kernel takes less than 2 GiB
  while (!bytes.empty()) {
    const ssize_t written =
        ::write(descriptor_, bytes.data(), std::min(bytes.size(), kLargestWrite));
    if (written < 0) {
      const int code = errno;
      if (code == EINTR) continue;
      fail_io("{}: cannot be written: {}", printable(path_), error_text(code));
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void FileWriter::commit() {
  if (descriptor_ < 0) fail_internal("{}: is complete already", printable(path_));
  access_copy(path_, descriptor_);
  if (const int code = sync_descriptor(descriptor_)) {
    fail_io("{}: cannot be written: {}", printable(path_), error_text(code));
  }
  // Some network file systems report a full disk only here. The descriptor is gone either way.
  if (::close(std::exchange(descriptor_, -1)) != 0 && errno != EINTR) {
    const int code = errno;
    ::unlink(temporary_.c_str());
    fail_io("{}: cannot be written: {}", printable(path_), error_text(code));
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int code = errno;
    ::unlink(temporary_.c_str());
    fail_io("{}: cannot be put in place: {}", printable(path_), error_text(code));
  }
  // A folder that may not be read cannot be synced; the file itself is safe by now.
  const Descriptor folder(open_retrying(folder_of(path_), O_RDONLY | O_DIRECTORY));
  if (folder.number() < 0) return;
  if (const int code = sync_descriptor(folder.number())) {
    fail_io("{}: is written, but its folder cannot be synced: {}", printable(path_),
            error_text(code));
  }
}

}  // namespace lca
