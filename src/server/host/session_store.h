#pragma once
/// Named sessions in a folder: NAME.session, as `Session::save` writes it (docs/sessions.md), and
/// NAME.messages.json: the conversation of the last request that was completed, with its reply, for
/// those who want to read it. No request is answered from it.
///
/// A session is a cache that survives, never a second truth: a request carries its whole
/// conversation, and what the file holds is used as far as the two agree. The ids of generated
/// replies are the tokens of the session itself (`tokens_align` finds them again).
///
/// A file is locked (`SessionLock`) only while a request runs or a session is changed, so that
/// several servers can share a folder. It appears complete or not at all: kill −9 leaves the last
/// saved turn. What a server has in memory is older than the file where the file's stamp is another
/// than that of its own last save; it is then loaded.
///
/// Thread-safe.

#include <lca/error.h>
#include <lca/session.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/session_lock.h"
#include "server/host/prompt_cuts.h"
#include "server/types.h"

namespace lca::server {

/// Tells two versions of a file apart.
struct FileStamp {
  std::uint64_t device = 0, file = 0;
  std::int64_t seconds = 0, nanoseconds = 0;
  std::uint64_t bytes = 0;

  bool operator==(const FileStamp&) const = default;
};

struct SessionRow {
  std::string name;
  std::int64_t tokens = 0;
  std::size_t bytes = 0;   ///< of the file
  std::int64_t saved = 0;  ///< seconds since 1970
};

/// What a saved session holds, over all layers; counts are those of the layer with most groups.
struct SessionFacts {
  std::int64_t tokens = 0, groups = 0, window = 0, sink = 0;
  std::size_t shared_bytes = 0;  ///< of representatives that marks hold too
  std::size_t bytes = 0;
  std::size_t dense_bytes = 0;
};

/// Another request or program holds a session; nothing was done, and trying again may help.
class SessionHeld : public Error {
 public:
  explicit SessionHeld(std::string_view name);
};

class SessionStore {
 public:
  /// Creates the folder where it is missing. Throws Error naming it.
  explicit SessionStore(std::filesystem::path folder);

  /// `[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}`: no path, no hidden file.
  static bool is_name(std::string_view name);
  std::filesystem::path path(std::string_view name) const;

  /// Null where another request or program holds it.
  std::unique_ptr<SessionLock> try_lock(std::string_view name) const;
  /// The same; throws SessionHeld.
  std::unique_ptr<SessionLock> lock(std::string_view name) const;

  // With the lock held.
  std::optional<FileStamp> stamp(std::string_view name) const;
  /// Whether the file is what this store saved or loaded last.
  bool is_known(std::string_view name) const;
  /// None where there is no file.
  std::optional<Session> load(std::string_view name, std::shared_ptr<const Model> model,
                              Context& context, const SessionOptions& options);
  /// On disk and synced when it returns.
  void save(std::string_view name, const Session& session);
  /// The same of its conversation (`conversation_json`); null: there is none, and an older one
  /// goes.
  void save_messages(std::string_view name, const Json& conversation);

  // These take no lock: files appear whole. Error (not_found, bad_input).
  /// What the heads of the files say: one that is damaged behind its head is listed too.
  std::vector<SessionRow> list() const;
  /// `tokens`, where given, receives its token ids.
  SessionFacts facts(std::string_view name, std::vector<std::int32_t>* tokens = nullptr) const;
  /// `{"messages": [{"role","content"}, …]}`; none where there is no session, or no text of it.
  std::optional<Json> messages(std::string_view name) const;

  // These lock by themselves and wait for nobody: SessionHeld where a request runs; Error
  // (not_found, bad_input, busy: a name is taken).
  /// `at_message`: only the first so many messages, as far as the session can go back; negative:
  /// all. `to` must be a new name.
  void fork(std::string_view from, std::string_view to, std::int64_t at_message,
            const TurnTokens& turns);
  /// False where there is none.
  bool remove(std::string_view name);

 private:
  std::filesystem::path messages_path(std::string_view name) const;
  void remember(std::string_view name);

  std::filesystem::path folder_;
  mutable std::mutex mutex_;
  std::map<std::string, FileStamp, std::less<>> known_;
  mutable std::map<std::string, std::pair<FileStamp, std::int64_t>, std::less<>> lengths_;
};

}  // namespace lca::server
