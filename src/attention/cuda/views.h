#pragma once
/// What the kernels of this folder are handed: plain structs of device pointers and numbers. A
/// shape stands beside every pointer. bf16 unless said otherwise.

#include <lca/cache.h>

#include <cstdint>

#include "attention/layout.h"
#include "core/cuda/device.h"
#include "core/cuda/head_rows.h"

namespace lca::cuda {

/// How positional parts are rotated on to entry positions (mechanism §10). Without steps positions
/// are those of tokens, and nothing is rotated.
struct RotationView {
  const std::uint64_t* steps = nullptr;  ///< [pairs] of rotation_steps, in device memory
  int pairs = 0;
  RopeLayout layout = RopeLayout::halves;
};

// --- prefill -----------------------------------------------------------------------------------

/// Keys and values as heads see them. MLA: `nope` [rows][H][d_n] and the shared `rope` [rows][d_r];
/// GQA: `nope` is empty and `rope` [rows][KV][d] is the whole key. `value` [rows][H or KV][d_v].
struct KeyRows {
  HeadRows nope;
  HeadRows rope;
  HeadRows value;
  std::int64_t rows = 0;  ///< rows that may be read, of all three
};

/// One run of consecutive queries of one document. Positions count from the document's start.
struct PrefillRun {
  std::int64_t query_row = 0;    ///< row of its first query in q, out and lse
  std::int64_t query_first = 0;  ///< position of that query
  std::int64_t query_count = 0;
  /// Row of exact token 0 in `exact`: position p < sink is row exact_row + p, any later one is row
  /// exact_row + p − exact_gone (tokens [sink, sink + exact_gone) are not held).
  std::int64_t exact_row = 0;
  std::int64_t exact_gone = 0;
  std::int64_t group_row = 0;  ///< row of representative 0 in `groups` (and in `bias`)
};

/// One online softmax over representatives, sink and window for every query of every run. Which
/// positions a query sees is `layout.visible(t)`: dense and window are other layouts.
struct Prefill {
  int heads = 0;
  int kv_heads = 1;  ///< heads of `rope`/`value` in GQA; 1 for MLA
  Form form = Form::mla;
  Layout layout;
  RotationView rotation;  ///< queries are given as the window sees them, groups as they are kept
  float scale = 0;
  HeadRows q_nope;  ///< MLA [rows][H][d_n]; GQA: empty
  HeadRows q_rope;  ///< MLA [rows][H][d_r]; GQA [rows][H][d]
  std::int64_t query_rows = 0;
  KeyRows exact;
  KeyRows groups;
  /// Added to the representatives' logits (natural log): `bias` [rows][KV] float32 where not null,
  /// else `bias_all` (log g or 0).
  const float* bias = nullptr;
  float bias_all = 0;
  bf16* out = nullptr;   ///< [rows][H][d_v]
  float* lse = nullptr;  ///< [rows][H], natural log; may be null
};

// --- condensed cache ---------------------------------------------------------------------------

/// How representatives are stored (mechanism §7).
enum class GroupType : std::uint8_t { bf16 = 0, fp8 = 1, int8 = 2 };

/// Rows of a page of representatives.
inline constexpr int kPageRows = 64;
/// Values of a latent that share one scale in a quantised page.
inline constexpr int kScaleBlock = 128;

/// All pages of representatives of one layer, shared by sessions. Representative j of a session is
/// row j % kPageRows of page pages[j / kPageRows]; below, "row" counts page · kPageRows + that.
struct GroupPool {
  GroupType type = GroupType::bf16;
  void* semantic = nullptr;    ///< [rows][KV][d_semantic] bf16, e4m3 or int8
  void* positional = nullptr;  ///< [rows][KV][d_positional]; MLA: always bf16; GQA: as semantic
  /// Quantised only. MLA: [rows][ceil(d_c / 128)] float; GQA: [rows][KV] float.
  float* semantic_scale = nullptr;
  float* positional_scale = nullptr;  ///< GQA, quantised: [rows][KV] float
  float* bias = nullptr;              ///< [rows][KV] float; null unless mass is `score`
};

/// Exact tokens of all sessions of one layer: each has some rows of it.
struct ExactPool {
  bf16* semantic = nullptr;  ///< [rows][KV][d_semantic]
  bf16* positional = nullptr;
  std::int64_t rows = 0;
};

/// One session's part of one layer, gathered anew for every step (CacheStore::views_gather). The
/// step changes `length` here alone.
struct alignas(16) SessionView {
  /// Exact tokens, [sink + ring][KV][d], rows of the ExactPool: position p < sink at row p, any
  /// later one at row sink + (p − sink) % ring. ring ≥ w + g.
  bf16* semantic = nullptr;
  bf16* positional = nullptr;
  const std::int32_t* pages = nullptr;  ///< enough for the next representative too
  /// The last n_q queries as condensing reduces them, [n_q][KV][d_summary] float: query t at row
  /// t % n_q. See `summary_width`.
  float* summary = nullptr;
  /// n, tokens taken; the decode step adds one. It lies here and not behind a pointer because a
  /// step begins with it, and every pointer is a trip to memory.
  std::int32_t length = 0;
  int ring = 0;
  /// The last n_q queries as they are, for the next prompt's summaries: query t at row t % n_q.
  bf16* recent_nope = nullptr;  ///< MLA [n_q][H][d_n]
  bf16* recent_rope = nullptr;  ///< [n_q][H][d_r]
};

}  // namespace lca::cuda
