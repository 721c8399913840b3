#pragma once
/// bf16 on the GPU, and strided rows of it.

#include <cuda_bf16.h>

#include <cstdint>

namespace lca::cuda {

using bf16 = __nv_bfloat16;

/// Rows of vectors, one per head: element (row, head, i) at data[row·row_stride + head·head_stride
/// + i]. A tensor without heads (k_rope of MLA) has head_stride 0.
struct HeadRows {
  const bf16* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  int width = 0;
};

/// The same, to be written. Without data nothing is wanted.
struct OutRows {
  bf16* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  int width = 0;
};

/// A dense tensor [rows][heads][width].
inline HeadRows head_rows(const bf16* data, std::int64_t heads, std::int64_t width) {
  return {data, heads * width, width, static_cast<int>(width)};
}

inline OutRows out_rows(bf16* data, std::int64_t heads, std::int64_t width) {
  return {data, heads * width, width, static_cast<int>(width)};
}

}  // namespace lca::cuda
