// ops/matmul.h in plain loops: oneDNN is not here for this processor. Every row is multiplied
// alike.

#include "ops/matmul.h"

#include "core/error.h"

namespace lca {

void matmul_prepare() {}

void matmul_nn(const MatrixView& a, const MatrixView& b, float* out, std::int64_t out_stride,
               bool add) {
  for (std::int64_t m = 0; m < a.rows; ++m) {
    float* row = out + m * out_stride;
    for (std::int64_t n = 0; n < b.columns && !add; ++n) row[n] = 0;
    for (std::int64_t k = 0; k < a.columns; ++k) {
      const float factor = a.data[m * a.stride + k];
      for (std::int64_t n = 0; n < b.columns; ++n) row[n] += factor * b.data[k * b.stride + n];
    }
  }
}

void matmul_nt(const MatrixView& a, const MatrixView& b, float* out, std::int64_t out_stride,
               bool add) {
  for (std::int64_t m = 0; m < a.rows; ++m) {
    for (std::int64_t n = 0; n < b.rows; ++n) {
      double sum = 0;
      for (std::int64_t k = 0; k < a.columns; ++k) {
        sum += static_cast<double>(a.data[m * a.stride + k]) * b.data[n * b.stride + k];
      }
      float& to = out[m * out_stride + n];
      to = static_cast<float>(sum) + (add ? to : 0);
    }
  }
}

void matmul_nt_bf16(std::int64_t, std::int64_t, std::int64_t, const bf16_bits*, const bf16_bits*,
                    float*, std::int64_t) {
  fail_internal("no native bfloat16 products here");
}

bool product_bf16_is_native() { return false; }
bool product_rows_are_alike(bool) { return true; }

}  // namespace lca
