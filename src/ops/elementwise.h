#pragma once
/// The small operators between products, threaded over rows.

#include <lca/context.h>

#include <cstdint>

#include "ops/packed.h"

namespace lca {

/// out = x / rms(x) · weight for each row of `width` values, `stride` apart; `out` may be `x`.
void rms_norm(Context& context, const float* x, std::int64_t x_stride, std::int64_t rows,
              std::int64_t width, const float* weight, double eps, float* out,
              std::int64_t out_stride);

/// gate = silu(gate) · up.
void swiglu(Context& context, float* gate, const float* up, std::int64_t count);

/// y += factor · x.
void add_scaled(Context& context, float factor, const float* x, std::int64_t count, float* y);

/// out[i] = factor · row tokens[i] of the embedding.
void embed(Context& context, const PackedMatrix& embedding, const std::int32_t* tokens,
           std::int64_t count, float factor, float* out);

/// Rounds to bfloat16, to the nearest, ties to even.
void round_bf16(Context& context, const float* x, std::int64_t count, bf16_bits* out);

/// Whether no value is NaN or infinite.
bool packed_is_finite(const PackedMatrix& matrix);

}  // namespace lca
