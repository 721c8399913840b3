#pragma once
/// A kernel that does what none may.

#include <cuda_runtime.h>

namespace lca::test {

/// Enqueues a write to an address that no memory is at: from then on every call of this process on
/// the current GPU fails.
void fault_provoke(cudaStream_t stream);

}  // namespace lca::test
