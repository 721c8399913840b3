#pragma once
/// Which kernels run on the CPU: the best this processor has, or those that every processor runs.

namespace lca {

/// From now on only kernels that every processor of this family runs are used, in this process: for
/// comparing results, and where a processor's newer instructions are in doubt. To be called before
/// a model is loaded.
void cpu_kernels_portable();

/// Whether that was asked for.
bool cpu_kernels_are_portable();

}  // namespace lca
