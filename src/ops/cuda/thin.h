#pragma once
/// Products of a few rows with bf16 weights, for decoding: bound by reading the weights once.

#include <cstdint>

#include "core/cuda/device.h"
#include "core/cuda/head_rows.h"

namespace lca::cuda {

/// y[rows][columns] (+)= x[rows][inner] · W[columns][inner]ᵀ (+ bias); `batch` of them at strides
/// (the per-head products of MLA). bf16 inputs, float32 sums.
struct Thin {
  const bf16* x = nullptr;      ///< [rows][inner], row stride x_stride
  const bf16* w = nullptr;      ///< [columns][inner], row stride w_stride
  const float* bias = nullptr;  ///< [batch][columns], or null
  void* y = nullptr;  ///< [rows][columns] bf16, or float where y_float; row stride y_stride
  int rows = 0, columns = 0, inner = 0;
  std::int64_t x_stride = 0, w_stride = 0, y_stride = 0;
  bool y_float = false;
  bool accumulate = false;  ///< y += …; y must be float
  int batch = 1;
  std::int64_t x_batch = 0, w_batch = 0, y_batch = 0;  ///< elements between products
};

/// Most rows that these kernels take.
inline constexpr int kThinRows = 32;

/// Whether the kernels take this product (sizes, alignment) and are worth it against cuBLASLt.
bool thin_fits(const Thin& thin);

/// Enqueues the product; any sizes with 1 … kThinRows rows.
void thin_multiply(const Thin& thin, const Queue& queue);

}  // namespace lca::cuda
