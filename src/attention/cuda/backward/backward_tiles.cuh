#pragma once
/// The work of the keys kernel as numbers. An item is a block of keys of one KV head (MLA: of one
/// head) with all queries that see it. First come the items of sinks and representatives, which
/// all later queries see, then those of other tokens, which about w + g + 128 queries see. Where
/// items would be too long each is cut into slices of its (head, tile) pairs.

#include "attention/cuda/backward/backward_plan.h"

namespace lca::cuda {

enum class KeyKind : std::int32_t { sink, local, groups };

struct KeyItem {
  KeyKind kind;
  std::int32_t rows;                    // keys that exist; 0: no more work
  std::int32_t base;                    // position, or representative, of the first key
  std::int32_t key_row;                 // its row in the keys' tensors
  std::int64_t key_index;               // its index among all keys
  std::int32_t kv, head, heads;         // KV head, and the query heads it serves
  std::int32_t tile_first, tile_count;  // tiles of queries, of each head
  std::int32_t all_begin, all_end;      // queries that see every key of the block
  std::int32_t count;                   // queries there are
  std::int32_t query_row;
  std::int64_t stat_row;
  std::int32_t step_begin, step_end;  // of heads · tile_count: heads ascending, tiles descending
  float* partial;                     // row 0 of the slice's sums; null: gradients are written
};

/// The queries that see one key: `Layout` turned round.
__device__ __forceinline__ BasicRange<std::int32_t> key_queries(const Layout32& layout,
                                                                KeyKind kind, int key, int count) {
  return kind == KeyKind::groups ? layout.group_queries(key, count)
                                 : layout.token_queries(key, count);
}

/// Items in the order they are taken.
struct KeyItems {
  Layout32 layout;
  const BackwardRun* runs;
  int run_count;
  int far_items, items;
  int kv_heads, heads_per_kv;
  KeySlices far, local;
  int partial_width;
};

/// Fills one item. `run` is where the search begins: items only grow.
template <int kTile>
__device__ __forceinline__ void item_fill(const KeyItems& all, int index, int& run, KeyItem& item) {
  const bool far = index < all.far_items;
  if (!far) {
    index -= all.far_items;
    if (run >= 0) run = -1;  // a second walk over the runs: −1 − run
  }
  int at = far ? run : -1 - run;
  while (at + 1 < all.run_count &&
         index >= (far ? all.runs[at + 1].first_far_item : all.runs[at + 1].first_local_item)) {
    ++at;
  }
  run = far ? at : -1 - at;
  const BackwardRun& doc = all.runs[at];
  // Blocks of one head follow each other: they read the same queries at about the same time.
  const KeySlices& slices = far ? all.far : all.local;
  const int slice = (index - (far ? doc.first_far_item : doc.first_local_item)) % slices.count;
  const int local = (index - (far ? doc.first_far_item : doc.first_local_item)) / slices.count;
  const int blocks = far ? doc.sink_blocks + doc.group_blocks : doc.local_blocks;
  item.kv = local / blocks;
  int block = local % blocks;
  const int sink = min(all.layout.sink, doc.count);
  int end;
  if (!far) {
    item.kind = KeyKind::local;
    item.base = sink + block * kKeyBlock;
    end = doc.count;
  } else if (block < doc.sink_blocks) {
    item.kind = KeyKind::sink;
    item.base = block * kKeyBlock;
    end = sink;
  } else {
    item.kind = KeyKind::groups;
    item.base = (block - doc.sink_blocks) * kKeyBlock;
    end = doc.groups;
  }
  const bool groups = item.kind == KeyKind::groups;
  item.rows = min(kKeyBlock, end - item.base);
  item.key_row = static_cast<int>(groups ? doc.group_row : doc.exact_row) + item.base;
  item.key_index = doc.key_first + (groups ? doc.count : 0) + item.base;
  item.head = item.kv * all.heads_per_kv;
  item.heads = all.heads_per_kv;
  item.count = doc.count;
  item.query_row = static_cast<int>(doc.query_row);
  item.stat_row = doc.stat_row;
  const auto first = key_queries(all.layout, item.kind, item.base, doc.count);
  const auto last = key_queries(all.layout, item.kind, item.base + item.rows - 1, doc.count);
  item.tile_first = first.begin / kTile;
  item.tile_count = (last.end - 1) / kTile + 1 - item.tile_first;
  item.all_begin = last.begin;
  item.all_end = first.end;
  const std::int64_t steps = static_cast<std::int64_t>(item.heads) * item.tile_count;
  item.step_begin = static_cast<int>(steps * slice / slices.count);
  item.step_end = static_cast<int>(steps * (slice + 1) / slices.count);
  item.partial = nullptr;
  if (slices.count > 1) {
    const std::int64_t row = far ? doc.first_far_row + (groups ? sink : 0) + item.base
                                 : doc.first_local_row + item.base - sink;
    item.partial = slices.partials +
                   ((slice * slices.rows + row) * all.kv_heads + item.kv) * all.partial_width;
  }
}

}  // namespace lca::cuda
