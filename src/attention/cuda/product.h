#pragma once
/// The matrix products around attention, through cuBLASLt.

#include "attention/cuda/views.h"

namespace lca::cuda {

/// A product C = A·B or A·Bᵀ, row-major, of bf16 with float32 sums; `batch` of them at strides.
struct Product {
  const bf16* a = nullptr;  ///< [rows][inner], row stride a_stride
  const bf16* b = nullptr;  ///< b_transposed: [columns][inner]; else [inner][columns]
  void* c = nullptr;        ///< [rows][columns] bf16, or float where c_float
  std::int64_t rows = 0, columns = 0, inner = 0;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  bool b_transposed = true;
  bool c_float = false;
  bool accumulate = false;  ///< C += …
  int batch = 1;
  std::int64_t a_batch = 0, b_batch = 0, c_batch = 0;  ///< elements between products
};

/// Enqueues the product. Any sizes; scratch memory is held per thread and reused.
void product(const Product& product, cudaStream_t stream);

}  // namespace lca::cuda
