#pragma once
/// `--session FILE`: a conversation that outlives the program.

#include "arguments.h"
#include "engine/session_file.h"
#include "engine/session_lock.h"
#include "interrupt.h"

#include <lca/session.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace lca::cli {

/// The flag, on a command that has all flags of ModelFlags.
class SessionFlag {
 public:
  void add(CLI::App& app);
  bool given() const { return flag_.given(); }
  const std::string& path() const { return flag_.text; }
  /// Throws Error naming the first flag of the mechanism that contradicts a saved session.
  void check_settings(const SessionHead& head) const;

 private:
  const CLI::App* app_ = nullptr;
  TextFlag flag_;
};

/// The session file, locked for this program during the keeper's lifetime.
class SessionKeeper {
 public:
  /// Locks the file and reads it if it exists, so that errors are found before the model is loaded.
  /// Does nothing if the flag is not given.
  explicit SessionKeeper(const SessionFlag& flag);

  /// Whether `--session` was given.
  bool given() const { return lock_ != nullptr; }
  /// Whether a conversation has begun in it.
  bool begun() const { return begun_; }
  /// The settings of the session that was read, for `ModelFlags::load`; empty: none was. Not after
  /// `open`.
  std::span<const Settings> settings() const {
    return record_ ? std::span<const Settings>(record_->head.settings)
                   : std::span<const Settings>();
  }
  /// The saved session, or a new one. Call it once.
  Session open(std::shared_ptr<const Model> model, Context& context, const SessionOptions& options);

  /// Saves; Ctrl-C is deferred meanwhile. If it throws Error, the previous file is kept.
  void save(const Session& session);
  /// The same, but an error is thrown later by `require_saved`.
  void try_save(const Session& session);
  /// The error of the last save; empty: none.
  const std::string& error() const { return error_; }
  void require_saved() const;

  const std::string& path() const { return path_; }
  /// Size of the file as it was saved last.
  std::size_t bytes() const { return bytes_; }

 private:
  std::string path_;
  std::unique_ptr<SessionLock> lock_;
  std::unique_ptr<InterruptUnlink> unlink_;
  std::optional<SessionRecord> record_;
  bool begun_ = false;
  std::size_t bytes_ = 0;
  std::string error_;
};

/// Throws Error if `--system` is given for a conversation that has begun.
void system_check(const TextFlag& system, const SessionKeeper& keeper);

}  // namespace lca::cli
