#pragma once
/// Plain matrix products, done by oneDNN.

#include <algorithm>
#include <cstdint>

#include "core/bf16.h"

namespace lca {

/// A row-major float32 matrix in memory: `stride` elements from one row to the next.
struct MatrixView {
  const float* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;
};

/// Has oneDNN generate its code while there is memory for it; throws std::bad_alloc where there is
/// not. For callers that share products out to threads: a thread's own first allocation reserves
/// tens of megabytes, and may take the room after it was found.
void matmul_prepare();

/// out[m,n] = a[m,k] · b[k,n] on the calling thread alone; with `add` on top of what is there.
void matmul_nn(const MatrixView& a, const MatrixView& b, float* out, std::int64_t out_stride,
               bool add = false);

/// out[m,n] = a[m,k] · b[n,k]ᵀ, the same way.
void matmul_nt(const MatrixView& a, const MatrixView& b, float* out, std::int64_t out_stride,
               bool add = false);

/// out[m,n] = a[m,k] · b[n,k]ᵀ of dense bfloat16 matrices, summed in float32, on the calling thread
/// alone. Only where product_bf16_is_native().
void matmul_nt_bf16(std::int64_t m, std::int64_t n, std::int64_t k, const bf16_bits* a,
                    const bf16_bits* b, float* out, std::int64_t out_stride);

/// Whether this processor multiplies bfloat16 natively.
bool product_bf16_is_native();

/// From so many rows on, oneDNN's products treat rows alike.
inline constexpr std::int64_t kAlikeRows = 16;

/// Rows that matmul_nt_bf16 multiplies first where there are `m`; then as many as for the rest. For
/// each number of rows oneDNN generates code and keeps it, tens of kilobytes a shape, and prompts
/// have any length: multiples of kAlikeRows and a rest below twice that are few numbers. Short
/// prompts stay whole, since a second piece would read all weights again for a few rows. No piece
/// has fewer than kAlikeRows rows, unless `m` is less.
inline std::int64_t bf16_rows_together(std::int64_t m) {
  constexpr std::int64_t kMost = 256;  // what each piece costs beside its rows is little then
  if (m < 4 * kAlikeRows) return m;
  const std::int64_t rows = std::min(m, kMost) / kAlikeRows * kAlikeRows;
  const std::int64_t rest = m - rows;
  return rest == 0 || rest >= kAlikeRows ? rows : rows - kAlikeRows;
}

/// Whether a row of matmul_nt's (`bf16`: matmul_nt_bf16's) result is the same to the bit whatever
/// other rows are multiplied with it, from kAlikeRows rows on. Found out once, by trying.
bool product_rows_are_alike(bool bf16);

/// c[m,n] = a[m,k] · b[k,n] with `threads` threads in one call: the yardstick of the benchmarks.
void gemm_parallel_f32(int threads, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
                       const float* b, float* c);

}  // namespace lca
