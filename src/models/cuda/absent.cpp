// A build without CUDA: no model runs on a GPU.

#include "core/cuda/device_name.h"
#include "core/error.h"
#include "models/cuda/cuda_backend.h"

namespace lca {

std::unique_ptr<ModelBackend> cuda_backend(const Model::State&, int, Context&,
                                           const std::function<void(double)>&) {
  fail_incompatible("{}", cuda::device_missing());
}

}  // namespace lca
