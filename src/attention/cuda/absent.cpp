// A build without CUDA: everything says so.

#include "attention/cuda/layer.h"
#include "core/error.h"

namespace lca::cuda {

std::string unavailable() {
  return "this build has no CUDA; build with `make cuda` (needs nvcc), or use --backend cpu";
}

struct Layer::State {};

Layer::Layer(const LayerSpec&, const LayerWeights&, int, std::int64_t, const LayerOptions&) {
  fail_input("{}", unavailable());
}

Layer::~Layer() = default;

void Layer::prefill(std::span<const HostRun>) {}

void Layer::decode(std::span<const HostRun>) {}

HostGroups Layer::groups(int) const { return {}; }

}  // namespace lca::cuda
