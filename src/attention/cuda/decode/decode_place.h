#pragma once
/// What a decode step reads: where a session stands, and, for Hopper's kernel, which tiles there
/// are and who reads them. Numbers alone, the same on the host and on the GPU.

#include <cstdint>

#include "attention/layout.h"

namespace lca::cuda::decoding {

inline constexpr int kTile = 64;  ///< entries of a tile

/// Where one session stands in this step. The list of entries it reads is: representatives
/// [0, groups), then tokens of the sink, then tokens of the window; the newest token is last.
struct Place {
  int n;  ///< tokens, the new one included
  int groups;
  int sink;       ///< s
  int sink_size;  ///< tokens of the sink that exist
  int window_begin;
  int ring;
  int entries;
  bool leaves;      ///< representative groups − 1 is condensed in this step
  int first, last;  ///< this block's part of the list

  /// After `length` tokens, with a ring of `rows` rows. The ring is looked at last: the length is
  /// what everything waits for.
  LCA_HOST_DEVICE Place(const Layout32& layout, int length, const int& rows) {
    n = length + 1;
    const BasicVisible<std::int32_t> seen = layout.visible(n - 1);
    groups = seen.groups;
    sink = layout.sink;
    sink_size = seen.sink.size();
    window_begin = seen.window.begin;
    ring = rows;
    entries = seen.pairs();
    leaves = groups > 0 && layout.group_exit(seen.groups - 1) == n - 1;
  }

  /// Row in the ring of exact token number e of the list.
  LCA_HOST_DEVICE int exact_row(int e) const {
    const int p = e < sink_size ? e : window_begin + (e - sink_size);
    return position_row(p);
  }
  LCA_HOST_DEVICE int position_row(int p) const { return p < sink ? p : sink + (p - sink) % ring; }
  /// The row of the ring `count` rows after `row`, at most one lap.
  LCA_HOST_DEVICE int row_after(int row, int count) const {
    return row + count < sink + ring ? row + count : row + count - ring;
  }
  LCA_HOST_DEVICE bool owns_newest_group() const {
    return leaves && first <= groups - 1 && groups - 1 < last;
  }
  LCA_HOST_DEVICE bool owns_newest_token() const { return first < entries && last == entries; }
};

LCA_HOST_DEVICE constexpr int smaller(int a, int b) { return a < b ? a : b; }
LCA_HOST_DEVICE constexpr int larger(int a, int b) { return a > b ? a : b; }

/// Consecutive rows of one tensor, at most a tile of them.
struct Rows {
  enum Kind { page, exact, made } kind;  ///< `made`: this step's representative
  int first;                             ///< entry of the list
  int count;
  int row;  ///< exact: of the session's; page: in `pages`
};

/// What one session reads in this step, in tiles: pages of representatives, exact tokens (the sink,
/// the window up to the ring's end, the rest of it), and at last, by itself, the representative
/// condensed in this step: it is ready last. Blocks share the tiles evenly, each
/// with `fewest_tiles` or more. Tiles of exact tokens have `exact_tile` of them.
struct Schedule {
  int exact_tile;
  int stored;    ///< representatives that are in pages
  int begin[4];  ///< of the three kinds of exact tokens in the list, and their end
  int row[3];    ///< of the session's exact tokens
  int pages;     ///< tiles of each
  int exact_tiles[3];
  int loads;        ///< tiles that are read from memory
  int count;        ///< all tiles
  int first, last;  ///< tiles of this block
  int active;       ///< blocks that have some

  LCA_HOST_DEVICE Schedule(const Place& at, int most_blocks, int fewest_tiles, int block,
                           int exact_rows = kTile)
      : exact_tile(exact_rows) {
    const int window = at.groups + at.sink_size;
    const int start = larger(at.window_begin - at.sink, 0) % at.ring;
    stored = at.leaves ? at.groups - 1 : at.groups;
    pages = (stored + kTile - 1) / kTile;
    begin[0] = at.groups;
    begin[1] = window;
    begin[2] = smaller(at.entries, window + at.ring - start);
    begin[3] = at.entries;
    row[0] = 0;
    row[1] = at.sink + start;
    row[2] = at.sink;
    loads = pages;
    for (int k = 0; k < 3; ++k) {
      exact_tiles[k] = (begin[k + 1] - begin[k] + exact_tile - 1) / exact_tile;
      loads += exact_tiles[k];
    }
    count = loads + (at.leaves ? 1 : 0);
    const int each = larger(fewest_tiles, (count + most_blocks - 1) / most_blocks);
    active = (count + each - 1) / each;
    first = smaller(block * each, count);
    last = smaller(first + each, count);
  }
  LCA_HOST_DEVICE bool owns_newest_token() const { return first < loads && last >= loads; }
  LCA_HOST_DEVICE bool owns_newest_group() const { return first <= loads && loads < last; }

  LCA_HOST_DEVICE Rows operator()(int index) const {
    if (index < pages) {
      return {Rows::page, index * kTile, smaller(kTile, stored - index * kTile), index};
    }
    if (index >= loads) return {Rows::made, stored, 1, 0};
    int tile = index - pages;
    int k = 0;
    if (tile >= exact_tiles[0]) {
      tile -= exact_tiles[0];
      k = 1;
      if (tile >= exact_tiles[1]) {
        tile -= exact_tiles[1];
        k = 2;
      }
    }
    const int from = (k == 0 ? begin[0] : k == 1 ? begin[1] : begin[2]) + tile * exact_tile;
    const int end = k == 0 ? begin[1] : k == 1 ? begin[2] : begin[3];
    return {Rows::exact, from, smaller(exact_tile, end - from),
            (k == 0   ? row[0]
             : k == 1 ? row[1]
                      : row[2]) +
                tile * exact_tile};
  }
};

}  // namespace lca::cuda::decoding
