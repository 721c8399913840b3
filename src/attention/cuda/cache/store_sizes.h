#pragma once
/// How large the pieces of a store are, without a GPU: what a store lays out, and what plans count.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/cuda/views.h"

namespace lca::cuda {

/// Addresses a store reserves; they cost next to nothing.
struct StoreLimits {
  int sequences = 1024;                          ///< open at a time
  std::int64_t longest = std::int64_t{1} << 20;  ///< tokens of one sequence
  bool poison = false;                           ///< new memory is full of NaN, pages are shuffled
};

/// Bytes of a store, or of one sequence, by what they hold.
struct StoreBytes {
  std::size_t groups = 0;   ///< representatives, in pages
  std::size_t exact = 0;    ///< sinks and windows, and tokens of dense layers
  std::size_t queries = 0;  ///< recent queries, raw and reduced
  std::size_t tables = 0;   ///< page tables
  std::size_t total() const { return groups + exact + queries + tables; }
};

/// Arrays of a store. Sizes are bytes; an array that is not needed has 0.
struct StoreSizes {
  /// Rows of a block of exact tokens, layer by layer: of windows, and of slots (dense layers).
  std::vector<std::int64_t> window_rows, dense_rows;

  /// Recent queries of one window: summaries, and raw queries without and with position.
  std::size_t summary = 0, recent_nope = 0, recent_rope = 0;
  /// Where those of each layer that condenses begin.
  std::vector<std::array<std::size_t, 3>> query_begins;

  /// Representatives of one page, of all layers that condense.
  std::size_t group_semantic = 0, group_positional = 0;
  std::size_t semantic_scale = 0, positional_scale = 0, bias = 0;

  std::int64_t pages_each = 0;  ///< pages of the longest sequence
  std::size_t table = 0;        ///< of one slot

  std::array<std::size_t, 3> queries() const { return {summary, recent_nope, recent_rope}; }
  std::array<std::size_t, 5> pages() const {
    return {group_semantic, group_positional, semantic_scale, positional_scale, bias};
  }
};

/// Throws Error (bad input) where no store can hold these layers.
void store_specs_check(std::span<const LayerSpec> layers, const StoreLimits& limits);
StoreSizes store_sizes(std::span<const LayerSpec> layers, GroupType type,
                       const StoreLimits& limits);

/// Tokens that a dense layer has memory for: a decode step loads whole tiles, the last one beyond
/// the tokens.
inline std::int64_t dense_tokens_held(std::int64_t tokens) {
  constexpr std::int64_t kTileRows = 64;
  return (tokens + kTileRows - 1) / kTileRows * kTileRows + kTileRows;
}

/// Pages of a sequence of `length` tokens.
std::int64_t store_pages(std::span<const LayerSpec> layers, std::int64_t length);

/// What is in a store.
struct StoreUse {
  std::int64_t sequences = 1;
  std::int64_t length = 0;         ///< of each
  std::int64_t spare_windows = 0;  ///< beside those of the sequences
  std::int64_t spare_tokens = 0;   ///< that each of them holds
};

/// Memory that backs this use, in whole granules, as CacheStore::backed counts it.
StoreBytes store_backed(std::span<const LayerSpec> layers, GroupType type,
                        const StoreLimits& limits, const StoreUse& use);

}  // namespace lca::cuda
