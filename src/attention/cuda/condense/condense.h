#pragma once
/// Condensation on the GPU: from queries to representatives (mechanism §3–§5).

#include "attention/cuda/condense/documents.h"
#include "attention/cuda/views.h"
#include "ops/cuda/product.h"

namespace lca::cuda {

/// Width of a reduced query, per KV head. Head reductions `mean` and `sum` are linear, so the heads
/// that share a KV head are summed before scoring: MLA d_c + d_r (absorbed), GQA d. With `max` the
/// heads stay apart: MLA H·(d_c + d_r), GQA (H/KV)·d, head after head.
int summary_width(const AttentionShape& shape, HeadReduce reduce);

/// Means of queries, one for each group, not yet absorbed. MLA: `nope` is the mean as two bf16 that
/// add up to it, [count][2][H·d_n] (high part, then low part), so that a bf16 product keeps float32
/// accuracy; `rope` is [count][d_r] float summed over heads (`max`: [count][H][d_r]). GQA: `rope`
/// is [count][KV][summary_width] float, and nope is unused.
struct QueryMeans {
  bf16* nope = nullptr;
  float* rope = nullptr;
};

/// Queries of consecutive tokens, row 0 being position `first`; of packed documents (a table), row
/// 0 begins the first one.
struct QueryRows {
  HeadRows nope;  ///< MLA [rows][H][d_n]
  HeadRows rope;  ///< MLA [rows][H][d_r]; GQA [rows][H][d]
  std::int64_t first = 0;
  std::int64_t rows = 0;
};

/// Means for groups [first_group, first_group + count) of one document: those of
/// layout.summary_range(j, prompt), all of which must be in `queries`. With prompt > 0 and all
/// groups leaving before the prompt's end, count may be 1: one mean serves all groups. Groups of
/// packed documents are counted through all of them, without a prompt.
void query_means(const AttentionShape& shape, HeadReduce reduce, const Layout& layout,
                 std::int64_t prompt, const QueryRows& queries, std::int64_t first_group,
                 std::int64_t count, const QueryMeans& means, const Queue& queue,
                 const Documents& documents = {});

/// Queries [first_row, first_row + count) of `queries`, each by itself: the mean of one.
void query_each(const AttentionShape& shape, HeadReduce reduce, const QueryRows& queries,
                std::int64_t first_row, std::int64_t count, const QueryMeans& means,
                const Queue& queue);

/// The same means, made by the kernel that rotates the queries (RoPE) in place, which touches them
/// anyway: queries.rope is rotated by position (interleaved or half-split pairs, given cos/sin
/// [rows][d_r/2] float). Needs n_q = g and whole, aligned groups of queries: row 0 begins one.
void rope_query_means(const AttentionShape& shape, const Layout& layout, const QueryRows& queries,
                      const float* cosine, const float* sine, bool interleaved,
                      const QueryMeans& means, const Queue& queue);

/// MLA: absorbs means into latent space: summary [count][summary_width] float from `means` and
/// w_uk [H][d_n][d_c] bf16. GQA: a copy is not needed, means.rope is the summary. Scores need the
/// means as exact as they are; gradients, which are bf16 themselves, do with the high part.
enum class MeanParts : std::uint8_t { both, high };
void summary_absorb(const AttentionShape& shape, HeadReduce reduce, const QueryMeans& means,
                    std::int64_t count, const bf16* w_uk, float* summary,
                    const ProductSpace& products, const Queue& queue,
                    MeanParts parts = MeanParts::both);

/// query_means and summary_absorb in one kernel, for MLA and the head reductions `mean` and `sum`:
/// summary [count][d_c + d_r] float of groups [first_group, first_group + count), those of
/// layout.summary_range(j, 0). Queries are read once and means never leave the GPU's cores. w_uk
/// [H][d_n][d_c] bf16; `summary` is aligned to 16 bytes.
void query_summary(const AttentionShape& shape, const Layout& layout, const QueryRows& queries,
                   std::int64_t first_group, std::int64_t count, const bf16* w_uk, float* summary,
                   const Queue& queue, const Documents& documents = {});

/// query_each and summary_absorb in one kernel.
void query_summary_each(const AttentionShape& shape, const QueryRows& queries,
                        std::int64_t first_row, std::int64_t count, const bf16* w_uk,
                        float* summary, const Queue& queue);

/// Whether query_summary can: it knows the widths of DeepSeek-V2 and MiniCPM3, rows at multiples of
/// 16 bytes, and ranges that are not cut off at position 0 (group first_group decides; of packed
/// documents, 0).
/// query_summary_each has no such ranges: `layout` null.
bool query_summary_fits(const Device& device, const AttentionShape& shape, HeadReduce reduce,
                        const Layout* layout, const QueryRows& queries, std::int64_t first_group,
                        const bf16* w_uk);

/// Whether it is the faster way for so many groups at once.
bool query_summary_pays(const Device& device, std::int64_t count);

/// Scores, pools and selects groups. Their tokens lie in consecutive rows, row 0 being the first
/// group's first token; those of packed documents lie where the documents do, row 0 being the first
/// document's first token.
struct Condense {
  AttentionShape shape;
  Settings settings;
  float scale = 0;
  HeadRows semantic;               ///< [rows][KV][d_semantic]
  HeadRows positional;             ///< [rows][KV][d_positional]
  const float* summary = nullptr;  ///< [count or 1][KV][summary_width], without scale or 1/heads
  bool one_summary = false;        ///< one row serves all groups
  QueryRows queries;               ///< where it has rows, in place of `summary`: condense_sums
  std::int64_t count = 0;
  RotationView rotation;         ///< of the positional parts, to their representatives' positions
  std::int64_t first_group = 0;  ///< number of the first group in its document; for `rotation`
  Documents documents;           ///< a table: groups from the first document's first one on
  OutRows out_semantic;          ///< [count][KV][d_semantic]
  OutRows out_positional;        ///< [count][KV][d_positional]
  float* out_bias = nullptr;     ///< [count][KV]; may be null unless mass is `score`
  float* out_scores = nullptr;   ///< [count][KV][g]; may be null
};
void condense(const Condense& job, const Queue& queue);

/// Whether the kernel can sum up job.queries itself, for each group those of
/// layout.summary_range(j, 0): no summary is needed then, and no means are written. GQA with what
/// has a fast kernel; row 0 of the queries is position 0, as of a whole sequence.
bool condense_sums(const Condense& job);

/// Puts `count` representatives into a session's pages from representative `first` on, quantised as
/// the pool says. `pages` is a device pointer.
void groups_append(const AttentionShape& shape, const GroupPool& pool, const std::int32_t* pages,
                   std::int64_t first, std::int64_t count, const bf16* semantic,
                   const bf16* positional, const float* bias, const Queue& queue);

/// Reads representatives [first, first + count) back from the pages, dequantised to bf16.
void groups_gather(const AttentionShape& shape, const GroupPool& pool, const std::int32_t* pages,
                   std::int64_t first, std::int64_t count, bf16* semantic, bf16* positional,
                   float* bias, const Queue& queue);

}  // namespace lca::cuda
