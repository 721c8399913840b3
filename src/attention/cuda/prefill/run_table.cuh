#pragma once
/// Lists of runs that do not fit a kernel's arguments.

#include <algorithm>
#include <span>

#include "core/cuda/device.h"

namespace lca::cuda {

/// Runs that travel with one launch.
template <typename Run>
struct RunPage {
  static constexpr int kRuns = 3072 / sizeof(Run);
  Run runs[kRuns];
};

template <typename Run>
__global__ void run_table_kernel(const __grid_constant__ RunPage<Run> page, int count, Run* to) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < count) to[i] = page.runs[i];
}

/// Writes the list to device memory by launches whose arguments carry it. A copy from host memory
/// would not do: a captured graph would read that memory again at every replay.
template <typename Run>
void run_table_write(std::span<const Run> runs, Run* to, const Queue& queue) {
  constexpr std::size_t kAtOnce = RunPage<Run>::kRuns;
  for (std::size_t first = 0; first < runs.size(); first += kAtOnce) {
    const std::size_t count = std::min(kAtOnce, runs.size() - first);
    RunPage<Run> page{};
    std::copy_n(runs.begin() + static_cast<std::ptrdiff_t>(first), count, page.runs);
    run_table_kernel<<<1, static_cast<unsigned>(kAtOnce), 0, queue.stream>>>(
        page, static_cast<int>(count), to + first);
    check(cudaGetLastError(), "writing the list of runs");
  }
}

}  // namespace lca::cuda
