#pragma once
/// What condensation and its backward pass share (mechanism §3, §4): score vectors, weights, pools.
///
/// The queries of a summary are averaged per head and turned into score vectors against what the
/// cache stores, so that a token's score is one dot product per vector:
///   MLA, mean or sum: one vector of d_c + d_r for all heads (W_ukᵀ applied to the mean query);
///   MLA, max: one such vector per head. GQA: one of d per KV head, or per query head for max.

#include <lca/cache.h>
#include <lca/tensor.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "attention/cpu/vector.h"
#include "core/workspace.h"

namespace lca::cpu {

/// Groups that are condensed together: enough rows for a good matrix product, few enough to stay in
/// the cache.
std::int64_t condense_batch_groups(const Settings& settings);

/// The score vectors of a number of summaries.
class ScoreVectors {
 public:
  /// Takes memory for `capacity` summaries.
  ScoreVectors(Carver& carver, const LayerSpec& spec, std::int64_t capacity);
  /// Scratch for one head of W_uk in float32, where it is stored otherwise.
  static std::int64_t weight_floats(const LayerSpec& spec);

  /// Vectors per KV head: one where heads are summed, else one per query head.
  std::int64_t count() const { return count_; }
  /// What a dot product is multiplied with to become a score.
  float factor() const { return factor_; }

  /// The mean query of a summary; to be filled in.
  float* mean_nope(std::int64_t head, std::int64_t summary) const;
  float* mean_rope(std::int64_t head, std::int64_t summary) const;
  /// Makes the vectors of summaries first … first + count − 1 from their mean queries.
  void make(const ConstTensor& w_uk, std::int64_t first, std::int64_t count, float* weight) const;

  /// The vector against latents (MLA), and against keys.
  const float* semantic(std::int64_t summary, std::int64_t vector) const;
  const float* positional(std::int64_t summary, std::int64_t kv, std::int64_t vector) const;

  /// A score, and the vector that gave it.
  struct Score {
    float value;
    std::int64_t vector;
  };
  /// The reduced score of one entry.
  Score score(std::int64_t summary, std::int64_t kv, const void* semantic_row, DType semantic_dtype,
              const void* positional_row, DType positional_dtype) const;

 private:
  void absorb(const ConstTensor& w_uk, std::int64_t first, std::int64_t count, float* weight) const;

  const LayerSpec& spec_;
  const AttentionShape& shape_;
  std::int64_t capacity_, count_;
  float factor_;
  float* mean_nope_;   ///< [H][summaries][d_n], MLA
  float* mean_rope_;   ///< [summaries][H][d_rope]
  float* semantic_;    ///< [vectors][summaries][d_c], MLA
  float* positional_;  ///< [summaries][KV][vectors][d_rope]
};

/// One head of W_uk as rows of float32 a stride apart: where it is, or widened into `weight`.
struct HeadWeight {
  const float* data;
  std::int64_t stride;
};
HeadWeight head_weight(const ConstTensor& w_uk, std::int64_t head, float* weight);

/// α of a group, made in place of its scores.
struct GroupWeights {
  std::int64_t best = 0;  ///< where α is largest; the lowest index on ties
  float top = 0;          ///< the score there
  float sum = 0;          ///< Σ exp(s − top)
};
GroupWeights group_weights(std::span<float> scores);

/// One member's row of one KV head.
struct PoolRow {
  const void* data;
  DType dtype;
  std::int64_t width;
};

/// Pools the rows that member(k) returns; a row is valid until the next is asked for.
template <typename Rows>
void pool_rows(Pool kind, const Rows& member, std::int64_t best, std::span<const float> alpha,
               float* pooled) {
  if (kind == Pool::select || kind == Pool::max) {
    const PoolRow row = member(kind == Pool::select ? best : 0);
    vector_widen(row.data, row.dtype, row.width, pooled);
  } else {
    std::fill_n(pooled, member(0).width, 0.0F);
  }
  if (kind == Pool::select) return;
  const float share = 1.0F / static_cast<float>(alpha.size());
  for (std::size_t k = 0; k < alpha.size(); ++k) {
    const PoolRow row = member(static_cast<std::int64_t>(k));
    if (kind == Pool::max) {
      vector_max(row.data, row.dtype, row.width, pooled);
    } else {
      vector_add_scaled(kind == Pool::mean ? share : alpha[k], row.data, row.dtype, row.width,
                        pooled);
    }
  }
}

}  // namespace lca::cpu
