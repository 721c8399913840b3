#include "attention/frozen_cache.h"

#include <algorithm>
#include <cstring>

namespace lca {
namespace {

constexpr std::int64_t kMostPositions = 32;
constexpr std::int64_t kMostBytes = 16 << 10;  ///< of a block, where a row is not larger

/// Positions of a block: the more, the fewer blocks; the fewer, the less is lost at its ends.
std::int64_t block_positions(std::int64_t row_bytes, std::int64_t most) {
  std::int64_t unit = kMostPositions;
  while (unit > 1 && (unit * row_bytes > kMostBytes || unit / 2 >= most)) unit /= 2;
  return unit;
}

}  // namespace

struct FrozenRows::Block {
  Block(std::int64_t the_begin, std::int64_t bytes, std::shared_ptr<FrozenBytes> the_count)
      : memory(std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes))),
        begin(the_begin),
        size(static_cast<std::size_t>(bytes)),
        count(std::move(the_count)) {
    count->blocks += size;
  }
  ~Block() { count->blocks -= size; }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  std::unique_ptr<std::byte[]> memory;  // only copied and compared: nothing needs it aligned
  std::int64_t begin;                   // position of its first slot
  std::int64_t first = 0, last = 0;     // positions whose rows it holds: [first, last)
  std::size_t size;
  std::shared_ptr<FrozenBytes> count;

  std::byte* row(std::int64_t position, std::int64_t row_bytes) const {
    return memory.get() + (position - begin) * row_bytes;
  }
  /// Takes rows [from, to) over, unless it has other rows at one of these positions, or would be in
  /// two pieces.
  bool takes(const std::byte* data, std::int64_t from, std::int64_t to, std::int64_t row_bytes) {
    if (from > last || to < first) return false;
    const std::int64_t both = std::max(from, first);
    const std::int64_t end = std::min(to, last);
    const auto bytes = [&](std::int64_t rows) {
      return static_cast<std::size_t>(rows * row_bytes);
    };
    if (both < end && std::memcmp(row(both, row_bytes), data + (both - from) * row_bytes,
                                  bytes(end - both)) != 0) {
      return false;
    }
    if (from < first) std::memcpy(row(from, row_bytes), data, bytes(first - from));
    if (to > last) {
      std::memcpy(row(last, row_bytes), data + (last - from) * row_bytes, bytes(to - last));
    }
    first = std::min(first, from);
    last = std::max(last, to);
    return true;
  }
};

std::shared_ptr<FrozenRows::Block> FrozenRows::block_at(std::int64_t begin) const {
  if (blocks_.empty()) return nullptr;
  const std::int64_t index = (begin - blocks_.front()->begin) / unit_;
  if (begin < blocks_.front()->begin || index >= std::ssize(blocks_)) return nullptr;
  return blocks_[static_cast<std::size_t>(index)];
}

FrozenRows::FrozenRows(const RowBuffer& rows, std::int64_t first, std::int64_t position,
                       std::int64_t most, std::span<const FrozenRows* const> alike,
                       const std::shared_ptr<FrozenBytes>& count)
    : row_bytes_(rows.row_bytes()),
      position_(position),
      rows_(rows.rows() - first),
      unit_(block_positions(rows.row_bytes(), most)) {
  const std::int64_t end = position + rows_;
  for (std::int64_t from = position; from < end;) {
    const std::int64_t begin = from / unit_ * unit_;
    const std::int64_t to = std::min(end, begin + unit_);
    const std::byte* data = rows.row(first + from - position);
    std::shared_ptr<Block> block;
    for (const FrozenRows* other : alike) {
      if (other->row_bytes_ != row_bytes_ || other->unit_ != unit_) continue;
      block = other->block_at(begin);
      if (block && block->takes(data, from, to, row_bytes_)) break;
      block.reset();
    }
    if (!block) {
      block = std::make_shared<Block>(begin, unit_ * row_bytes_, count);
      block->first = block->last = from;
      block->takes(data, from, to, row_bytes_);
    }
    blocks_.push_back(std::move(block));
    from = to;
  }
}

void FrozenRows::thaw(RowBuffer& rows) const {
  if (rows_ == 0) return;
  std::byte* to = rows.grow_with_spare(rows_);
  std::int64_t position = position_;
  for (const std::shared_ptr<Block>& block : blocks_) {
    const std::int64_t end = std::min(position_ + rows_, block->begin + unit_);
    const auto bytes = static_cast<std::size_t>((end - position) * row_bytes_);
    std::memcpy(to, block->row(position, row_bytes_), bytes);
    to += bytes;
    position = end;
  }
}

FrozenCache::FrozenCache(const Cache& cache, std::span<const FrozenCache* const> alike,
                         const std::shared_ptr<FrozenBytes>& count)
    : spec_(cache.spec()),
      length_(cache.length()),
      dropped_(cache.state().dropped),
      prompt_open_(cache.state().prompt_open),
      groups_(cache.state().groups.share(cache.groups())) {
  const Cache::State& state = cache.state();
  const auto all = state.buffers();
  const std::size_t sink = (all.size() - 1) / 2;  // its parts, those of the window, queries
  rows_.reserve(all.size());
  std::vector<const FrozenRows*> others;
  for (std::size_t i = 0; i < all.size(); ++i) {
    others.clear();
    for (const FrozenCache* other : alike) {
      if (i < other->rows_.size()) others.push_back(&other->rows_[i]);
    }
    const RowBuffer& rows = *all[i];
    const std::int64_t begin = i < sink ? 0 : length_ - rows.rows();
    // Of the queries those that the next group needs, also after a cut inside the window: it is the
    // same group then.
    const std::int64_t first =
        &rows == &state.queries && !state.prompt_open
            ? std::clamp<std::int64_t>(state.layout.first_query_needed(length_) - begin, 0,
                                       rows.rows())
            : 0;
    const std::int64_t most = i < sink ? state.layout.sink : kMostPositions;
    rows_.emplace_back(rows, first, begin + first, most, others, count);
  }
}

Cache FrozenCache::thaw() const {
  Cache cache(spec_);
  Cache::State& state = cache.state();
  state.length = length_;
  state.dropped = dropped_;
  state.prompt_open = prompt_open_;
  state.groups = groups_.share(groups_.rows());
  const auto all = state.buffers();
  for (std::size_t i = 0; i < all.size(); ++i) rows_[i].thaw(*all[i]);
  return cache;
}

}  // namespace lca
