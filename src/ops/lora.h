#pragma once
/// The two thin products of a LoRA change, computed beside a weight that stays packed:
/// y += B·t with t = scale·A·x. A lies in panels of 16 ranks and B in strips of 16 rows, so that
/// one vector holds 16 ranks of one column, or 16 rows of one rank: no sum crosses lanes.

#include <lca/tensor.h>

#include <cstddef>
#include <cstdint>

#include "ops/packed.h"

namespace lca {

inline constexpr std::int64_t kLoraLanes = 16;

/// A LoRA pair in that layout. The matrices are bfloat16 or float32; x, t and all sums are float32.
struct LoraPanels {
  const std::byte* a = nullptr;  ///< [panels][in][16 ranks], filled up with zeros
  const std::byte* b = nullptr;  ///< [strips][rank][16 rows], filled up with zeros
  DType type = DType::f32;
  std::int64_t rank = 0;
  std::int64_t in = 0;
  std::int64_t out = 0;
  float scale = 1;

  bool empty() const { return a == nullptr; }
  std::int64_t panels() const { return (rank + kLoraLanes - 1) / kLoraLanes; }
  /// Values of t for one row of x.
  std::int64_t width() const { return panels() * kLoraLanes; }
};

/// Bytes of the layout of A [rank, in] and B [out, rank].
std::size_t lora_bytes(std::int64_t rank, std::int64_t in, std::int64_t out, DType type);

/// Lays a pair out at `to`, which has lora_bytes; values are rounded to `type`.
LoraPanels lora_arrange(const PackedMatrix& a, const PackedMatrix& b, float scale, DType type,
                        std::byte* to);

/// How sums are split: in several chains for few rows, which wait for additions, in one for many.
/// A row's result depends on this alone, not on the rows beside it.
enum class LoraRows : std::uint8_t { few, many };

/// t[m · stride + r] = scale · (row m of x · row r of A) for the 16 ranks of one panel; `t` begins
/// at the panel's first. Never throws.
void lora_down(const LoraPanels& lora, LoraRows kind, std::int64_t panel, const float* x,
               std::int64_t rows, float* t, std::int64_t stride) noexcept;

/// Prefetches what lora_up reads of B.
void lora_up_prefetch(const LoraPanels& lora, std::int64_t first, std::int64_t end) noexcept;

/// y[m · stride + n] += row n of B · row m of t, for n = first (a multiple of 16) … end − 1. Rows
/// of t are `t_stride` apart.
void lora_up(const LoraPanels& lora, const float* t, std::int64_t t_stride, std::int64_t rows,
             std::int64_t first, std::int64_t end, float* y, std::int64_t stride);

}  // namespace lca
