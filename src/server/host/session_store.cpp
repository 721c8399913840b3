#include "server/host/session_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <system_error>

#include "core/descriptor.h"
#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "engine/session_file.h"
#include "engine/session_state.h"
#include "server/host/conversation.h"

namespace lca::server {
namespace {

constexpr std::string_view kEnding = ".session";
constexpr std::string_view kMessagesEnding = ".messages.json";
constexpr std::size_t kLongestName = 64;

void require_name(std::string_view name) {
  if (SessionStore::is_name(name)) return;
  fail_input(
      "\"{}\" is no name of a session: it takes 1 to {} letters, digits, '_', '-' and '.', and "
      "does "
      "not begin with '.'",
      text_printable(name.substr(0, 2 * kLongestName)), kLongestName);
}

std::optional<FileStamp> stamp_of(const std::filesystem::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  return FileStamp{info.st_dev, info.st_ino, info.st_mtim.tv_sec, info.st_mtim.tv_nsec,
                   static_cast<std::uint64_t>(info.st_size)};
}

/// A rename is on disk once its folder is.
void folder_sync(const std::filesystem::path& folder) {
  const Descriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems refuse to sync a folder, and keep renames in order by themselves.
  if (file.number() >= 0) [[maybe_unused]]
    const int result = ::fsync(file.number());
}

[[noreturn]] void fail_missing(std::string_view name) {
  fail_not_found("there is no session \"{}\"", name);
}

/// Works on a session's file. Clients know sessions by name and not where they lie; and a file that
/// cannot be used is no fault of the request.
template <typename Work>
auto file_named(std::string_view name, const std::filesystem::path& file, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    std::string_view text = error.what();
    const std::string before = path_printable(file.native()) + ": ";
    if (text.starts_with(before)) text.remove_prefix(before.size());
    const bool unfit = error.kind() == ErrorKind::bad_input;
    throw Error(unfit ? ErrorKind::incompatible : error.kind(),
                fmt::format("session \"{}\": {}", name, text));
  }
}

/// The longest length up to `limit` at which a saved session can stand without its model.
std::int64_t standing(const SessionRecord& record, std::int64_t limit) {
  limit = std::min(limit, record.head.length());
  if (limit >= record.head.truncate_floor) return limit;
  std::int64_t best = 0;
  for (const SavedMark& mark : record.marks) {
    if (mark.position <= limit) best = std::max(best, mark.position);
  }
  return best;
}

/// A session of the same model that has read nothing.
void record_empty(SessionRecord& record) {
  SessionHead& head = record.head;
  head.tokens.clear();
  head.pending.clear();
  head.logits.clear();
  head.truncate_floor = head.prompt_end = 0;
  record.marks.clear();
  for (Cache& cache : record.caches) cache = Cache(LayerSpec(cache.spec()));
}

}  // namespace

SessionHeld::SessionHeld(std::string_view name)
    : Error(ErrorKind::busy,
            fmt::format("session \"{}\" is in use by another request; wait for it to end", name)) {}

SessionStore::SessionStore(std::filesystem::path folder) : folder_(std::move(folder)) {
  std::error_code code;
  std::filesystem::create_directories(folder_, code);
  if (code || !std::filesystem::is_directory(folder_)) {
    fail_input("{}: sessions cannot be kept there: {}", path_printable(folder_.native()),
               code ? code.message() : "it is no folder");
  }
}

bool SessionStore::is_name(std::string_view name) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  };
  return !name.empty() && name.size() <= kLongestName && name.front() != '.' &&
         std::ranges::all_of(name, is_plain);
}

std::filesystem::path SessionStore::path(std::string_view name) const {
  require_name(name);
  return folder_ / std::string(name).append(kEnding);
}

std::filesystem::path SessionStore::messages_path(std::string_view name) const {
  require_name(name);
  return folder_ / std::string(name).append(kMessagesEnding);
}

std::unique_ptr<SessionLock> SessionStore::try_lock(std::string_view name) const {
  try {
    return std::make_unique<SessionLock>(path(name).native());
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::busy) return nullptr;
    fail_io("session \"{}\" cannot be kept: the folder of sessions is gone or cannot be written",
            name);
  }
}

std::unique_ptr<SessionLock> SessionStore::lock(std::string_view name) const {
  auto held = try_lock(name);
  if (!held) throw SessionHeld(name);
  return held;
}

std::optional<FileStamp> SessionStore::stamp(std::string_view name) const {
  return stamp_of(path(name));
}

bool SessionStore::is_known(std::string_view name) const {
  const auto now = stamp(name);
  const std::lock_guard guard(mutex_);
  const auto found = known_.find(name);
  return now && found != known_.end() && found->second == *now;
}

void SessionStore::remember(std::string_view name) {
  const auto now = stamp(name);
  const std::lock_guard guard(mutex_);
  if (now) {
    known_.insert_or_assign(std::string(name), *now);
  } else if (const auto found = known_.find(name); found != known_.end()) {
    known_.erase(found);
  }
}

std::optional<Session> SessionStore::load(std::string_view name, std::shared_ptr<const Model> model,
                                          Context& context, const SessionOptions& options) {
  const std::filesystem::path file = path(name);
  if (!stamp_of(file)) return std::nullopt;
  Session session = file_named(
      name, file, [&] { return Session::load(std::move(model), context, file.native(), options); });
  remember(name);
  return session;
}

void SessionStore::save(std::string_view name, const Session& session) {
  const std::filesystem::path file = path(name);
  file_named(name, file, [&] { session.save(file.native()); });
  folder_sync(folder_);
  remember(name);
}

