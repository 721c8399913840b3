#include "engine/session_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "core/error.h"
#include "core/text.h"

namespace lca {
namespace {

std::string error_text(int code) { return std::generic_category().message(code); }

/// Beside the file itself, so that two links to one session share one lock.
std::filesystem::path lock_path(const std::string& path) {
  std::error_code code;
  std::filesystem::path file = path;
  if (std::filesystem::is_symlink(file, code)) {
    const std::filesystem::path target = std::filesystem::canonical(file, code);
    if (!code) file = target;
  }
  file += ".lock";
  return file;
}

/// " (process 123)" where the lock file says so.
std::string owner_text(int descriptor) {
  std::array<char, 32> text{};
  const ssize_t count = ::pread(descriptor, text.data(), text.size() - 1, 0);
  std::string digits;
  for (ssize_t i = 0; i < count && text[static_cast<std::size_t>(i)] >= '0' &&
                      text[static_cast<std::size_t>(i)] <= '9';
       ++i) {
    digits += text[static_cast<std::size_t>(i)];
  }
  return digits.empty() ? "" : fmt::format(" (process {})", digits);
}

bool names_same_file(const std::filesystem::path& path, int descriptor) {
  struct stat named {};
  struct stat open {};
  return ::stat(path.c_str(), &named) == 0 && ::fstat(descriptor, &open) == 0 &&
         named.st_dev == open.st_dev && named.st_ino == open.st_ino;
}

}  // namespace

SessionLock::SessionLock(const std::string& path) : lock_(lock_path(path)) {
  const std::string name = path_printable(path);
  for (;;) {
    const int file =
        ::open(lock_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (file < 0) {
      const int code = errno;
      if (code == EINTR) continue;
      fail_input("{}: no session can be kept there: {}: {}", name, path_printable(lock_.native()),
                 error_text(code));
    }
    int code = 0;
    while (::flock(file, LOCK_EX | LOCK_NB) != 0 && (code = errno) == EINTR) code = 0;
    if (code == EWOULDBLOCK) {
      const std::string owner = owner_text(file);
      ::close(file);
      fail_input("{}: is in use by another program{}; wait for it to end, or use another session",
                 name, owner);
    }
    if (code != 0) {
      ::close(file);
      fail_input("{}: this file system cannot lock files ({}); keep the session elsewhere", name,
                 error_text(code));
    }
    // The last holder removes the file before it lets go: what we have locked may be nobody's.
    if (!names_same_file(lock_, file)) {
      ::close(file);
      continue;
    }
    descriptor_ = file;
    break;
  }
  const std::string owner = fmt::format("{}\n", ::getpid());
  // Only for the other program's message: whoever cannot write it holds the lock all the same.
  [[maybe_unused]] const int cut = ::ftruncate(descriptor_, 0);
  [[maybe_unused]] const ssize_t written = ::pwrite(descriptor_, owner.data(), owner.size(), 0);
}

SessionLock::~SessionLock() {
  ::unlink(lock_.c_str());
  ::close(descriptor_);
}

}  // namespace lca
