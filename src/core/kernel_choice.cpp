#include <atomic>

#include "core/kernel_choice.h"

namespace lca::cuda {
namespace {

std::atomic<bool> portable_kernels = false;

}  // namespace

void kernels_portable() { portable_kernels = true; }

bool kernels_are_portable() { return portable_kernels; }

}  // namespace lca::cuda
