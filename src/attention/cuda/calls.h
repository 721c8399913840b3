#pragma once
/// Attention of one layer for sequences whose caches, queries and entries are on the GPU. Every
/// call only enqueues: no allocation, no copy from the host, no wait. A chunk of a prompt has its
/// numbers in its launches; a decode step reads lengths and pages from device memory and advances
/// them there, so that one captured step can be replayed for token after token.

#include <span>
#include <vector>

#include "attention/cuda/cache/store.h"
#include "attention/cuda/condense/condense.h"
#include "attention/cuda/decode/decode.h"
#include "attention/cuda/prefill/prefill.h"
#include "ops/cuda/product.h"

namespace lca::cuda {

/// One layer as the calls need it.
struct LayerView {
  LayerSpec spec;
  Kernels kernels = Kernels::fast;
  const bf16* w_uk = nullptr;  ///< MLA [H][d_n][d_c]; GQA null
  const bf16* w_uv = nullptr;  ///< MLA [H][d_v][d_c]; GQA null
  LayerCache cache;

  Layout layout() const { return Layout(spec.settings); }
  bool mla() const { return spec.shape.form == Form::mla; }
  bool condenses() const { return spec.settings.method == MethodKind::lca; }
  std::int64_t semantic_values() const { return spec.shape.kv_heads * spec.shape.d_semantic(); }
  std::int64_t positional_values() const { return spec.shape.kv_heads * spec.shape.d_positional(); }
};

// --- a chunk of some sequences' prompts --------------------------------------------------------

/// So many tokens after what the sequence holds.
struct ChunkRequest {
  int slot = 0;
  std::int64_t tokens = 0;
};

/// Where one sequence's part of a chunk lies in a ChunkSpace. Positions [0, sink) and
/// [sink + gone, after) are rows of `exact`; queries of positions [before − recent, after) are rows
/// of q. The call fills in what came before; the caller writes the new rows.
struct ChunkPiece {
  int slot = 0;
  std::int64_t before = 0, after = 0;  ///< lengths
  std::int64_t groups_before = 0, groups_after = 0;
  std::int64_t gone = 0;
  std::int64_t recent = 0;
  std::int64_t first_query_row = 0;  ///< of position before − recent
  std::int64_t first_exact_row = 0;
  std::int64_t group_row = 0;

  std::int64_t tokens() const { return after - before; }
  /// The row of the first new query, in q, out and lse; and of the first new entry.
  std::int64_t query_row() const { return first_query_row + recent; }
  std::int64_t exact_row() const { return first_exact_row + before - gone; }
};

/// Rows of a chunk's tensors.
struct ChunkRows {
  std::int64_t query = 0, exact = 0, group = 0;
  std::int64_t condensed = 0;  ///< groups condensed, or queries reduced, in one go
  std::int64_t runs = 0;
};

struct ChunkPlan {
  std::vector<ChunkPiece> pieces;
  ChunkRows rows;
};

/// Checks the requests and lays them out. One plan serves all layers; the store's lengths and pages
/// do not change (see CacheStore::reserve and advance).
ChunkPlan chunk_plan(const CacheStore& store, std::span<const ChunkRequest> requests);

/// The most rows that chunks of `tokens` new tokens of `runs` sequences can have.
ChunkRows chunk_rows_most(const LayerSpec& spec, std::int64_t longest, std::int64_t tokens,
                          std::int64_t runs);

/// The tensors of a chunk.
struct ChunkSpace {
  bf16* nope = nullptr;              ///< in: MLA [query][H][d_n]
  bf16* rope = nullptr;              ///< in: [query][H][d_r]
  bf16* exact_semantic = nullptr;    ///< in: [exact][KV][d_semantic]
  bf16* exact_positional = nullptr;  ///< in: [exact][KV][d_positional]
  bf16* out = nullptr;               ///< out: [query][H][d_v]
  float* lse = nullptr;              ///< out: [query][H]
  // Scratch.
  bf16* exact_nope = nullptr;        ///< MLA [exact][H][d_n]
  bf16* exact_value = nullptr;       ///< MLA [exact][H][d_v]
  bf16* group_semantic = nullptr;    ///< [group][KV][d_semantic]
  bf16* group_positional = nullptr;  ///< [group][KV][d_positional]
  float* group_bias = nullptr;       ///< [group][KV]
  bf16* group_nope = nullptr;        ///< MLA [group][H][d_n]
  bf16* group_value = nullptr;       ///< MLA [group][H][d_v]
  bf16* means_nope = nullptr;        ///< MLA [condensed][2][H][d_n]
  float* means_rope = nullptr;       ///< [condensed][H or KV][…]: see QueryMeans
  float* summary = nullptr;          ///< [condensed][KV·summary_width]
  bf16* new_semantic = nullptr;      ///< [condensed][KV][d_semantic]
  bf16* new_positional = nullptr;    ///< [condensed][KV][d_positional]
  float* new_bias = nullptr;         ///< [condensed][KV]
  void* runs = nullptr;              ///< prefill_workspace_bytes
};
std::size_t chunk_space_bytes(const LayerSpec& spec, const ChunkRows& rows);
ChunkSpace chunk_space(const LayerSpec& spec, const ChunkRows& rows, void* memory);

/// Condenses the groups that leave the window, attends with all new queries, and stores what stays:
/// entries, recent queries, lengths.
void chunk_run(const LayerView& layer, const ChunkPlan& plan, const ChunkSpace& space,
               const ProductSpace& products, const Queue& queue);

/// Reduces queries of positions [first, first + count), rows first_row … of `queries`, into the
/// slot's ring of summaries. `space` needs means_nope, means_rope and summary of `count` rows.
void summaries_keep(const LayerView& layer, int slot, const QueryRows& queries,
                    std::int64_t first_row, std::int64_t first, std::int64_t count,
                    const ChunkSpace& space, const ProductSpace& products, const Queue& queue);

// --- a decode step -----------------------------------------------------------------------------

/// The tensors of a step of slots 0 … batch − 1.
struct StepSpace {
  bf16* nope = nullptr;        ///< in: MLA [batch][H][d_n]
  bf16* rope = nullptr;        ///< in: [batch][H][d_r]
  bf16* semantic = nullptr;    ///< in: the new tokens' entries, [batch][KV][d_semantic]
  bf16* positional = nullptr;  ///< in: [batch][KV][d_positional]
  bf16* out = nullptr;         ///< out: [batch][H][d_v]; null where out_float is not
  float* out_float = nullptr;  ///< out, MLA only: the same in float
  float* lse = nullptr;        ///< out: [batch][H]
  // Scratch.
  bf16* absorbed = nullptr;      ///< MLA [batch][H][d_c + d_r]
  float* summary = nullptr;      ///< MLA [batch][summary_width]
  bf16* latent = nullptr;        ///< MLA [batch][H][d_c]
  void* kernel_space = nullptr;  ///< [plan.workspace_bytes], zero before the first step
};
/// `float_out` asks for out_float; MLA only.
std::size_t step_space_bytes(const LayerSpec& spec, const DecodePlan& plan, bool float_out);
StepSpace step_space(const LayerSpec& spec, const DecodePlan& plan, bool float_out, void* memory);

/// One token of slots 0 … plan.batch − 1: takes it into the window, condenses the group that leaves
/// (if one does), attends. Slots of length −1 are left alone, their outputs too. Pages must have
/// been reserved for the length after the step.
void step_run(const LayerView& layer, const DecodePlan& plan, const StepSpace& space,
              const ProductSpace& products, const Queue& queue);

}  // namespace lca::cuda
