#pragma once
/// One program at a time on a session file.

#include <filesystem>
#include <string>

namespace lca {

/// Holds `FILE.lock`, a file beside the session's, as long as it lives. The kernel lets go of it
/// when the program ends, however it ends: one that was left behind locks nothing.
class SessionLock {
 public:
  /// Throws Error (bad input) where another program holds it, with its process id, and where it
  /// cannot be made: the session could not be saved there either.
  explicit SessionLock(const std::string& path);
  ~SessionLock();
  SessionLock(const SessionLock&) = delete;
  SessionLock& operator=(const SessionLock&) = delete;

  /// The lock file, for whoever leaves the program without unwinding and removes it first.
  const std::filesystem::path& path() const { return lock_; }

 private:
  std::filesystem::path lock_;
  int descriptor_ = -1;
};

}  // namespace lca