void SessionStore::save_messages(std::string_view name, const Json& conversation) {
  const std::filesystem::path file = messages_path(name);
  if (conversation.is_null()) {
    std::error_code code;
    const bool was = std::filesystem::remove(file, code);
    if (code) fail_io("{}: cannot be deleted: {}", path_printable(file.native()), code.message());
    if (was) folder_sync(folder_);
    return;
  }
  const std::string text = conversation_text(conversation);
  FileWriter writer(file, FileMode::owner_only);
  writer.write(std::as_bytes(std::span(text)));
  writer.commit();
  folder_sync(folder_);
}

std::optional<Json> SessionStore::messages(std::string_view name) const {
  if (!stamp(name)) return std::nullopt;
  std::ifstream file(messages_path(name), std::ios::binary);
  if (!file) return std::nullopt;
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  Json read = conversation_read(text);
  if (read.is_null()) return std::nullopt;
  return read;
}

std::vector<SessionRow> SessionStore::list() const {
  std::vector<SessionRow> rows;
  std::error_code code;
  for (std::filesystem::directory_iterator at(folder_, code), end; !code && at != end;
       at.increment(code)) {
    const std::string file = at->path().filename().native();
    if (!file.ends_with(kEnding)) continue;
    SessionRow row;
    row.name = file.substr(0, file.size() - kEnding.size());
    const auto now = stamp_of(at->path());
    if (!is_name(row.name) || !now) continue;
    row.bytes = now->bytes;
    row.saved = now->seconds;
    bool counted = false;
    {
      const std::lock_guard guard(mutex_);
      const auto found = lengths_.find(row.name);
      counted = found != lengths_.end() && found->second.first == *now;
      if (counted) row.tokens = found->second.second;
    }
    if (!counted) {
      try {
        row.tokens = session_read_head(at->path().native()).length();
      } catch (const Error&) {
        continue;  // no session, or one that was just deleted
      }
      const std::lock_guard guard(mutex_);
      lengths_.insert_or_assign(row.name, std::pair(*now, row.tokens));
    }
    rows.push_back(std::move(row));
  }
  std::ranges::sort(rows, {}, &SessionRow::name);
  const std::lock_guard guard(mutex_);
  std::erase_if(lengths_, [&rows](const auto& known) {
    return !std::ranges::binary_search(rows, known.first, {}, &SessionRow::name);
  });
  return rows;
}

SessionFacts SessionStore::facts(std::string_view name, std::vector<std::int32_t>* tokens) const {
  const std::filesystem::path file = path(name);
  if (!stamp_of(file)) fail_missing(name);
  SessionRecord record = file_named(name, file, [&] { return session_read(file.native()); });
  const SessionLayout layout = session_layout(record.head.settings, record.head.length());
  SessionFacts facts;
  facts.tokens = layout.tokens;
  facts.groups = layout.groups;
  facts.window = layout.window;
  facts.sink = layout.sink;
  for (std::size_t layer = 0; layer < record.caches.size(); ++layer) {
    const Cache& cache = record.caches[layer];
    facts.bytes += cache.bytes();
    facts.shared_bytes += cache.shared_bytes();
    LayerSpec dense = record.head.spec(layer);
    dense.settings = Settings();
    dense.settings.method = MethodKind::dense;
    facts.dense_bytes += cache_bytes(dense, facts.tokens);
  }
  if (tokens != nullptr) *tokens = std::move(record.head.tokens);
  return facts;
}

void SessionStore::fork(std::string_view from, std::string_view to, std::int64_t at_message,
                        const TurnTokens& turns) {
  const std::filesystem::path source = path(from);
  const std::filesystem::path target = path(to);
  if (from == to) fail_input("session \"{}\" cannot be forked into itself", from);
  const auto first = lock(std::min(from, to));
  const auto second = lock(std::max(from, to));
  if (!stamp_of(source)) fail_missing(from);
  if (stamp_of(target)) {
    fail_busy("there is a session \"{}\" already: delete it first, or choose another name", to);
  }
  SessionRecord record = file_named(from, source, [&] { return session_read(source.native()); });
  const std::optional<Json> text = messages(from);
  if (at_message >= 0) {
    const std::vector<std::int64_t> starts = turn_starts(record.head.tokens, turns);
    const std::vector<std::int64_t> ends =
        message_turns(text ? *text : Json(nullptr), turns.added, std::ssize(starts) + 1);
    if (at_message >= std::ssize(ends)) {
      fail_input("session \"{}\" has {} messages; it cannot be forked at message {}", from,
                 std::ssize(ends) - 1, at_message);
    }
    // Turn i + 1 begins where turn i ends; the first begins the conversation.
    const std::int64_t turn = ends[static_cast<std::size_t>(at_message)];
    std::int64_t limit = record.head.length();
    if (turn == 0) {
      limit = 0;
    } else if (turn <= std::ssize(starts)) {
      limit = starts[static_cast<std::size_t>(turn - 1)];
    }
    const std::int64_t length = standing(record, limit);
    if (length == 0) {
      record_empty(record);  // nothing marks the place: what the next request carries is read
    } else if (length < record.head.length()) {
      // The token after it would be read again, for its logits: a request brings it along.
      session_cut(record, length + 1, from);
      record.head.pending.clear();
    }
  }
  session_write(target.native(), record);
  folder_sync(folder_);
  Json kept = text ? *text : Json(nullptr);
  if (text && at_message >= 0) kept = conversation_first(std::move(kept), at_message);
  save_messages(to, kept);
}

bool SessionStore::remove(std::string_view name) {
  const std::filesystem::path file = path(name);
  const auto held = lock(name);
  std::error_code code;
  const bool was = std::filesystem::remove(file, code);
  if (code) fail_io("session \"{}\" cannot be deleted: {}", name, code.message());
  save_messages(name, nullptr);
  folder_sync(folder_);
  remember(name);
  return was;
}

}  // namespace lca::server
