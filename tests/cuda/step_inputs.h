#pragma once
/// All inputs of decode steps, written by a kernel: where a sequence is, how long it is, its pages,
/// its token (the likeliest one after the step before) and position.

#include <cuda_runtime.h>

#include <cstdint>

#include "models/cuda/step_table.h"

namespace lca::test {

/// What the kernel knows of a sequence.
struct StepSequence {
  std::int32_t slot = 0, window = 0;
  std::int32_t length = 0;  ///< counted on by each step; −1: padding
  std::int32_t token = 0;   ///< of the first step
};

/// Everything in device memory. One step reads `step` and counts it on.
struct StepInputs {
  StepSequence* sequences = nullptr;      ///< [rows]
  int rows = 0;                           ///< padding included
  const std::int32_t* entries = nullptr;  ///< [rows][pages]: what the page tables are to hold
  std::int32_t* tables = nullptr;         ///< [slots][pages_each]; null: nothing is condensed
  int pages = 0, pages_each = 0;
  const std::int32_t* picks = nullptr;  ///< [rows], of the step before
  std::int32_t* step = nullptr;         ///< steps so far
  std::int32_t* taken = nullptr;        ///< [steps][rows]: the tokens that steps were given
};

void step_inputs_write(const StepInputs& inputs, const cuda::StepArrays& table,
                       cudaStream_t stream);

/// Overwrites what a step read with what no step may read: tokens and positions of others, tables
/// without pages, rows without sequences.
void step_inputs_spoil(const StepInputs& inputs, const cuda::StepArrays& table,
                       cudaStream_t stream);

}  // namespace lca::test
