#pragma once
/// What changes from step to step, in one piece of memory: written on the host,
/// copied to the GPU at once. A captured step finds everything at the same
/// addresses again.

#include <cstdint>

#include "attention/cuda/cache/store.h"
#include "core/cuda/memory.h"

namespace lca::cuda {

/// The arrays of a table, on the host or on the GPU.
struct StepArrays {
  std::int32_t* tokens = nullptr;     ///< [rows]
  std::int32_t* positions = nullptr;  ///< [rows]
  std::int32_t* rope = nullptr;       ///< [rows]: which list of steps
  std::int32_t* single = nullptr;     ///< [sessions]: rows of the runs of one token
  StepRow* sessions = nullptr;        ///< [sessions]
  std::uint64_t* steps = nullptr;     ///< [steps]: RoPE's, where they depend on the length

  StepArrays() = default;
  StepArrays(DeviceCarver carver, std::int64_t rows, std::int64_t session_rows,
             std::int64_t step_values) {
    tokens = carver.take<std::int32_t>(rows);
    positions = carver.take<std::int32_t>(rows);
    rope = carver.take<std::int32_t>(rows);
    single = carver.take<std::int32_t>(session_rows);
    sessions = carver.take<StepRow>(session_rows);
    steps = carver.take<std::uint64_t>(step_values);
    bytes = carver.used();
  }

  std::size_t bytes = 0;
};

}  // namespace lca::cuda
