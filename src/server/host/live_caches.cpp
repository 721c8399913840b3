#include "server/host/live_caches.h"

#include <algorithm>
#include <limits>

#include "engine/session_state.h"
#include "server/host/reply_book.h"

namespace lca::server {

CacheView session_view(const Session& session) {
  const SessionLayout layout = session.layout();
  CacheView view;
  view.tokens = layout.tokens;
  view.groups = layout.groups;
  view.window = layout.window;
  view.sink = layout.sink;
  view.shared_bytes = session.state().caches->shared_bytes();
  view.bytes = session.cache_bytes();
  view.dense_bytes = session.dense_bytes();
  return view;
}

TokenRange tokens_between(std::span<const std::int32_t> tokens, std::int64_t first,
                          std::int64_t last) {
  const std::int64_t size = std::ssize(tokens);
  TokenRange range;
  range.first = std::clamp<std::int64_t>(first, 0, size);
  const std::int64_t end = last < size ? last + 1 : size;
  if (end <= range.first) return range;
  const auto part = tokens.subspan(static_cast<std::size_t>(range.first),
                                   static_cast<std::size_t>(end - range.first));
  range.ids.assign(part.begin(), part.end());
  return range;
}

CacheLook LiveCaches::look(const Held& held, std::int64_t first, std::int64_t last) {
  const std::span<const std::int32_t> all(held.tokens);
  const auto taken = all.first(std::min(all.size(), static_cast<std::size_t>(held.view.tokens)));
  return {held.view, tokens_between(taken, first, last)};
}

void LiveCaches::begin(std::string_view name, std::uint64_t job, std::vector<std::int32_t> prompt,
                       const CacheView& view) {
  const std::lock_guard guard(mutex_);
  running_.insert_or_assign(std::pair(std::string(name), job), Held{view, std::move(prompt)});
}

void LiveCaches::update(std::string_view name, std::uint64_t job, const Session& session) {
  const CacheView view = session_view(session);
  const std::vector<std::int32_t>& taken = session.tokens();
  const std::lock_guard guard(mutex_);
  const auto found = running_.find(std::pair(std::string(name), job));
  if (found == running_.end()) return;
  Held& held = found->second;
  held.view = view;
  if (taken.size() > held.tokens.size()) {
    held.tokens.insert(held.tokens.end(),
                       taken.begin() + static_cast<std::ptrdiff_t>(held.tokens.size()),
                       taken.end());
  }
}

void LiveCaches::drop(std::string_view name, std::uint64_t job) {
  const std::lock_guard guard(mutex_);
  running_.erase(std::pair(std::string(name), job));
}

void LiveCaches::leave(std::string_view name, std::uint64_t job,
                       const std::optional<FileStamp>& file) {
  const std::lock_guard guard(mutex_);
  auto node = running_.extract(std::pair(std::string(name), job));
  if (node.empty()) return;
  Held& held = node.mapped();
  held.tokens.resize(std::min(held.tokens.size(), static_cast<std::size_t>(held.view.tokens)));
  held.file = file;
  if (!file) {
    PrefixHash hash;
    for (const std::int32_t token : held.tokens) hash.push(token);
    held.hash = hash.value();
  }
  put(name, std::move(held));
}

void LiveCaches::keep(std::string_view name, const CacheView& view,
                      std::vector<std::int32_t> tokens, const FileStamp& file) {
  const std::lock_guard guard(mutex_);
  put(name, {view, std::move(tokens), file});
}

void LiveCaches::put(std::string_view name, Held held) {
  held.age = next_++;
  tokens_ += held.tokens.size();
  if (const auto old = kept_.find(name); old != kept_.end()) {
    tokens_ -= old->second.tokens.size();
    old->second = std::move(held);
  } else {
    kept_.emplace(name, std::move(held));
  }
  while (tokens_ > most_) {
    const auto oldest =
        std::ranges::min_element(kept_, {}, [](const auto& row) { return row.second.age; });
    tokens_ -= oldest->second.tokens.size();
    kept_.erase(oldest);
  }
}

void LiveCaches::prune(const std::function<bool(std::uint64_t hash)>& holds) {
  const std::lock_guard guard(mutex_);
  std::erase_if(kept_, [&](const auto& row) {
    if (row.second.file || holds(row.second.hash)) return false;
    tokens_ -= row.second.tokens.size();
    return true;
  });
}

std::optional<CacheLook> LiveCaches::running(std::string_view name, std::int64_t first,
                                             std::int64_t last) const {
  const std::lock_guard guard(mutex_);
  const auto after =
      running_.upper_bound(std::pair(std::string(name), std::numeric_limits<std::uint64_t>::max()));
  if (after == running_.begin() || std::prev(after)->first.first != name) return std::nullopt;
  return look(std::prev(after)->second, first, last);
}

std::optional<CacheLook> LiveCaches::kept(std::string_view name,
                                          const std::optional<FileStamp>& file, std::int64_t first,
                                          std::int64_t last) const {
  const std::lock_guard guard(mutex_);
  const auto found = kept_.find(name);
  if (found == kept_.end() || found->second.file != file) return std::nullopt;
  return look(found->second, first, last);
}

}  // namespace lca::server
