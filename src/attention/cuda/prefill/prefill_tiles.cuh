#pragma once
/// The work of Hopper's prefill as numbers: items of work, and the virtual list of key blocks of
/// each. The index law itself is layout.h's; here is only which blocks of keys a tile of queries
/// meets, and what of them a row sees.

#include <cstdint>

#include "attention/layout.h"

namespace lca::cuda {

constexpr int kQueries = 128;  ///< queries of a tile

/// A run as the kernel sees it.
struct RunWork {
  std::int64_t query_row, exact_row, group_row;
  std::int32_t query_first, query_count, exact_gone, groups;
  std::int32_t tiles, first_item;
};

/// Query heads, and in what portions they are worked on.
struct Heads {
  int all, per_kv, at_once;
};

/// One item of work, as the producer hands it to the consumers.
struct QueryTile {
  std::int64_t query_row;  // of the first query, in out and lse
  std::int64_t group_row;  // of representative 0
  std::int32_t rows;       // 0: no more work
  std::int32_t head, kv;
  std::int32_t first, last;  // positions of queries
  std::int32_t local_blocks, sink_blocks, group_blocks;
  std::int32_t low_all;     // lowest position that every query sees through its window
  std::int32_t groups_all;  // representatives that every query sees
  std::int32_t floor;       // exact tokens below are not held
  std::int32_t sink;        // tokens in sink blocks
  std::int32_t groups;      // representatives there are
  std::int32_t merged;      // sink and window of the first query touch: local blocks hold both
  std::int32_t exact_base;  // row of position 0, for local blocks
  std::int32_t sink_base;   // the same for sink blocks

  __device__ int blocks() const { return local_blocks + sink_blocks + group_blocks; }
};

enum class BlockKind { local, sink, groups };

struct Block {
  BlockKind kind;
  int base;  // position, or representative, of its first key
};

template <int kKeys>
__device__ __forceinline__ Block tile_block(const QueryTile& tile, int n) {
  if (n < tile.local_blocks) return {BlockKind::local, tile.last + 1 - kKeys * (n + 1)};
  n -= tile.local_blocks;
  if (n < tile.sink_blocks) return {BlockKind::sink, kKeys * n};
  return {BlockKind::groups, kKeys * (tile.group_blocks - 1 - (n - tile.sink_blocks))};
}

/// Item `item` of a run: which head, which queries, and the blocks they see. With entry positions
/// (kEntry) a row that has dropped tokens sees the sink with another form of its query than the
/// window: then the sink has blocks of its own even where local blocks hold it too.
template <int kKeys, bool kEntry>
__device__ __forceinline__ void tile_fill(const Layout32& layout, const Heads& p,
                                          const RunWork& run, int item, QueryTile& tile) {
  const int local = item - run.first_item;
  const int group_items = run.tiles * p.at_once;
  const int group = local / group_items;
  const int rest = local - group * group_items;
  const int heads = min(p.at_once, p.all - group * p.at_once);
  const int index = run.tiles - 1 - rest / heads;  // the last queries see the most
  tile.head = group * p.at_once + rest % heads;
  tile.kv = tile.head / p.per_kv;
  tile.query_row = run.query_row + index * kQueries;
  tile.group_row = run.group_row;
  tile.rows = min(kQueries, run.query_count - index * kQueries);
  tile.first = run.query_first + index * kQueries;
  tile.last = tile.first + tile.rows - 1;
  const BasicVisible<std::int32_t> a = layout.visible(tile.first);
  const BasicVisible<std::int32_t> b = layout.visible(tile.last);
  tile.merged = a.window.begin == a.sink.end;
  const int low = tile.merged ? 0 : a.window.begin;
  tile.low_all = b.window.begin == b.sink.end ? 0 : b.window.begin;
  tile.sink = b.sink.end;
  tile.groups_all = a.groups;
  tile.groups = run.groups;
  tile.local_blocks = (tile.last + 1 - low + kKeys - 1) / kKeys;
  const bool apart = kEntry ? b.window.begin > b.sink.end : !tile.merged;
  tile.sink_blocks = apart ? (tile.sink + kKeys - 1) / kKeys : 0;
  tile.group_blocks = (b.groups + kKeys - 1) / kKeys;
  tile.floor = run.exact_gone > 0 ? layout.sink + run.exact_gone : 0;
  tile.exact_base = static_cast<int>(run.exact_row - run.exact_gone);
  tile.sink_base = static_cast<int>(run.exact_row);
}

/// Row of a block's first key in its tensors.
__device__ __forceinline__ int block_row(const QueryTile& tile, const Block& block) {
  if (block.kind == BlockKind::groups) return block.base + static_cast<int>(tile.group_row);
  return block.base + (block.kind == BlockKind::sink ? tile.sink_base : tile.exact_base);
}

/// What one row of a tile sees.
struct Row {
  int position, low, sink, groups;
};

__device__ __forceinline__ Row row_of(const Layout32& layout, const QueryTile& tile, int row) {
  const int position = min(tile.first + row, tile.last);
  const BasicVisible<std::int32_t> visible = layout.visible(position);
  return {position, visible.window.begin, visible.sink.end, visible.groups};
}

/// The columns of one block that one row sees: `count` from `low` on, and those below `sink`.
struct Span {
  int low;
  unsigned count;
  int sink;
};

template <bool kEntry>
__device__ __forceinline__ Span row_span(const Row& row, const QueryTile& tile, BlockKind kind) {
  if (kind == BlockKind::groups) return {0, static_cast<unsigned>(row.groups), 0};
  if (kind == BlockKind::sink) {
    // A row without a gap has seen the sink in its local blocks where those hold it.
    if (kEntry && tile.merged && row.low <= row.sink) return {0, 0, 0};
    return {0, static_cast<unsigned>(min(row.position + 1, row.sink)), 0};
  }
  const bool gap = row.low > row.sink;
  const int low = tile.merged && !gap ? 0 : row.low;
  return {low, static_cast<unsigned>(max(row.position + 1 - low, 0)),
          !kEntry && tile.merged && gap ? row.sink : 0};
}

template <int kKeys>
__device__ __forceinline__ bool block_needs_mask(const QueryTile& tile, const Block& block) {
  if (block.kind == BlockKind::groups) return block.base + kKeys > tile.groups_all;
  if (block.kind == BlockKind::sink) return true;
  return block.base < tile.low_all || block.base + kKeys - 1 > tile.first;
}

/// Rows [begin, end) of a block hold what the run owns; the others may hold anything, and even a
/// probability of zero does not cancel a NaN.
template <int kKeys>
__device__ __forceinline__ int2 block_owned(const QueryTile& tile, const Block& block) {
  if (block.kind == BlockKind::groups) return {0, min(kKeys, tile.groups - block.base)};
  if (block.kind == BlockKind::sink) return {0, min(kKeys, tile.sink - block.base)};
  return {max(0, tile.floor - block.base), kKeys};
}

}  // namespace lca::cuda
