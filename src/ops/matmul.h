#pragma once
/// Plain matrix products, done by oneDNN.

#include <lca/tensor.h>

#include <cstdint>

namespace lca {

/// A row-major matrix in memory: `stride` elements from one row to the next.
struct MatrixView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;
};

/// out[m,n] = a[m,k] · b[n,k]ᵀ in float32, on the calling thread alone. `a` and `b` share a dtype;
/// bfloat16 needs `matmul_has_bf16()`.
void matmul_nt(const MatrixView& a, const MatrixView& b, float* out, std::int64_t out_stride);

/// out[m,n] = a[m,k] · b[k,n], both float32, on the calling thread alone; with `add` on top of what
/// is there.
void matmul_nn(const MatrixView& a, const MatrixView& b, float* out, std::int64_t out_stride,
               bool add = false);

/// Whether this CPU has fast bfloat16 products.
bool matmul_has_bf16();

/// c[m,n] = a[m,k] · b[k,n] with `threads` threads in one call: the yardstick of the benchmarks.
void gemm_parallel_f32(int threads, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
                       const float* b, float* c);

}  // namespace lca
