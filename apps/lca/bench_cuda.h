#pragma once
/// `lca bench attention --backend cuda`.

#include "attention/cuda/layer.h"

#include <lca/shape.h>

#include <cstdint>
#include <vector>

namespace lca::cli {

struct CudaBench {
  const NamedShape& model;
  LayerSpec spec;  ///< its method is replaced by each of `methods`
  cuda::LayerOptions options;
  std::vector<MethodKind> methods;
  bool all_dense = false;  ///< dense attention at every length, however long it takes
  std::vector<std::int64_t> lengths;
  std::vector<std::int64_t> batches;
  bool json = false;
};

/// Measures and prints; throws Error if there is no GPU, or not enough GPU memory.
void cuda_bench(const CudaBench& job);

/// The same for gradients: `batches` counts documents packed into one call.
void cuda_bench_backward(const CudaBench& job);

}  // namespace lca::cli
