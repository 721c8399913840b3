#pragma once
/// Prefill attention on the GPU.

#include <span>

#include "attention/cuda/views.h"

namespace lca::cuda {

/// Whether the Hopper kernel covers these widths and alignments; everything else is portable.
bool prefill_has_fast(const Prefill& problem);

/// Bytes of device scratch that `prefill` needs for so many runs.
std::size_t prefill_workspace_bytes(std::size_t runs);

/// Attends. Enqueued on the stream; `workspace` must live until the stream has passed it. Picks the
/// Hopper kernel where `kernels` allows it, the GPU is one and the widths are covered.
void prefill(const Prefill& problem, std::span<const PrefillRun> runs, void* workspace,
             Kernels kernels, const Queue& queue);

/// The two halves of it.
void prefill_sm90(const Prefill& problem, std::span<const PrefillRun> runs, void* workspace,
                  const Queue& queue);
void prefill_portable(const Prefill& problem, std::span<const PrefillRun> runs, void* workspace,
                      const Queue& queue);

}  // namespace lca::cuda
