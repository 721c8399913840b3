#include "step_inputs.h"

#include "core/cuda/device.h"

namespace lca::test {
namespace {

/// One block, a thread a row.
__global__ void write_kernel(StepInputs inputs, cuda::StepArrays table) {
  const int row = static_cast<int>(threadIdx.x);
  const std::int32_t step = *inputs.step;
  __syncthreads();
  if (row == 0) *inputs.step = step + 1;
  if (row >= inputs.rows) return;
  StepSequence& sequence = inputs.sequences[row];
  const bool held = sequence.length >= 0;
  const std::int32_t token = !held ? 0 : step == 0 ? sequence.token : inputs.picks[row];
  inputs.taken[step * inputs.rows + row] = token;
  table.tokens[row] = token;
  table.positions[row] = held ? sequence.length : 0;
  table.rope[row] = 0;
  table.single[row] = row;
  table.sessions[row] = {sequence.slot, sequence.window, sequence.length, 0};
  if (!held) return;
  if (inputs.tables != nullptr) {
    for (int i = 0; i < inputs.pages; ++i) {
      inputs.tables[std::int64_t{sequence.slot} * inputs.pages_each + i] =
          inputs.entries[row * inputs.pages + i];
    }
  }
  ++sequence.length;
}

__global__ void spoil_kernel(StepInputs inputs, cuda::StepArrays table) {
  const int row = static_cast<int>(threadIdx.x);
  if (row >= inputs.rows) return;
  table.tokens[row] = 1;
  table.positions[row] = 7;
  table.rope[row] = 0;
  table.single[row] = 0;
  table.sessions[row] = {0, 0, -1, 0};
  if (inputs.tables == nullptr || inputs.sequences[row].length < 0) return;
  for (int i = 0; i < inputs.pages; ++i) {
    inputs.tables[std::int64_t{inputs.sequences[row].slot} * inputs.pages_each + i] =
        inputs.entries[row * inputs.pages];
  }
}

}  // namespace

void step_inputs_write(const StepInputs& inputs, const cuda::StepArrays& table,
                       cudaStream_t stream) {
  write_kernel<<<1, 64, 0, stream>>>(inputs, table);
  cuda::check(cudaGetLastError(), "writing a step's inputs");
}

void step_inputs_spoil(const StepInputs& inputs, const cuda::StepArrays& table,
                       cudaStream_t stream) {
  spoil_kernel<<<1, 64, 0, stream>>>(inputs, table);
  cuda::check(cudaGetLastError(), "spoiling a step's inputs");
}

}  // namespace lca::test
