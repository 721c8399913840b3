// A build without CUDA: no model runs on a GPU.

#include "core/cuda/device_name.h"
#include "core/error.h"
#include "models/cuda/cuda_backend.h"
#include "models/cuda/cuda_memory.h"

namespace lca {

std::unique_ptr<ModelBackend> cuda_backend(const Model::State&, int, Context&, double,
                                           const std::function<void(double)>&) {
  fail_incompatible("{}", cuda::device_missing());
}

CudaPlan::CudaPlan(const ModelConfig&, bool) { fail_incompatible("{}", cuda::device_missing()); }

CudaMemory CudaPlan::memory(const CudaSessions&) const {
  fail_incompatible("{}", cuda::device_missing());
}

std::int64_t CudaPlan::longest() { fail_incompatible("{}", cuda::device_missing()); }

std::size_t cuda_memory_free(int) { fail_incompatible("{}", cuda::device_missing()); }

}  // namespace lca
