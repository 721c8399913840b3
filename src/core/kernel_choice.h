#pragma once
/// Which kernels models on a GPU use.

namespace lca::cuda {

/// Models that are loaded from now on use the kernels that run on every GPU, not the fastest.
void kernels_portable();
bool kernels_are_portable();

}  // namespace lca::cuda
