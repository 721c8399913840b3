#pragma once
/// One tile of the backward pass of attention on the CPU: up to 96 queries of one head against
/// everything they see. Probabilities are computed again from the forward pass's log-sum-exp, a
/// block of 192 keys at a time; each block takes five products:
///   S = Q Kᵀ, dP = dO Vᵀ, then P = exp(scale·S + bias − lse) and dS = P ∘ (dP − D);
///   dQ += dS K, dK += dSᵀ Q, dV += Pᵀ dO, with D = rowsum(dO ∘ O).
/// The factor `scale` of dQ and dK is applied by whoever stores the sums.
///
/// Operands are packed as tile.h says, in float32: what is contracted over its width lies in key
/// panels, what is contracted over its rows in value panels. Keys are needed in both forms.
///
/// Budget at d_n + d_r = 192, d_v = 128: queries and dO in both forms 240 KiB, dQ 72, P and dS 144;
/// a block of keys 288, of values 96, of their sums 240: 1.1 MiB of the second-level cache.
/// Operations per pair: 2·(3·192 + 2·128) = 1664.

#include <lca/tensor.h>

#include <cstdint>

#include "attention/cpu/tile.h"

namespace lca::cpu {

/// Keys in a block: whole panels, and whole calls of the products.
constexpr std::int64_t kBackwardKeys = 192;
/// Rows of sums that a tile may touch beyond the last key it sees.
constexpr std::int64_t kSpareSums = 12;

/// Packed keys and values of one head.
struct BackwardKeys {
  const float* nope = nullptr;       ///< key panels of depth d_n; null where d_n = 0
  const float* rope = nullptr;       ///< key panels of depth d_r
  const float* values = nullptr;     ///< key panels of depth d_v
  const float* nope_rows = nullptr;  ///< value panels of d_n columns
  const float* rope_rows = nullptr;  ///< value panels of d_r columns
  std::int64_t count = 0;
};

/// Where gradients of keys `first` … are summed up: rows of columns that are padded to whole
/// panels.
struct KeySums {
  float *nope = nullptr, *rope = nullptr, *values = nullptr;
  std::int64_t first = 0;
};

/// Everything a tile needs.
struct BackwardTile {
  Layout layout;
  float scale = 1;
  std::int64_t d_nope = 0, d_rope = 0, d_value = 0;

  // Of one head: row r is token `first + r` of the document.
  std::int64_t rows = 0, first = 0;
  ConstTensor q_nope, q_rope;  ///< [rows,1,d], tokens a stride apart
  ConstTensor out, out_grad;   ///< [rows,1,d_v]
  const float* lse = nullptr;
  std::int64_t lse_stride = 0;
  /// With entry positions: how queries are rotated on for representatives and sink.
  RowRotation rotation;

  BackwardKeys tokens, groups;
  const float* bias = nullptr;  ///< of each representative, padded to whole panels; null: none

  Tensor dq_nope, dq_rope;     ///< [rows,1,d]; without memory where not wanted
  KeySums sink, window;        ///< of tokens; the sink's where it lies apart from the window
  KeySums group_sums;          ///< of representatives
  float* bias_sums = nullptr;  ///< of each representative, padded to whole panels; null: not wanted

  float* scratch = nullptr;  ///< backward_scratch_floats(...) floats of this worker
};

/// Floats of scratch memory that a tile needs; with `rotates` a second form of its queries.
constexpr std::int64_t backward_scratch_floats(std::int64_t d_nope, std::int64_t d_rope,
                                               std::int64_t d_value, bool rotates) {
  const auto forms = [](std::int64_t width) {  // both packed forms, and a gradient
    return round_up(width, kDepth) + 2 * round_up(width, kPanel);
  };
  return kTileRows * (forms(d_nope) + (rotates ? 2 : 1) * forms(d_rope) + forms(d_value) +
                      (rotates ? d_rope : 0) + 2 * kBackwardKeys + 2) +
         d_nope + 2 * d_rope + d_value;
}

/// Computes the tile with the best instructions of this CPU.
void tile_backward(const BackwardTile& tile);

}  // namespace lca::cpu
