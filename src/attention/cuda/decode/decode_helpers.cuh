#pragma once
/// What else Hopper's decode kernels for wide latents share: tensor maps of the rows that tiles
/// come from, the newest token, and what the warps of the producer group do that do not load tiles.

#include "attention/cuda/decode/decode_group.cuh"
#include "attention/cuda/decode/decode_warps.cuh"
#include "core/cuda/tensor_map.h"

namespace lca::cuda::decoding::streaming {

/// The four tensors that tiles come from: rows of pages and of exact tokens.
struct RowMaps {
  CUtensorMap group_semantic, group_positional, exact_semantic, exact_positional;

  __device__ __forceinline__ void prefetch() const {
    cute::prefetch_tma_descriptor(&group_semantic);
    cute::prefetch_tma_descriptor(&group_positional);
    cute::prefetch_tma_descriptor(&exact_semantic);
    cute::prefetch_tma_descriptor(&exact_positional);
  }
};

/// Rows as a tensor without heads, in boxes of so many rows.
inline CUtensorMap rows_map(const void* data, int width, std::int64_t rows, int box_rows) {
  return tensor_map(HeadRows{static_cast<const bf16*>(data), width, 0, width}, 1, rows, box_rows);
}
/// Rows of pages: how many there are does not matter, only whole pages are read.
inline CUtensorMap pages_map(const void* data, int width) {
  return rows_map(data, width, std::int64_t{1} << 31, kPageRows);
}

/// Asks for one box of rows, 128 bytes of each.
__device__ __forceinline__ void panel_load(const CUtensorMap& map, LoadBarrier& full,
                                           unsigned char* to, int column, int row) {
  constexpr auto kOnce = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
  cute::SM90_TMA_LOAD_3D::copy(&map, reinterpret_cast<std::uint64_t*>(&full), kOnce, to, column, 0,
                               row);
}

/// A tile of bf16 rows, in panels of 64 columns: latents, then RoPE keys.
template <int kPanelBytes>
__device__ __forceinline__ void rows_load(const CUtensorMap& semantic,
                                          const CUtensorMap& positional, LoadBarrier& full,
                                          unsigned char* stage, int row) {
  constexpr int kPanels = R::kWidth / 64;
  full.arrive_and_expect_tx(kPanels * kPanelBytes);
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
    const bool latent = panel < kPanels - 1;
    panel_load(latent ? semantic : positional, full, stage + panel * kPanelBytes,
               latent ? panel * 64 : 0, row);
  }
}

/// Chunk `chunk` of the newest token as it was given: no load waits for its row of the ring.
__device__ __forceinline__ uint4 newest_load(const Args& args, int session, int chunk) {
  const bf16* const semantic = args.step.semantic + session * R::kSemantic;
  const bf16* const positional = args.step.positional + session * R::kPositional;
  const bf16* const from =
      chunk < R::kSemantic / 8 ? semantic + chunk * 8 : positional + (chunk * 8 - R::kSemantic);
  return load_after_wait(reinterpret_cast<const uint4*>(from));
}

/// The representative of this step, on its way from the helpers to the consumer that reads it.
struct FreshGroup {
  alignas(16) std::uint32_t row[R::kWidth / 2];
  float bias;
  CondenseScratch<R, Helpers> scratch;
  Barrier made, helpers_met;

  __device__ __forceinline__ void init() {
    made.init(Helpers::kThreads);
    helpers_met.init(Helpers::kThreads);
  }
  /// Chunk `chunk` of the row, once it is made.
  __device__ __forceinline__ uint4 wait(int chunk) {
    made.wait(0);
    return reinterpret_cast<const uint4*>(row)[min(chunk, R::kChunks - 1)];
  }
};

/// The helpers' part of a step, beside the tiles: they condense the group that leaves the window,
/// if one does, store the newest token, and count the block as one that knows the length.
template <bool kQuant, bool kEntry>
__device__ __forceinline__ void helpers_run(const Args& args, const SessionView& view,
                                            const Place& at, const Schedule& tiles, int session,
                                            int job, FreshGroup& fresh) {
  if (tiles.owns_newest_group()) {
    const auto made = group_condense<R, kQuant, kEntry, Helpers>(
        args, view, at, session, 0, job == 0, fresh.scratch,
        Helpers{WarpsBarrier(fresh.helpers_met)});
#pragma unroll
    for (int k = 0; k < made.kPairs; ++k) {
      fresh.row[Helpers::thread() + k * Helpers::kThreads] = made.pairs[k];
    }
    if (Helpers::thread() == 0) fresh.bias = made.bias;
    fresh.made.arrive();
  }
  if (tiles.owns_newest_token() && job == 0) token_store<R, Helpers>(args, view, at, session, 0);
  if (Helpers::thread() == 0) length_advance(args, session, at.n);
}

}  // namespace lca::cuda::decoding::streaming
