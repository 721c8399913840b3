#pragma once
/// What the caches of named jobs hold, for whoever asks while the engine runs.
///
/// The engine's thread publishes a few numbers and the new token ids after every step of a job that
/// has a name; asking takes a short lock, and waits neither for a step nor for a file. What a job
/// left is kept too: with a folder until its file is another, without one until the prefix cache
/// has dropped it.
///
/// Thread-safe.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/host/session_store.h"

namespace lca::server {

using CacheView = SessionFacts;

/// Token ids of consecutive positions.
struct TokenRange {
  std::int64_t first = 0;
  std::vector<std::int32_t> ids;
};

/// What is told about a cache.
struct CacheLook {
  CacheView view;
  TokenRange text;
};

/// On the thread that uses the session.
CacheView session_view(const Session& session);
/// Positions `first` to `last`, that one included, as far as there are tokens.
TokenRange tokens_between(std::span<const std::int32_t> tokens, std::int64_t first,
                          std::int64_t last);

class LiveCaches {
 public:
  /// `most_tokens`: of what finished jobs left.
  explicit LiveCaches(std::size_t most_tokens = std::size_t{1} << 22) : most_(most_tokens) {}

  /// A job begins, where `view` stands in its prompt.
  void begin(std::string_view name, std::uint64_t job, std::vector<std::int32_t> prompt,
             const CacheView& view);
  /// After a step: the tokens that the session has taken since are added.
  void update(std::string_view name, std::uint64_t job, const Session& session);
  /// The job is over and left nothing; no harm where it never began.
  void drop(std::string_view name, std::uint64_t job);
  /// The job is over; its cache is in `file`, or none: in the prefix cache.
  void leave(std::string_view name, std::uint64_t job, const std::optional<FileStamp>& file);
  /// What was read from a file.
  void keep(std::string_view name, const CacheView& view, std::vector<std::int32_t> tokens,
            const FileStamp& file);
  /// Forgets what jobs without file left and `holds`, by the hash of its tokens, does not know.
  void prune(const std::function<bool(std::uint64_t hash)>& holds);

  /// Of the newest job that runs under this name.
  std::optional<CacheLook> running(std::string_view name, std::int64_t first,
                                   std::int64_t last) const;
  /// Of the last one that ran, where `file` is still what it left.
  std::optional<CacheLook> kept(std::string_view name, const std::optional<FileStamp>& file,
                                std::int64_t first, std::int64_t last) const;

 private:
  struct Held {
    CacheView view;
    std::vector<std::int32_t> tokens;  ///< may be more than the view's: the prompt is known
    std::optional<FileStamp> file = {};
    std::uint64_t hash = 0;
    std::uint64_t age = 0;
  };
  static CacheLook look(const Held& held, std::int64_t first, std::int64_t last);
  void put(std::string_view name, Held held);  ///< with the lock held

  mutable std::mutex mutex_;
  std::map<std::pair<std::string, std::uint64_t>, Held> running_;
  std::map<std::string, Held, std::less<>> kept_;
  std::size_t tokens_ = 0;  ///< of `kept_`
  std::size_t most_;
  std::uint64_t next_ = 0;
};

}  // namespace lca::server
