#pragma once
/// Beginnings of prompts that were read, kept for prompts that begin alike.
///
/// An entry is a session that stands at some position of some prompt. It is found by its tokens:
/// a table from the hash of a beginning to the entries there, whose tokens are then compared, so
/// that a hit is exact. Entries are looked for at the cuts of a prompt (prompt_cuts.h), where a
/// prompt that is read from the start is cut too, and where a reply ended.
///
/// An entry costs its own exact tokens: representatives never change once written, and are shared
/// with the entries it extends, with the sessions that were forked from it, and with those it was
/// forked from. Each representative and mark is counted once, for the shortest entry that holds it.
/// Where the budget is exceeded the least recently used entry goes.
///
/// One thread at a time: the engine's.

#include <lca/session.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "server/host/reply_book.h"

namespace lca::server {

struct PrefixCounts {
  std::int64_t entries = 0;
  std::int64_t hits = 0;
  std::int64_t misses = 0;
  std::int64_t evicted = 0;
  std::size_t bytes = 0;
  std::size_t dense_bytes = 0;  ///< what dense attention would hold for the same entries
  std::size_t budget = 0;
};

class PrefixCache {
 public:
  explicit PrefixCache(std::size_t budget) { counts_.budget = budget; }

  /// A fork of the longest entry that `tokens` begins with, among those at `cuts` and at ends of
  /// replies. One that has all tokens counts only where its logits are known.
  std::optional<Session> find(std::span<const std::int32_t> tokens,
                              std::span<const std::int64_t> cuts);
  bool holds(std::span<const std::int32_t> tokens) const;
  /// Whether an entry has tokens of this hash.
  bool holds_hash(std::uint64_t hash) const { return table_.contains(hash); }
  /// Takes a session at the position where it stands. `reply`: it ends with generated tokens, and
  /// is found at any position.
  void put(Session session, bool reply);

  /// The last cut up to which an earlier prompt had the same tokens, 0: none; remembers these.
  std::int64_t seen(std::span<const std::int32_t> tokens, std::span<const std::int64_t> cuts);
  void clear();
  PrefixCounts counts() const;

 private:
  struct Entry {
    Session session;
    std::uint64_t hash = 0;
    bool reply = false;
    Entry* parent = nullptr;     ///< the longest entry that this one extends
    std::size_t own = 0;         ///< bytes that no other entry can share
    std::size_t shared = 0;      ///< bytes of representatives
    const void* mark = nullptr;  ///< the session's, which the entries it extends may hold too
    std::size_t mark_bytes = 0;
    std::size_t dense = 0;
    void measure();  ///< all sizes, and the mark
  };
  using Entries = std::list<Entry>;  ///< the least recently used first

  std::size_t charge(const Entry& entry) const;
  Entries::iterator entry_at(std::uint64_t hash, std::span<const std::int32_t> tokens) const;
  void drop(Entries::iterator at);

  mutable Entries entries_;
  std::unordered_multimap<std::uint64_t, Entries::iterator> table_;
  std::unordered_set<std::uint64_t> seen_, seen_before_;
  PrefixCounts counts_;
};

}  // namespace lca::server
