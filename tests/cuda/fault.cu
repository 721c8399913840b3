#include "fault.h"

#include <cstdint>

namespace lca::test {
namespace {

__global__ void fault_kernel(std::uintptr_t address) {
  *reinterpret_cast<volatile int*>(address) = 1;
}

}  // namespace

void fault_provoke(cudaStream_t stream) { fault_kernel<<<1, 1, 0, stream>>>(0x40); }

}  // namespace lca::test
