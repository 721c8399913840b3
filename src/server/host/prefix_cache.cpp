#include "server/host/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "engine/session_state.h"

namespace lca::server {
namespace {

/// Beginnings that are remembered; twice as many at most.
constexpr std::size_t kMostSeen = std::size_t{1} << 15;

std::uint64_t hash_of(std::span<const std::int32_t> tokens) {
  PrefixHash hash;
  for (const std::int32_t token : tokens) hash.push(token);
  return hash.value();
}

std::span<const std::int32_t> beginning(std::span<const std::int32_t> tokens, std::int64_t length) {
  return tokens.first(static_cast<std::size_t>(length));
}

/// What a kept beginning needs of a session. It is found at its end alone; marks serve the
/// session's file, each for another window. A reply's keeps the last one that it cannot be cut back
/// to. And a session that has read has room for chunks, which its fork has not.
Session session_lean(Session session, bool reply) {
  Session::State& state = session.state();
  state.drop_marks_after(reply ? session.truncate_floor() - 1 : -1);
  if (state.marks.size() > 1) state.marks.erase(state.marks.begin(), state.marks.end() - 1);
  const Memory memory = session.memory();
  return memory.spare > memory.caches / 8 ? session.fork(session.length()) : std::move(session);
}

}  // namespace

void PrefixCache::Entry::measure() {
  const Memory memory = session.memory();
  own = memory.caches + memory.spare;
  shared = memory.shared;
  const auto& marks = session.state().marks;
  mark = marks.empty() ? nullptr : marks.back().caches.get();
  mark_bytes = memory.marks;
  dense = session.dense_bytes();
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
    if (entry.reply && entry.session.length() <= size) lengths.push_back(entry.session.length());
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
    const Session& session = found->session;
    if (length == size && session.logits().empty()) continue;
    // Where RoPE depends on the length of the prompt, a longer one has other keys.
    if (session.state().rotates_as_prompt(size)) best = found;
  }
  if (best == entries_.end()) {
    ++counts_.misses;
    return std::nullopt;
  }
  ++counts_.hits;
  Session made = best->session.fork(best->session.length());
  // A conversation that goes on leaves its last reply behind; a document is asked about again.
  entries_.splice(best->reply ? entries_.begin() : entries_.end(), entries_, best);
  return made;
}

void PrefixCache::put(Session session, bool reply) {
  const std::span<const std::int32_t> tokens(session.tokens());
  if (tokens.empty()) return;
  const std::uint64_t hash = hash_of(tokens);
  if (const auto same = entry_at(hash, tokens); same != entries_.end()) {
    // One with logits serves one more prompt: that which ends there.
    if (same->session.logits().empty() && !session.logits().empty()) {
      same->session = session_lean(std::move(session), reply);
      same->measure();
    }
    same->reply = same->reply || reply;
    entries_.splice(entries_.end(), entries_, same);
    return;
  }
  Entry made{session_lean(std::move(session), reply)};
  made.hash = hash;
  made.reply = reply;
  made.measure();
  const auto extends = [](const Session& longer, const Session& shorter) {
    return shorter.length() < longer.length() &&
           std::ranges::equal(shorter.tokens(), beginning(longer.tokens(), shorter.length()));
  };
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
  while (!entries_.empty() && counts().bytes > counts_.budget) {
    ++counts_.evicted;
    drop(entries_.begin());
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
    if (seen_.contains(hash.value()) || seen_before_.contains(hash.value())) deepest = cut;
    seen_.insert(hash.value());
  }
  if (seen_.size() > kMostSeen) seen_before_ = std::exchange(seen_, {});
  return deepest;
}

void PrefixCache::clear() {
  table_.clear();
  entries_.clear();
}

PrefixCounts PrefixCache::counts() const {
  PrefixCounts now = counts_;
  now.entries = std::ssize(entries_);
  for (const Entry& entry : entries_) {
    now.bytes += charge(entry);
    now.dense_bytes += entry.dense;
  }
  return now;
}

}  // namespace lca::server
