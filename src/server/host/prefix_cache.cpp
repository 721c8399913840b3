#include "server/host/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "engine/session_state.h"

namespace lca::server {
namespace {

std::uint64_t hash_of(std::span<const std::int32_t> tokens) {
  PrefixHash hash;
  for (const std::int32_t token : tokens) hash.push(token);
  return hash.value();
}

std::span<const std::int32_t> beginning(std::span<const std::int32_t> tokens, std::int64_t length) {
  return tokens.first(static_cast<std::size_t>(length));
}

/// Most entries that a new one is compared with, to share their exact tokens.
constexpr std::size_t kMostAlike = 4;

/// Most tokens between the end of a reply and the beginning of the next turn.
constexpr std::int64_t kTurnEnd = 16;

/// The marks that a kept beginning needs. It is found at its end alone; marks serve the session's
/// file, each for another window. A reply's keeps the last one that it cannot be cut back to.
std::vector<SessionMark> marks_needed(const Session& session, bool reply) {
  if (!reply) return {};
  const auto& marks = session.state().marks;
  const std::int64_t floor = session.truncate_floor();
  const auto last = std::find_if(marks.rbegin(), marks.rend(),
                                 [&](const SessionMark& mark) { return mark.position() < floor; });
  if (last == marks.rend()) return {};
  return {*last};
}

std::int64_t common_length(std::span<const std::int32_t> one, std::span<const std::int32_t> other) {
  return std::ranges::mismatch(one, other).in1 - one.begin();
}

bool extends(const FrozenSession& longer, const FrozenSession& shorter) {
  return shorter.length() < longer.length() &&
         std::ranges::equal(shorter.tokens(), beginning(longer.tokens(), shorter.length()));
}

}  // namespace

void PrefixCache::Entry::measure() {
  own = session.bytes();
  shared = session.shared_bytes();
  mark = session.marks().empty() ? nullptr : session.marks().back().caches.get();
  mark_bytes = session.mark_bytes();
}

/// Shares exact tokens with the entries that have most tokens in common.
FrozenSession PrefixCache::frozen(const Session& session, bool reply) const {
  std::vector<std::pair<std::int64_t, const FrozenSession*>> alike;
  for (const Entry& entry : entries_) {
    const std::int64_t common = common_length(session.tokens(), entry.session.tokens());
    if (common > 0) alike.emplace_back(common, &entry.session);
  }
  const auto most = alike.begin() + static_cast<std::ptrdiff_t>(std::min(kMostAlike, alike.size()));
  std::ranges::partial_sort(alike, most, std::ranges::greater(),
                            [](const auto& row) { return row.first; });
  std::vector<const FrozenSession*> others;
  for (auto row = alike.begin(); row != most; ++row) others.push_back(row->second);
  return {session, marks_needed(session, reply), others, blocks_};
}

std::size_t PrefixCache::charge(const Entry& entry) const {
  const std::size_t held = entry.parent != nullptr ? entry.parent->shared : 0;
  const bool marked = entry.parent != nullptr && entry.parent->mark == entry.mark;
  return entry.own + (marked ? 0 : entry.mark_bytes) +
         (entry.shared > held ? entry.shared - held : 0);
}

PrefixCache::Entries::iterator PrefixCache::entry_at(std::uint64_t hash,
                                                     std::span<const std::int32_t> tokens) const {
  const auto [first, last] = table_.equal_range(hash);
  for (auto at = first; at != last; ++at) {
    if (std::ranges::equal(at->second->session.tokens(), tokens)) return at->second;
  }
  return entries_.end();
}

bool PrefixCache::holds(std::span<const std::int32_t> tokens) const {
  return entry_at(hash_of(tokens), tokens) != entries_.end();
}

std::optional<Session> PrefixCache::find(std::span<const std::int32_t> tokens,
                                         std::span<const std::int64_t> cuts) {
  const auto size = std::ssize(tokens);
  std::vector<std::int64_t> lengths(cuts.begin(), cuts.end());
  for (const Entry& entry : entries_) {
    if (entry.kind == Kept::reply && entry.session.length() <= size)
      lengths.push_back(entry.session.length());
  }
  std::ranges::sort(lengths);
  PrefixHash hash;
  std::int64_t read = 0;
  auto best = entries_.end();
  for (const std::int64_t length : lengths) {
    if (length > size) break;
    for (; read < length; ++read) hash.push(tokens[static_cast<std::size_t>(read)]);
    const auto found = entry_at(hash.value(), beginning(tokens, length));
    if (found == entries_.end()) continue;
    const FrozenSession& session = found->session;
    if (length == size && session.logits().empty()) continue;
    // Where RoPE depends on the length of the prompt, a longer one has other keys.
    if (session.rotates_as_prompt(size)) best = found;
  }
  if (best == entries_.end()) {
    ++counts_.misses;
    return std::nullopt;
  }
  ++counts_.hits;
  best->used = true;
  // A conversation that goes on leaves its last reply behind; a document is asked about again.
  entries_.splice(best->kind == Kept::reply ? entries_.begin() : entries_.end(), entries_, best);
  return best->session.thaw();
}

void PrefixCache::put(const Session& session, Kept kind) {
  const std::span<const std::int32_t> tokens(session.tokens());
  if (tokens.empty()) return;
  const std::uint64_t hash = hash_of(tokens);
  if (const auto same = entry_at(hash, tokens); same != entries_.end()) {
    // One with logits serves one more prompt: that which ends there.
    if (same->session.logits().empty() && !session.logits().empty()) {
      same->session = frozen(session, kind == Kept::reply);
      same->measure();
    }
    if (same->kind != Kept::reply) same->kind = kind;
    entries_.splice(entries_.end(), entries_, same);
    return;
  }
  Entry made{frozen(session, kind == Kept::reply)};
  made.hash = hash;
  made.kind = kind;
  made.measure();
  for (Entry& entry : entries_) {
    const bool longest =
        made.parent == nullptr || entry.session.length() > made.parent->session.length();
    if (longest && extends(made.session, entry.session)) made.parent = &entry;
  }
  entries_.push_back(std::move(made));
  const auto self = std::prev(entries_.end());
  for (Entry& entry : entries_) {
    if (entry.parent == self->parent && extends(entry.session, self->session)) {
      entry.parent = &*self;
    }
  }
  table_.emplace(hash, self);
  drop_replaced(self);
  while (!entries_.empty() && counts().bytes > counts_.budget) {
    ++counts_.evicted;
    drop(entries_.begin());
  }
}

/// Drops the entries whose place a new one takes.
void PrefixCache::drop_replaced(Entries::iterator by) {
  for (auto at = entries_.begin(); at != entries_.end();) {
    const auto next = std::next(at);
    const std::int64_t more = by->session.length() - at->session.length();
    const bool stone = at->kind == Kept::stone && !at->used;
    const bool reply = at->kind == Kept::reply && by->kind == Kept::turn && more <= kTurnEnd;
    if ((stone || reply) && extends(by->session, at->session)) {
      ++counts_.evicted;
      drop(at);
    }
    at = next;
  }
}

void PrefixCache::leave(std::span<const std::int32_t> tokens,
                        std::span<const std::int64_t> lengths) {
  for (auto at = entries_.begin(); at != entries_.end();) {
    const auto next = std::next(at);
    const std::int64_t length = at->session.length();
    if (at->kind == Kept::turn && !at->used && length < std::ssize(tokens) &&
        !std::ranges::binary_search(lengths, length) &&
        std::ranges::equal(at->session.tokens(), beginning(tokens, length))) {
      ++counts_.evicted;
      drop(at);
    }
    at = next;
  }
}

void PrefixCache::drop(Entries::iterator at) {
  for (Entry& entry : entries_) {
    if (entry.parent == &*at) entry.parent = at->parent;
  }
  const auto [first, last] = table_.equal_range(at->hash);
  table_.erase(std::find_if(first, last, [&](const auto& row) { return row.second == at; }));
  entries_.erase(at);
}

std::int64_t PrefixCache::seen(std::span<const std::int32_t> tokens,
                               std::span<const std::int64_t> cuts) {
  PrefixHash hash;
  std::int64_t read = 0;
  std::int64_t deepest = 0;
  for (const std::int64_t cut : cuts) {
    for (; read < cut; ++read) hash.push(tokens[static_cast<std::size_t>(read)]);
    if (seen_.contains(hash.value())) deepest = cut;
    seen_.insert(hash.value());
  }
  return deepest;
}

void PrefixCache::clear() {
  table_.clear();
  entries_.clear();
}

PrefixCounts PrefixCache::counts() const {
  PrefixCounts now = counts_;
  now.entries = std::ssize(entries_);
  now.bytes = blocks_->blocks;
  for (const Entry& entry : entries_) {
    now.bytes += charge(entry);
    now.dense_bytes += entry.session.dense_bytes();
  }
  return now;
}

}  // namespace lca::server
