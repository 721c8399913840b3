#include "rotate_turns.h"

#include "attention/cuda/rotate.cuh"
#include "core/cuda/device.h"

namespace lca::test {
namespace {

__global__ void turns_kernel(const std::uint64_t* steps, const std::int32_t* differences, int count,
                             float* turns) {
  for (int d = static_cast<int>(threadIdx.x); d < count; d += static_cast<int>(blockDim.x)) {
    const cuda::Turn turn = cuda::turn_of(steps[blockIdx.x], differences[d]);
    float* const to = turns + 2 * (static_cast<std::int64_t>(blockIdx.x) * count + d);
    to[0] = turn.cosine;
    to[1] = turn.sine;
  }
}

__global__ void member_turns_kernel(const std::uint64_t* steps, int step_count, std::int32_t first,
                                    int count, float* turns) {
  const int s = static_cast<int>(threadIdx.x);
  if (s >= step_count) return;
  cuda::MemberTurns members(steps[s], first);
  for (int d = 0; d < count; ++d) {
    const cuda::Turn turn = members.next();
    float* const to = turns + 2 * (static_cast<std::int64_t>(s) * count + d);
    to[0] = turn.cosine;
    to[1] = turn.sine;
  }
}

}  // namespace

void turns_make(const std::uint64_t* steps, int step_count, const std::int32_t* differences,
                int count, float* turns) {
  turns_kernel<<<static_cast<unsigned>(step_count), 256>>>(steps, differences, count, turns);
  cuda::check(cudaGetLastError(), "making turns");
}

void member_turns_make(const std::uint64_t* steps, int step_count, std::int32_t first, int count,
                       float* turns) {
  member_turns_kernel<<<1, 64>>>(steps, step_count, first, count, turns);
  cuda::check(cudaGetLastError(), "making the turns of members");
}

}  // namespace lca::test
