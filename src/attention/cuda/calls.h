#pragma once
/// Attention of one layer for sequences whose caches, queries and entries are on the GPU. Every
/// call only enqueues: no allocation, no copy from the host, no wait. A chunk of a prompt has its
/// numbers in its launches; a decode step reads lengths and places from device memory, so that one
/// captured step can be replayed for any sequences in any order.

#include <span>
#include <vector>

#include "attention/cuda/cache/sequence.h"
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
  /// MLA [H][d_c][d_n]: w_uk as steps of few rows read it fastest; or null.
  const bf16* w_uk_turned = nullptr;

  Layout layout() const { return Layout(spec.settings); }
  bool mla() const { return spec.shape.form == Form::mla; }
  bool condenses() const { return spec.settings.method == MethodKind::lca; }
  std::int64_t semantic_values() const { return spec.shape.kv_heads * spec.shape.d_semantic(); }
  std::int64_t positional_values() const { return spec.shape.kv_heads * spec.shape.d_positional(); }
};

// --- a chunk of some sequences' prompts --------------------------------------------------------

/// Where one sequence's part of a chunk lies in a ChunkSpace. Positions [0, sink) and
/// [sink + gone, after) are rows of `exact`; queries of positions [before − recent, after) are rows
/// of q. The call fills in what came before; the caller writes the new rows.
struct ChunkPiece {
  CachePlace from, to;
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

/// Checks the requests (CacheSequence::chunk) and lays them out. One plan serves all layers of a
/// kind (CacheStore::kind).
ChunkPlan chunk_plan(const CacheStore& store, int layer, std::span<const ChunkRequest> requests);

/// Rows of a chunk of one sequence that holds `queries_held` queries before it.
ChunkRows chunk_rows(const LayerSpec& spec, std::int64_t before, std::int64_t after,
                     std::int64_t queries_held);

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
/// entries and recent queries, in the windows that the pieces name. Where the layer's summary waits
/// for the prompt's end, a piece is taken for a whole prompt; `prompt_…` takes one in chunks.
void chunk_run(const LayerView& layer, const ChunkPlan& plan, const ChunkSpace& space,
               const ProductSpace& products, const Queue& queue);

/// Reduces queries of positions [first, first + count), rows first_row … of `queries`, into the
/// ring of summaries at `to`. `space` needs means_nope, means_rope and summary of `count` rows.
void summaries_keep(const LayerView& layer, CachePlace to, const QueryRows& queries,
                    std::int64_t first_row, std::int64_t first, std::int64_t count,
                    const ChunkSpace& space, const ProductSpace& products, const Queue& queue);

// --- a prompt whose groups wait for its end ----------------------------------------------------
//
// Layer by layer: prompt_begin; entries of all chunks into PromptRows, and the last queries;
// prompt_condense; for every chunk queries, then prompt_attend; prompt_end.

/// A whole prompt of one sequence (CacheSequence::chunk of all its tokens).
struct PromptPlan {
  CachePlace from, to;
  std::int64_t before = 0, after = 0;  ///< lengths
  std::int64_t sink = 0;
  std::int64_t gone = 0;  ///< positions [sink, sink + gone) are not held
  std::int64_t tail = 0;  ///< queries of positions [after − tail, after) score all groups

  std::int64_t rows() const { return after - gone; }
  /// The row of a position in PromptRows::semantic and positional.
  std::int64_t row(std::int64_t position) const {
    return position < sink ? position : position - gone;
  }
  std::int64_t tail_first() const { return after - tail; }
};
PromptPlan prompt_plan(const LayerSpec& spec, const ChunkRequest& request);

/// Tensors of one layer's prompt.
struct PromptRows {
  bf16* semantic = nullptr;    ///< in: [rows][KV][d_semantic], new tokens at plan.row(before) …
  bf16* positional = nullptr;  ///< in: [rows][KV][d_positional]
  bf16* tail_nope = nullptr;   ///< in: MLA [tail][H][d_n], positions max(before, tail_first()) …
  bf16* tail_rope = nullptr;   ///< in: [tail][H][d_r]
};
std::size_t prompt_rows_bytes(const LayerSpec& spec, const PromptPlan& plan);
PromptRows prompt_rows(const LayerSpec& spec, const PromptPlan& plan, void* memory);

/// Brings in what the sequence holds: rows before the prompt, and their queries in the tail.
void prompt_begin(const LayerView& layer, const PromptPlan& plan, const PromptRows& rows,
                  const Queue& queue);
/// Condenses all groups that left the window. `space` is that of any chunk of the prompt.
void prompt_condense(const LayerView& layer, const PromptPlan& plan, const PromptRows& rows,
                     const ChunkSpace& space, const ProductSpace& products, const Queue& queue);
/// Rows of tokens [first, first + count) of the prompt as a chunk.
ChunkRows prompt_chunk_rows(const LayerSpec& spec, const PromptPlan& plan, std::int64_t first,
                            std::int64_t count);
/// Tokens [first, first + count) of the prompt as a chunk of one piece: the caller writes queries
/// at query_row(), and no entries.
ChunkPlan prompt_chunk(const CacheStore& store, int layer, const PromptPlan& plan,
                       std::int64_t first, std::int64_t count);
/// Attends with the chunk's queries.
void prompt_attend(const LayerView& layer, const PromptPlan& plan, const PromptRows& rows,
                   const ChunkPlan& chunk, const ChunkSpace& space, const ProductSpace& products,
                   const Queue& queue);
/// Stores what stays in the window `plan.to`. `space` as in prompt_condense.
void prompt_end(const LayerView& layer, const PromptPlan& plan, const PromptRows& rows,
                const ChunkSpace& space, const ProductSpace& products, const Queue& queue);

// --- a decode step -----------------------------------------------------------------------------

/// The tensors of a step of one layer.
struct StepSpace {
  SessionView* sessions = nullptr;  ///< in: [batch], this layer's part of views_gather
  bf16* nope = nullptr;             ///< in: MLA [batch][H][d_n]
  bf16* rope = nullptr;             ///< in: [batch][H][d_r]
  bf16* semantic = nullptr;         ///< in: the new tokens' entries, [batch][KV][d_semantic]
  bf16* positional = nullptr;       ///< in: [batch][KV][d_positional]
  bf16* out = nullptr;              ///< out: [batch][H][d_v]; null where out_float is not
  float* out_float = nullptr;       ///< out, MLA only: the same in float
  float* lse = nullptr;             ///< out: [batch][H]
  // Scratch.
  bf16* absorbed = nullptr;      ///< MLA [batch][H][d_c + d_r]
  float* summary = nullptr;      ///< MLA [batch][summary_width]
  float* each = nullptr;         ///< MLA, few rows: [batch][H][d_c + d_r], absorbed in float32
  bf16* latent = nullptr;        ///< MLA [batch][H][d_c]
  void* kernel_space = nullptr;  ///< [plan.workspace_bytes], zero before the first step
};
/// `float_out` asks for out_float; MLA only.
std::size_t step_space_bytes(const LayerSpec& spec, const DecodePlan& plan, bool float_out);
StepSpace step_space(const LayerSpec& spec, const DecodePlan& plan, bool float_out, void* memory);

/// One token of each session: takes it into the window, condenses the group that leaves (if one
/// does), attends. Rows of length −1 are left alone, their outputs too. The sequences must have
/// been prepared (CacheSequence::prepare).
void step_run(const LayerView& layer, const DecodePlan& plan, const StepSpace& space,
              const ProductSpace& products, const Queue& queue);

}  // namespace lca::cuda
