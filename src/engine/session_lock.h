#pragma once
/// One program at a time on a session file.

#include <filesystem>
#include <string>

namespace lca {

/// Holds the lock of a session file during its lifetime: a locked file `.NAME.lca-lock` beside it.
/// The kernel releases the lock when the program ends, in whatever way, so that a lock file that is
/// left behind locks nothing.
class SessionLock {
 public:
  /// Throws Error: busy, with the process id, if another program holds the lock; bad input if it
  /// cannot be created (the session could not be saved there either), or if a file of that name is
  /// not a lock file, which is then left untouched.
  explicit SessionLock(const std::string& path);
  /// Removes the lock file.
  ~SessionLock();
  SessionLock(const SessionLock&) = delete;
  SessionLock& operator=(const SessionLock&) = delete;

  /// The lock file, for a program that ends without unwinding and removes it first.
  const std::filesystem::path& path() const { return lock_; }

 private:
  std::filesystem::path lock_;
  int descriptor_ = -1;
};

/// The path of the lock of the session at `path`.
std::filesystem::path session_lock_path(const std::string& path);

}  // namespace lca
