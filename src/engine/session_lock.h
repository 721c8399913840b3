#pragma once
/// One program at a time on a session file.

#include <filesystem>
#include <string>

namespace lca {

/// Holds the lock of a session file as long as it lives: a locked file `.NAME.lca-lock` beside it.
/// The kernel releases the lock when the program ends, however it ends, so that a lock file that
/// was left behind locks nothing.
class SessionLock {
 public:
  /// Throws Error: busy, with the process id, where another program holds it; bad input where it
  /// cannot be created (the session could not be saved there either), or where a file of that name
  /// is not a lock of ours, which is left as it is.
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

/// Where the lock of the session at `path` lies.
std::filesystem::path session_lock_path(const std::string& path);

}  // namespace lca
