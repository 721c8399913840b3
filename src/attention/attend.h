#pragma once
/// Attention of runs of queries to what their caches hold, on the CPU. Two forms give the same
/// result up to rounding: per-head tiles, which rebuild keys and values (MLA) or lay them out (GQA)
/// once for many queries; and the absorbed form, which reads the cache as it is, for few.

#include <lca/context.h>
#include <lca/method.h>

#include <cstdint>
#include <span>

namespace lca {

/// Picks the cheaper form for each run. All runs share one LayerSpec; queries of run i start at
/// position first[i]; entries up to them must be in the cache.
void attend(Context& context, const LayerWeights& weights, std::span<const Run> runs,
            std::span<const std::int64_t> first);

/// Tiles of one head at a time: MLA's keys and values exist for at most one head.
void attend_tiles(Context& context, const LayerWeights& weights, std::span<const Run> runs,
                  std::span<const std::int64_t> first);

/// MLA in absorbed form, GQA straight on the rows.
void attend_rows(Context& context, const LayerWeights& weights, std::span<const Run> runs,
                 std::span<const std::int64_t> first);

/// Whether `attend` reads rows as they are for a run of this many queries.
bool attend_prefers_rows(const AttentionShape& shape, std::int64_t run);

/// Scratch bytes for one run of `run` queries over `rows` exact rows and `groups` representatives.
std::size_t attend_tiles_workspace_bytes(const LayerSpec& spec, std::int64_t rows,
                                         std::int64_t groups, int threads);
std::size_t attend_rows_workspace_bytes(const LayerSpec& spec, std::int64_t run, int threads);

}  // namespace lca
