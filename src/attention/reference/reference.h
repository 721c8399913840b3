#pragma once
/// The truth: the mechanism in double precision and plain loops. Every kernel is
/// compared with it, and it is compared with an independent implementation. Nothing here is meant
/// to be fast: per-head keys and values are rebuilt for all tokens at once.

#include <lca/cache.h>
#include <lca/method.h>

#include "attention/layout.h"

#include <cstdint>
#include <span>
#include <vector>

namespace lca::reference {

/// What one attention layer makes of one sequence (one document) of n tokens and m groups.
struct Result {
  std::int64_t tokens = 0;             ///< n
  std::int64_t groups = 0;             ///< m(n)
  std::vector<double> out;             ///< [n,H,d_v]
  std::vector<double> lse;             ///< [n,H], natural log
  std::vector<double> rep_semantic;    ///< [m,KV,d_semantic]
  std::vector<double> rep_positional;  ///< [m,KV,d_positional]
  std::vector<double> rep_bias;        ///< [m,KV]
  /// [m,KV]: the best score of the group, and how far it is above the second best (infinite where
  /// g = 1). Rounding may legitimately move an argmax whose margin is tiny.
  std::vector<double> rep_top;
  std::vector<double> rep_margin;
};

/// Attention over a sequence whose first `prompt` tokens were prefilled and the rest decoded. The
/// tensors may be float32 or bfloat16 and are read exactly; spec.dtype has no effect here, while
/// rows of 8 bits (spec.storage) are rounded to them.
Result attention(const LayerSpec& spec, const LayerWeights& weights, const Queries& queries,
                 const Entries& entries, std::int64_t prompt);

/// The same for a conversation of several turns: `prompts` are the runs of positions that were
/// prefilled, in order; everything else was decoded. Matters to summary mode `prompt` only, where
/// each run's own end scores the groups that leave the window in it.
Result attention(const LayerSpec& spec, const LayerWeights& weights, const Queries& queries,
                 const Entries& entries, std::span<const Range> prompts);

}  // namespace lca::reference
