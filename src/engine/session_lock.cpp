#include "engine/session_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>
#include <string_view>
#include <system_error>

#include "core/descriptor.h"
#include "core/error.h"
#include "core/text.h"

namespace lca {
namespace {

/// A lock file begins with this line; the second one names the process that holds it.
constexpr std::string_view kLockMagic = "lca session lock\n";
constexpr std::string_view kProcess = "process ";
constexpr std::size_t kLongest = 64;

std::string error_text(int code) { return std::generic_category().message(code); }

/// The text of a lock file; nullopt if the file is not one. An empty file is a lock file: its
/// program was killed, or has not written to it yet.
std::optional<std::string> lock_text(int descriptor) {
  struct stat info {};
  if (::fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  std::array<char, kLongest + 1> bytes{};
  const ssize_t count = ::pread(descriptor, bytes.data(), bytes.size(), 0);
  if (count < 0 || static_cast<std::size_t>(count) > kLongest) return std::nullopt;
  std::string text(bytes.data(), static_cast<std::size_t>(count));
  if (!text.empty() && !text.starts_with(kLockMagic)) return std::nullopt;
  return text;
}

/// " (process 123)" if the lock file names the process.
std::string owner_text(int descriptor) {
  const std::string text = lock_text(descriptor).value_or("");
  const std::string head = std::string(kLockMagic).append(kProcess);
  if (!text.starts_with(head)) return "";
  const std::size_t end = text.find_first_not_of("0123456789", head.size());
  const std::string digits = text.substr(head.size(), end - head.size());
  return digits.empty() ? "" : fmt::format(" (process {})", digits);
}

bool names_same_file(const std::filesystem::path& path, int descriptor) {
  struct stat named {};
  struct stat open {};
  return ::lstat(path.c_str(), &named) == 0 && ::fstat(descriptor, &open) == 0 &&
         named.st_dev == open.st_dev && named.st_ino == open.st_ino;
}

}  // namespace

std::filesystem::path session_lock_path(const std::string& path) {
  // Beside the target of symbolic links, so that two links to one session share one lock.
  std::error_code code;
  std::filesystem::path file = path;
  if (std::filesystem::is_symlink(file, code)) {
    const std::filesystem::path target = std::filesystem::canonical(file, code);
    if (!code) file = target;
  }
  return file.parent_path() / ("." + file.filename().native() + ".lca-lock");
}

SessionLock::SessionLock(const std::string& path) : lock_(session_lock_path(path)) {
  const std::string name = path_printable(path);
  for (;;) {
    Descriptor file(
        ::open(lock_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
    if (file.number() < 0) {
      const int code = errno;
      if (code == EINTR) continue;
      fail_input("{}: no session can be kept there: {}: {}", name, path_printable(lock_.native()),
                 error_text(code));
    }
    int code = 0;
    while (::flock(file.number(), LOCK_EX | LOCK_NB) != 0 && (code = errno) == EINTR) code = 0;
    if (code == EWOULDBLOCK) {
      fail_busy("{}: is in use by another program{}; wait for it to end, or use another session",
                name, owner_text(file.number()));
    }
    if (code != 0) {
      fail_input("{}: this file system cannot lock files ({}); keep the session elsewhere", name,
                 error_text(code));
    }
    // The previous holder removes the file before it releases the lock, so the file that was just
    // locked may be deleted already.
    if (!names_same_file(lock_, file.number())) continue;
    if (!lock_text(file.number())) {
      fail_input(
          "{}: {} is in the way: it is not a lock of this program; move it, or use another session",
          name, path_printable(lock_.native()));
    }
    descriptor_ = file.release();
    break;
  }
  const std::string owner = fmt::format("{}{}{}\n", kLockMagic, kProcess, ::getpid());
  // Only for the message of another program: the lock is held even if this cannot be written.
  [[maybe_unused]] const int cut = ::ftruncate(descriptor_, 0);
  [[maybe_unused]] const ssize_t written = ::pwrite(descriptor_, owner.data(), owner.size(), 0);
}

SessionLock::~SessionLock() {
  // The file may have been removed by hand and created again by another program.
  if (names_same_file(lock_, descriptor_)) ::unlink(lock_.c_str());
  ::close(descriptor_);
}

}  // namespace lca
