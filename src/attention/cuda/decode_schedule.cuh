#pragma once
/// Which tiles a decode step on Hopper reads, and which block reads them.

#include "attention/cuda/decode_tiles.cuh"

namespace lca::cuda::decoding {

/// Consecutive rows of one tensor, at most a tile of them.
struct Rows {
  enum Kind { page, exact, made } kind;  ///< `made`: this step's representative
  int first;                             ///< entry of the list
  int count;
  int row;  ///< exact: of the session's; page: in `pages`
};

/// What one session reads in this step, in tiles: pages of representatives, exact tokens (the sink,
/// the window up to the ring's end, the rest of it), and at last, by itself, the representative
/// that comes to be in this step: it takes longest to be there. Blocks share the tiles evenly.
struct Schedule {
  int stored;    ///< representatives that are in pages
  int begin[4];  ///< of the three kinds of exact tokens in the list, and their end
  int row[3];    ///< of the session's exact tokens
  int pages;     ///< tiles of each
  int exact_tiles[3];
  int loads;        ///< tiles that are read from memory
  int count;        ///< all tiles
  int first, last;  ///< tiles of this block
  int active;       ///< blocks that have some

  __device__ Schedule(const Args& args, const Place& at, int block) {
    const int window = at.groups + at.sink_size;
    const int start = max(at.window_begin - at.sink, 0) % at.ring;
    stored = at.leaves ? at.groups - 1 : at.groups;
    pages = (stored + kTile - 1) / kTile;
    begin[0] = at.groups;
    begin[1] = window;
    begin[2] = min(at.entries, window + at.ring - start);
    begin[3] = at.entries;
    row[0] = 0;
    row[1] = at.sink + start;
    row[2] = at.sink;
    loads = pages;
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      exact_tiles[k] = (begin[k + 1] - begin[k] + kTile - 1) / kTile;
      loads += exact_tiles[k];
    }
    count = loads + (at.leaves ? 1 : 0);
    const int each = max(args.chunk / kTile, (count + args.blocks - 1) / args.blocks);
    active = (count + each - 1) / each;
    first = min(block * each, count);
    last = min(first + each, count);
  }
  __device__ bool owns_newest_token() const { return first < loads && last >= loads; }
  __device__ bool owns_newest_group() const { return loads < last; }

  __device__ Rows operator()(int index) const {
    if (index < pages) {
      return {Rows::page, index * kTile, min(kTile, stored - index * kTile), index};
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
    const int from = (k == 0 ? begin[0] : k == 1 ? begin[1] : begin[2]) + tile * kTile;
    const int end = k == 0 ? begin[1] : k == 1 ? begin[2] : begin[3];
    return {Rows::exact, from, min(kTile, end - from),
            (k == 0   ? row[0]
             : k == 1 ? row[1]
                      : row[2]) +
                tile * kTile};
  }
};

}  // namespace lca::cuda::decoding
