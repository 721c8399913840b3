#pragma once
/// Matrix products through cuBLASLt.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/cuda/device.h"
#include "core/cuda/head_rows.h"

namespace lca::cuda {

/// A product C = α·A·B, either of them transposed or not, row-major, of bf16 with float32 sums;
/// `batch` of them at strides.
struct Product {
  const bf16* a = nullptr;  ///< [rows][inner], row stride a_stride; a_transposed: [inner][rows]
  const bf16* b = nullptr;  ///< b_transposed: [columns][inner]; else [inner][columns]
  void* c = nullptr;        ///< [rows][columns] bf16, or float where c_float
  std::int64_t rows = 0, columns = 0, inner = 0;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  bool a_transposed = false;
  bool b_transposed = true;
  bool c_float = false;
  bool accumulate = false;  ///< C += …
  float alpha = 1;
  int batch = 1;
  std::int64_t a_batch = 0, b_batch = 0, c_batch = 0;  ///< elements between products
};

/// Products on one GPU: cuBLASLt's handle and the algorithms it has chosen so far. For one thread
/// at a time.
class Products {
 public:
  explicit Products(const Device& device);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  /// Device memory that every call is given: what NVIDIA advises for Hopper.
  static constexpr std::size_t kScratchBytes = std::size_t{32} << 20;

  /// Enqueues a product of any sizes. `scratch` is the caller's, of kScratchBytes and aligned to
  /// 256; products that share it must be on one stream. Nothing is allocated on the GPU, so the
  /// call can be captured, and a replay uses the same scratch.
  void multiply(const Product& product, void* scratch, cudaStream_t stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A set of products with its scratch, as calls that need both are handed them.
struct ProductSpace {
  Products* products = nullptr;
  void* scratch = nullptr;  ///< [kScratchBytes]
  void multiply(const Product& product, cudaStream_t stream) const {
    products->multiply(product, scratch, stream);
  }
};

}  // namespace lca::cuda
