#pragma once
/// What the kernels of the backward pass share: documents as they see them, and scratch.

#include <cstdint>
#include <vector>

#include "attention/cuda/backward/backward.h"

namespace lca::cuda {

inline constexpr int kKeyBlock = 128;  ///< keys that one block of the keys kernel holds
/// A document's first row among statistics: tiles of 64, 96 and 128 queries end inside its own.
inline constexpr int kStatAlign = 384;
inline constexpr int kRopePartial = 64;  ///< width of MLA's RoPE key in the fast kernels

/// One document. Items are (head, block or tile): see backward_tiles.cuh.
struct BackwardRun {
  std::int64_t query_row, exact_row, group_row;
  std::int64_t stat_row;   ///< of its first query among statistics
  std::int64_t key_first;  ///< of its tokens, then its representatives, among keys of all documents
  std::int32_t count, groups;
  std::int32_t tiles, first_tile_item;     ///< queries kernel
  std::int32_t sink_blocks, group_blocks;  ///< keys kernel: those that later queries all see
  std::int32_t local_blocks;               ///< and those of tokens after the sink
  std::int32_t first_far_item, first_local_item;
  std::int64_t first_far_row, first_local_row;  ///< of its keys of that kind among all of that kind
};

/// Items that would take longer than the rest of the GPU's work are cut: each slice takes a part of
/// the queries and leaves sums in float32, which are added in the order of slices.
struct KeySlices {
  int count = 1;
  std::int64_t rows = 0;      ///< keys of this kind
  float* partials = nullptr;  ///< [count][rows][KV][d_score + d_value + 4]: dK, dV, dbias
};
inline constexpr int kSlicePad = 4;  ///< dbias, and what keeps rows aligned

/// Scratch in device memory.
struct BackwardSpace {
  int* counters = nullptr;         ///< [2] items taken
  BackwardRun* runs = nullptr;     ///< [runs]
  float* lse = nullptr;            ///< [H][stat_rows], powers of two; +∞ after a document's end
  float* delta = nullptr;          ///< [H][stat_rows], Σ dout·out; 0 there
  bf16* far = nullptr;             ///< [query_rows][H][d_rope]: q_rope as sink and groups see it
  float* rope_partials = nullptr;  ///< MLA, fast: [H][keys][64] dk_rope of one head
  float* bias_partials = nullptr;  ///< MLA, fast: [H][keys] dbias of one head
  KeySlices far_slices;            ///< of sinks and representatives
  KeySlices local_slices;
  std::size_t bytes = 0;
};

/// Documents in the order they are worked on, and how many there are of what.
struct BackwardPlan {
  std::vector<BackwardRun> runs;
  std::int64_t stat_rows = 0, keys = 0, groups = 0;
  std::int64_t tile_items = 0, far_items = 0, local_items = 0;
  KeySlices far, local;
};

BackwardPlan backward_plan(const PrefillBackward& problem, std::span<const PrefillRun> runs);
BackwardSpace backward_carve(const PrefillBackward& problem, const BackwardPlan& plan, bool fast,
                             void* memory);

/// Heads that keys of the problem have.
inline int key_heads(const Prefill& problem) {
  return problem.form == Form::gqa ? problem.kv_heads : problem.heads;
}

// --- the passes, in their order ------------------------------------------------------------------

/// Fills `runs`, `lse`, `delta` and `far`.
void backward_prepare(const PrefillBackward& problem, const BackwardPlan& plan,
                      const BackwardSpace& space, const Queue& queue);
/// Sums slices 0, 1, …; MLA's RoPE keys and biases go on to `rope_partials` and `bias_partials`.
void backward_slices_sum(const PrefillBackward& problem, const BackwardPlan& plan,
                         const BackwardSpace& space, const Queue& queue);
/// Sums partials over heads 0, 1, … H − 1 into MLA's gradients of RoPE keys and biases.
void backward_heads_sum(const PrefillBackward& problem, const BackwardPlan& plan,
                        const BackwardSpace& space, const Queue& queue);

void backward_keys_sm90(const PrefillBackward& problem, const BackwardPlan& plan,
                        const BackwardSpace& space, const Queue& queue);
void backward_queries_sm90(const PrefillBackward& problem, const BackwardPlan& plan,
                           const BackwardSpace& space, const Queue& queue);
void backward_portable(const PrefillBackward& problem, const BackwardPlan& plan,
                       const BackwardSpace& space, const Queue& queue);

}  // namespace lca::cuda
