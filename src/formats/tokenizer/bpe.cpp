#include "formats/tokenizer/bpe.h"

#include "core/error.h"
#include "core/text.h"
#include "formats/tokenizer/utf8.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>

namespace lca {
namespace {

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
         static_cast<std::uint32_t>(right);
}

/// A pair that may merge: at the front of the queue is the lowest rank, then the leftmost.
struct Candidate {
  std::uint32_t rank = 0;
  std::int32_t left = 0;  // index of the left symbol
  std::int32_t id = 0;    // of the merged token

  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : left > other.left;
  }
};

/// The same with a score; the highest is merged first.
struct ScoredCandidate {
  float score = 0;
  std::int32_t left = 0;
  std::int32_t id = 0;
  std::uint32_t size = 0;  // bytes of both when it was found

  bool operator<(const ScoredCandidate& other) const {
    return score != other.score ? score < other.score : left > other.left;
  }
};

template <typename T>
std::priority_queue<T> queue_make(std::size_t room) {
  std::vector<T> memory;
  memory.reserve(room);
  return std::priority_queue<T>(std::less<T>(), std::move(memory));
}

}  // namespace

void MergeTable::reserve(std::size_t count) {
  const std::size_t wanted = std::bit_ceil(std::max<std::size_t>(2 * count, 16));
  if (wanted <= slots_.size()) return;
  std::vector<Slot> old(wanted);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.key != kFree) slots_[slot_of(slot.key)] = slot;
  }
}

std::size_t MergeTable::slot_of(std::uint64_t key) const {
  const std::size_t mask = slots_.size() - 1;
  std::uint64_t hash = key * 0x9e3779b97f4a7c15u;
  hash ^= hash >> 32;
  for (auto at = static_cast<std::size_t>(hash) & mask;; at = (at + 1) & mask) {
    if (slots_[at].key == key || slots_[at].key == kFree) return at;
  }
}

void MergeTable::add(std::int32_t left, std::int32_t right, Merge merge) {
  if (2 * (size_ + 1) > slots_.size()) reserve(2 * (size_ + 1));
  Slot& slot = slots_[slot_of(key_of(left, right))];
  if (slot.key == kFree) ++size_;
  slot = {key_of(left, right), merge};
}

MergeTable::Merge MergeTable::find(std::int32_t left, std::int32_t right) const {
  if (slots_.empty()) return {};
  const Slot& slot = slots_[slot_of(key_of(left, right))];
  return slot.key == kFree ? Merge{} : slot.merge;
}

void BpeModel::merge_add(std::string_view left, std::string_view right, std::string_view name) {
  const std::string both = std::string(left) + std::string(right);
  const std::array<std::string_view, 3> parts{left, right, both};
  std::array<std::int32_t, 3> ids{};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    ids[i] = vocabulary_.find(parts[i]);
    if (ids[i] < 0) {
      fail_input("{}: merge {} (\"{}\" and \"{}\") needs the token \"{}\", which is not there",
                 name, merges_.size(), text_printable(left), text_printable(right),
                 text_printable(parts[i]));
    }
  }
  merges_.add(ids[0], ids[1], {static_cast<std::uint32_t>(merges_.size()), ids[2]});
}

void BpeModel::byte_fallback_set() {
  has_byte_fallback_ = true;
  for (unsigned byte = 0; byte < 256; ++byte) {
    bytes_[byte] = vocabulary_.find(fmt::format("<0x{:02X}>", byte));
  }
}

bool BpeModel::byte_fallback_whole() const {
  return has_byte_fallback_ && std::ranges::all_of(bytes_, [](auto id) { return id >= 0; });
}

void BpeModel::fallback(std::string_view character, std::vector<std::int32_t>& ids,
                        std::int32_t& pending) const {
  if (has_byte_fallback_) {
    const auto id_of = [&](char byte) { return bytes_[static_cast<unsigned char>(byte)]; };
    if (std::ranges::all_of(character, [&](char byte) { return id_of(byte) >= 0; })) {
      for (const char byte : character) ids.push_back(id_of(byte));
      return;
    }
  }
  if (!has_unknown) return;
  if (unknown < 0) {
    fail_input("{}: \"{}\" has no token, and neither has the unknown", where,
               text_printable(character));
  }
  if (pending >= 0 && !fuse_unknown) ids.push_back(pending);
  pending = unknown;
}

void BpeModel::symbols_by_vocabulary(std::string_view word, std::vector<std::int32_t>& ids) const {
  std::int32_t pending = -1;  // an unknown that may still grow
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t size = std::min(utf8_length(word[at]), word.size() - at);
    const std::string_view character = word.substr(at, size);
    at += size;
    const std::int32_t id = vocabulary_.find(character);
    if (id < 0) {
      fallback(character, ids, pending);
      continue;
    }
    if (pending >= 0) ids.push_back(pending);
    pending = -1;
    ids.push_back(id);
  }
  if (pending >= 0) ids.push_back(pending);
}

void BpeModel::encode(std::string_view word, std::vector<std::int32_t>& ids) const {
  if (word.empty()) return;
  if (ignore_merges) {
    if (const std::int32_t id = vocabulary_.find(word); id >= 0) return ids.push_back(id);
  }
  if (!scores_.empty()) return encode_by_scores(word, ids);
  const std::size_t first = ids.size();
  symbols_by_vocabulary(word, ids);
  constexpr std::size_t kShort = 40;
  if (ids.size() - first <= kShort) {
    merge_short(ids, first);
  } else {
    merge_long(ids, first);
  }
}

