#pragma once
/// A cache that is kept but not in use. Its exact tokens and queries lie in blocks of consecutive
/// positions, and caches of sequences that begin alike share the blocks that they have in common.
///
/// A block begins at a multiple of its number of positions and holds some of them, one piece. A
/// cache refers to the rows that are its own. Where one begins or ends inside a block and another
/// has more rows there, the block takes up the missing rows: rows that are there never change.
/// What is shared is decided by comparing bytes, so that it does not matter in which chunks the
/// sequences were read.
///
/// One thread at a time works on caches that share blocks.

#include <lca/cache.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attention/cache_state.h"

namespace lca {

/// Memory of blocks, each counted once however many caches hold it.
struct FrozenBytes {
  std::size_t blocks = 0;
};

/// The rows of one RowBuffer.
class FrozenRows {
 public:
  /// Rows from `first` on, which is at `position`. The buffer never has more than `most` rows;
  /// larger numbers than a block's positions do not matter. `alike`: the same buffer of other
  /// caches.
  FrozenRows(const RowBuffer& rows, std::int64_t first, std::int64_t position, std::int64_t most,
             std::span<const FrozenRows* const> alike, const std::shared_ptr<FrozenBytes>& count);

  /// Appends the rows to an empty buffer, with room for some more.
  void thaw(RowBuffer& rows) const;

 private:
  struct Block;
  /// The block that begins at position `begin`, or null.
  std::shared_ptr<Block> block_at(std::int64_t begin) const;

  std::int64_t row_bytes_;
  std::int64_t position_;
  std::int64_t rows_;
  std::int64_t unit_;  // positions of a block
  std::vector<std::shared_ptr<Block>> blocks_;
};

class FrozenCache {
 public:
  /// Of a cache outside a step. `alike`: frozen caches of the same layer, the most similar first.
  FrozenCache(const Cache& cache, std::span<const FrozenCache* const> alike,
              const std::shared_ptr<FrozenBytes>& count);

  /// The same cache, to go on with.
  Cache thaw() const;
  /// Of the representatives' pages, which other caches hold too.
  std::size_t group_bytes() const { return groups_.capacity_bytes(); }

 private:
  LayerSpec spec_;
  std::int64_t length_, dropped_;
  bool prompt_open_;
  GroupRows groups_;
  std::vector<FrozenRows> rows_;  // of `Cache::State::buffers`
};

}  // namespace lca
