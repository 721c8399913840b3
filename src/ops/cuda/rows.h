#pragma once
/// The small operators between products, on rows in device memory. Every call only enqueues and
/// reads what changes from step to step (tokens, positions, places) from device memory, so that a
/// captured step can be replayed. The residual stream is float32; what products read is bf16.

#include <lca/shape.h>

#include <cstdint>
#include <span>

#include "core/cuda/device.h"
#include "core/cuda/head_rows.h"

namespace lca::cuda {

/// out[r] = factor · row tokens[r] of a table [·][width].
void rows_embed(const bf16* table, const std::int32_t* tokens, std::int64_t rows,
                std::int64_t width, float factor, float* out, const Queue& queue);

/// out = (x + bias) / rms(x + bias) · weight · factor, rounded to bf16.
struct RowsNorm {
  const float* x = nullptr;  ///< [·][width] at x_stride
  std::int64_t x_stride = 0;
  const std::int32_t* from = nullptr;  ///< row r of `out` is row from[r] of `x`; null: row r
  const float* bias = nullptr;         ///< [width], or null
  const float* weight = nullptr;       ///< [width]
  double eps = 0;
  float factor = 1;
  std::int64_t rows = 0, width = 0;
  bf16* out = nullptr;  ///< [rows][width]
};
void rows_norm(const RowsNorm& job, const Queue& queue);

/// A cosine and a sine, as RoPE multiplies a pair of channels by them.
struct RopeTurn {
  float cosine, sine;
};

/// turns[r][pair] of the angle positions[r] · steps[tables[r]][pair], times `factor`. A step is a
/// fraction of a turn in 64 bits: products lose whole turns by overflow, and the angles of large
/// positions stay exact.
struct RopeTurns {
  const std::uint64_t* steps = nullptr;     ///< [tables][pairs]
  const std::int32_t* tables = nullptr;     ///< [rows], or null: table 0
  const std::int32_t* positions = nullptr;  ///< [rows]
  std::int64_t rows = 0;
  int pairs = 0;
  float factor = 1;
  RopeTurn* turns = nullptr;  ///< [rows][pairs]
};
void rope_turns(const RopeTurns& job, const Queue& queue);

/// One part of projected rows: queries, keys, values or latents. Each head is `plain` channels that
/// are not rotated, then channels of which RoPE rotates the first 2·pairs.
struct PlacedPart {
  const float* from = nullptr;  ///< channel 0 of head 0 of row 0
  std::int64_t stride = 0;      ///< between rows
  const float* bias = nullptr;  ///< [heads·width], or null
  int heads = 1;
  int width = 0;  ///< of a head
  int plain = 0;
  bool rotated = false;
  const float* norm = nullptr;  ///< [width]: normalises first; one head, not rotated
  double eps = 0;
  const std::int32_t* to = nullptr;  ///< [rows]: rows of the outputs; null: first_to + r
  std::int64_t first_to = 0;
  bf16* plain_out = nullptr;  ///< [·][heads][plain]
  bf16* out = nullptr;        ///< [·][heads][width − plain]
};

/// Adds the bias, rotates, rounds to bf16 and writes every part to where attention reads it.
struct RowsPlace {
  const std::int32_t* source = nullptr;  ///< [rows]: rows of `from` and `turns`; null: first + r
  std::int64_t first = 0;
  std::int64_t rows = 0;
  const RopeTurn* turns = nullptr;  ///< [·][pairs]
  int pairs = 0;
  RopeLayout layout = RopeLayout::halves;
};
inline constexpr int kPlacedParts = 3;
void rows_place(const RowsPlace& job, std::span<const PlacedPart> parts, const Queue& queue);

/// out[to[r]] = x[from[r]] for rows of bf16; null: row r.
void rows_move(const bf16* x, const std::int32_t* from, std::int64_t rows, std::int64_t width,
               bf16* out, const std::int32_t* to, const Queue& queue);

/// out[b][j][i] = x[b][i][j] for `batch` matrices [rows][columns].
void matrices_turn(const bf16* x, std::int64_t batch, std::int64_t rows, std::int64_t columns,
                   bf16* out, const Queue& queue);

/// out[r][i] = silu(gate) · up with gate = x[r][i] + bias[i], up = x[r][width + i] + bias[width +
/// i].
void rows_swiglu(const float* x, const float* bias, std::int64_t rows, std::int64_t width,
                 bf16* out, const Queue& queue);

/// x[r][i] += factor · bias[i].
void rows_add_bias(const float* bias, float factor, std::int64_t rows, std::int64_t width, float* x,
                   const Queue& queue);

/// The index of the largest value of each row, the lowest of several; −1 where a value is NaN.
/// `space` holds rows · kArgmaxParts values.
inline constexpr int kArgmaxParts = 32;
void rows_argmax(const float* x, std::int64_t rows, std::int64_t width, std::uint64_t* space,
                 std::int32_t* out, const Queue& queue);

}  // namespace lca::cuda