/// Looks through all pairs for every merge: the least work for the words of a language.
void BpeModel::merge_short(std::vector<std::int32_t>& ids, std::size_t first) const {
  constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  std::array<MergeTable::Merge, 64> merges;  // of each symbol with the next
  const auto look_up = [&](std::size_t i) {
    merges[i] = merges_.find(ids[first + i], ids[first + i + 1]);
    if (merges[i].id < 0) merges[i].rank = kNone;
  };
  std::size_t count = ids.size() - first;
  for (std::size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == kNone) break;
    ids[first + best] = merges[best].id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(first + best + 1));
    --count;
    std::copy(merges.begin() + static_cast<std::ptrdiff_t>(best + 1),
              merges.begin() + static_cast<std::ptrdiff_t>(count),
              merges.begin() + static_cast<std::ptrdiff_t>(best));
    if (best > 0) look_up(best - 1);
    if (best + 1 < count) look_up(best);
  }
}

/// Keeps the pairs in a queue: a whole document may be one word.
void BpeModel::merge_long(std::vector<std::int32_t>& ids, std::size_t first) const {
  const auto count = static_cast<std::int32_t>(ids.size() - first);
  std::vector<Symbol> symbols(static_cast<std::size_t>(count));
  const auto symbol = [&](std::int32_t i) -> Symbol& {
    return symbols[static_cast<std::size_t>(i)];
  };
  for (std::int32_t i = 0; i < count; ++i) {
    symbol(i) = {ids[first + static_cast<std::size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1, 0, 1};
  }
  auto queue = queue_make<Candidate>(symbols.size());
  const auto enqueue = [&](std::int32_t left) {
    if (left < 0 || symbol(left).next < 0) return;
    const auto merge = merges_.find(symbol(left).id, symbol(symbol(left).next).id);
    if (merge.id >= 0) queue.push({merge.rank, left, merge.id});
  };
  for (std::int32_t i = 0; i + 1 < count; ++i) enqueue(i);

  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbol(top.left);
    if (left.size == 0 || left.next < 0) continue;
    Symbol& right = symbol(left.next);
    // Either of the two may have merged otherwise since.
    if (merges_.find(left.id, right.id).id != top.id) continue;
    left.id = top.id;
    left.next = right.next;
    right.size = 0;
    if (left.next >= 0) symbol(left.next).previous = top.left;
    enqueue(left.previous);
    enqueue(top.left);
  }
  ids.resize(first);
  for (const Symbol& kept : symbols) {
    if (kept.size > 0) ids.push_back(kept.id);
  }
}

void BpeModel::encode_by_scores(std::string_view word, std::vector<std::int32_t>& ids) const {
  std::vector<Symbol> symbols;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t size = std::min(utf8_length(word[at]), word.size() - at);
    const auto i = static_cast<std::int32_t>(symbols.size());
    symbols.push_back(
        {-1, i - 1, i + 1, static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(size)});
    at += size;
  }
  symbols.back().next = -1;
  const auto symbol = [&](std::int32_t i) -> Symbol& {
    return symbols[static_cast<std::size_t>(i)];
  };
  // The token of a stretch of the word that merging may make, or -1.
  const auto token_of = [&](std::size_t begin, std::size_t size) {
    if (size > vocabulary_.longest()) return -1;
    const std::int32_t id = vocabulary_.find(word.substr(begin, size));
    return id >= 0 && scores_[static_cast<std::size_t>(id)] ? id : -1;
  };
  auto queue = queue_make<ScoredCandidate>(symbols.size());
  const auto enqueue = [&](std::int32_t left) {
    if (left < 0 || symbol(left).next < 0) return;
    const std::uint32_t size = symbol(left).size + symbol(symbol(left).next).size;
    const std::int32_t id = token_of(symbol(left).begin, size);
    if (id >= 0) queue.push({*scores_[static_cast<std::size_t>(id)], left, id, size});
  };
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) enqueue(static_cast<std::int32_t>(i));

  while (!queue.empty()) {
    const ScoredCandidate top = queue.top();
    queue.pop();
    Symbol& left = symbol(top.left);
    if (left.size == 0 || left.next < 0) continue;
    Symbol& right = symbol(left.next);
    if (left.size + right.size != top.size) continue;
    left.id = top.id;
    left.size = top.size;
    left.next = right.next;
    right.size = 0;
    if (left.next >= 0) symbol(left.next).previous = top.left;
    enqueue(left.previous);
    enqueue(top.left);
  }

  std::int32_t pending = -1;
  for (const Symbol& kept : symbols) {
    if (kept.size == 0) continue;
    const std::int32_t id = kept.id >= 0 ? kept.id : token_of(kept.begin, kept.size);
    if (id < 0) {
      fallback(word.substr(kept.begin, kept.size), ids, pending);
      continue;
    }
    if (pending >= 0) ids.push_back(pending);
    pending = -1;
    ids.push_back(id);
  }
  if (pending >= 0) ids.push_back(pending);
}

}  // namespace lca
