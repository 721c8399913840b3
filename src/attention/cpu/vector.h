#pragma once
/// Operations on single rows, each with the best instructions of this CPU.

#include <lca/shape.h>
#include <lca/tensor.h>

#include <cstdint>

namespace lca::cpu {

/// Σ a·b, `a` float32, `b` of either dtype, summed in float32.
float vector_dot(const float* a, const void* b, DType dtype, std::int64_t count);

/// y += factor·x, `x` of either dtype.
void vector_add_scaled(float factor, const void* x, DType dtype, std::int64_t count, float* y);

/// to = factor · Σ of `rows` rows of `count` values, `stride` elements apart.
void vector_sum_rows(float factor, const void* first, DType dtype, std::int64_t stride,
                     std::int64_t rows, std::int64_t count, float* to);

/// to = float32 of from.
void vector_widen(const void* from, DType dtype, std::int64_t count, float* to);

/// y = element-wise maximum of y and x.
void vector_max(const void* x, DType dtype, std::int64_t count, float* y);

/// Writes float32 values in either dtype, rounding to nearest even.
void vector_store(const float* from, std::int64_t count, DType dtype, void* to);

/// Rounds float32 values to 8 bits: value ≈ scale·q, |q| ≤ 127. Returns the scale, which has 17
/// significant bits: scale·q is then exact in float32, and rounding that again changes nothing. A
/// row with a NaN or an infinity gets the scale NaN; one below 1e-30 becomes zero.
float vector_quantise(const float* from, std::int64_t count, std::int8_t* to);

/// to = scale·q, in either dtype.
void vector_dequantise(const std::int8_t* from, float scale, std::int64_t count, DType dtype,
                       void* to);

/// How rows are rotated on to another position; `steps` as in attention/rotate.h.
struct RowRotation {
  RopeLayout layout = RopeLayout::halves;
  const std::uint64_t* steps = nullptr;  ///< null: nothing is rotated
  std::int64_t pairs = 0;                ///< channels beyond 2·pairs stay as they are
};

/// Cosines, then sines, of a difference of positions: 2·pairs values.
void vector_angles(const RowRotation& rotation, std::int64_t difference, float* angles);

/// to = factor · the row `from`, rotated by the angles; `to` is another row.
void vector_rotate(const RowRotation& rotation, const float* angles, float factor, const void* from,
                   DType dtype, std::int64_t count, float* to);

}  // namespace lca::cpu
