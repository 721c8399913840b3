#pragma once
/// Flags of the commands that can run a layer on the GPU.

#include "arguments.h"
#include "attention/cuda/layer.h"

namespace lca::cli {

/// `--kernels` and `--groups`.
struct CudaFlags {
  TextFlag kernels, groups;

  void add(CLI::App& app);
  /// What they ask for; throws Error where one is given and the backend is another.
  cuda::LayerOptions options(bool backend_is_cuda) const;
};

/// Throws Error where `flag` is given and the backend is not cuda.
void cuda_only_check(const TextFlag& flag, const char* name, bool backend_is_cuda);

}  // namespace lca::cli
