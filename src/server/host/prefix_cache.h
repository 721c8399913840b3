#pragma once
/// Beginnings of prompts that were read, kept for prompts that begin alike.
///
/// An entry is a session that stands at some position of some prompt. It is found by its tokens:
/// a table from the hash of a beginning to the entries there, whose tokens are then compared, so
/// that a hit is exact. Entries are looked for at the cuts of a prompt (prompt_cuts.h), where a
/// prompt that is read from the start is cut too, and where a reply ended.
///
/// Entries that begin alike share memory. Representatives never change once written, and are shared
/// with the running sessions too. Exact tokens and queries are frozen (attention/frozen_cache.h):
/// an entry costs the positions that no other one has. The budget counts blocks of exact tokens
/// once, and each representative and mark once, for the shortest entry that holds it. Where it is
/// exceeded the least recently used entries go, until what is left fits; one that shares all it has
/// frees next to nothing.
///
/// Some entries go earlier, unless a prompt was read from them: a `stone`, when the same prompt is
/// kept at a later position; the end of a reply, when the conversation is kept at the beginning of
/// its next turn; and turns that a conversation has left behind (`leave`). A long conversation
/// would otherwise keep the exact tokens of all its turns.
///
/// One thread at a time: the engine's.

#include <lca/session.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/session_frozen.h"
#include "server/host/hash_ring.h"
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

/// Why a beginning is kept.
enum class Kept : std::uint8_t {
  turn,   ///< another prompt may part from this one here
  stone,  ///< for the same prompt, where reading it is broken off
  reply,  ///< it ends with generated tokens, and is found at any position
};

class PrefixCache {
 public:
  explicit PrefixCache(std::size_t budget) { counts_.budget = budget; }

  /// A session at the longest entry that `tokens` begins with, among those at `cuts` and at ends of
  /// replies. One that has all tokens counts only where its logits are known.
  std::optional<Session> find(std::span<const std::int32_t> tokens,
                              std::span<const std::int64_t> cuts);
  bool holds(std::span<const std::int32_t> tokens) const;
  /// Whether an entry has tokens of this hash.
  bool holds_hash(std::uint64_t hash) const { return table_.contains(hash); }
  /// Keeps a session at the position where it stands.
  void put(const Session& session, Kept kind);

  /// A conversation has come to the end of `tokens`: of its turns only those at `lengths` stay.
  void leave(std::span<const std::int32_t> tokens, std::span<const std::int64_t> lengths);

  /// The last cut up to which an earlier prompt had the same tokens, 0: none; remembers these.
  std::int64_t seen(std::span<const std::int32_t> tokens, std::span<const std::int64_t> cuts);
  void clear();
  PrefixCounts counts() const;

 private:
  struct Entry {
    FrozenSession session;
    std::uint64_t hash = 0;
    Kept kind = Kept::turn;
    bool used = false;           ///< a prompt was read from it
    Entry* parent = nullptr;     ///< the longest entry that this one extends
    std::size_t own = 0;         ///< bytes that no other entry can share
    std::size_t shared = 0;      ///< bytes of representatives
    const void* mark = nullptr;  ///< the session's, which the entries it extends may hold too
    std::size_t mark_bytes = 0;
    void measure();  ///< all sizes, and the mark
  };
  using Entries = std::list<Entry>;  ///< the least recently used first

  std::size_t charge(const Entry& entry) const;
  FrozenSession frozen(const Session& session, bool reply) const;
  void drop_replaced(Entries::iterator by);
  Entries::iterator entry_at(std::uint64_t hash, std::span<const std::int32_t> tokens) const;
  void drop(Entries::iterator at);

  std::shared_ptr<FrozenBytes> blocks_ = std::make_shared<FrozenBytes>();
  mutable Entries entries_;
  std::unordered_multimap<std::uint64_t, Entries::iterator> table_;
  HashRing seen_{std::size_t{1} << 15};  // beginnings of prompts: 1 MiB
  PrefixCounts counts_;
};

}  // namespace lca::server
