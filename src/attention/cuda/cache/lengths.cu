// The lengths of a sequence in all layers, set by one launch: the value travels as an argument, so
// that a captured graph keeps it.

#include "attention/cuda/cache/store.h"

namespace lca::cuda {
namespace {

__global__ void lengths_kernel(SessionView* sessions, int layers, int slots, int slot,
                               std::int32_t length) {
  const int layer = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (layer < layers) sessions[layer * slots + slot].length = length;
}

}  // namespace

void lengths_set(SessionView* sessions, int layers, int slots, int slot, std::int32_t length,
                 const Queue& queue) {
  constexpr int kThreads = 32;
  lengths_kernel<<<static_cast<unsigned>((layers + kThreads - 1) / kThreads), kThreads, 0,
                   queue.stream>>>(sessions, layers, slots, slot, length);
  check(cudaGetLastError(), "setting a sequence's length");
}

}  // namespace lca::cuda
