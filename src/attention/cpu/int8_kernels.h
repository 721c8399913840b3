#pragma once
/// The inner loops of decoding on rows of 8 bits, on AVX-512 VNNI.

#include <cstdint>

#include "attention/cpu/rows.h"

namespace lca::cpu {

/// Rows of a block, one part: KV heads of `width` (64, 128 or 256) bytes each, `stride` apart.
struct Int8Part {
  const std::int8_t* rows = nullptr;
  std::int64_t stride = 0, width = 0;
  const std::int8_t* later = nullptr;  ///< rows to prefetch while these are read,
  std::int64_t later_count = 0;        ///< and how many
};

/// Weights of a head's rows in 16 bits: step·(256·high + low), both without sign.
struct Int8Weights {
  alignas(64) std::uint8_t high[kRowBlock];
  alignas(64) std::uint8_t low[kRowBlock];
  float step;
};

struct Int8Kernels {
  /// out[c·64 + k] = factor·rows[k·stride + c] for `columns` columns and `count` ≤ 64 rows; those
  /// up to the next multiple of 8 are written too.
  void (*turn)(const float* rows, std::int64_t stride, std::int64_t columns, std::int64_t count,
               float factor, float* out);
  /// scores[h·64 + k] = q[h]·row[k]·scale[kv·64 + k] + bias[kv·64 + k] for all heads h of all KV
  /// heads and `count` ≤ 64 rows; those up to the next multiple of 16 are written too. `bias` may
  /// be null.
  void (*scores)(const RowHeads& heads, const Int8Part& rows, std::int64_t count,
                 const float* scale, const float* bias, float* scores);
  /// weights[k]·scale[k] in 16 bits; what is beyond `count` is zero.
  void (*weigh)(const float* weights, const float* scale, std::int64_t count, Int8Weights& to);
  /// out[h] = out[h]·factor[h] + Σ_k weights[h][k]·row[k].
  void (*outputs)(const RowHeads& heads, const Int8Part& rows, std::int64_t count,
                  const Int8Weights* weights, const float* factor);
};
/// As compiled; null pointers where this build has none.
extern const Int8Kernels kAvx512Int8;
/// The same where the CPU has the instructions, else null.
const Int8Kernels* int8_kernels();

/// `rows_attend` for rows of 8 bits.
void rows_attend_int8(const RowHeads& heads, const RowSpan& rows, const RowSpan* next);

}  // namespace lca::cpu
