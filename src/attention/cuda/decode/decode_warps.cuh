#pragma once
/// What Hopper's decode kernels for wide latents share: the row, the warps of a block, and how a
/// tile lies in shared memory.

#include "attention/cuda/decode/decode_tiles.cuh"
#include "core/cuda/hopper.cuh"

namespace lca::cuda::decoding::streaming {

using R = Row<Form::mla, 512, 64, 1, 12>;  // three warp groups

/// A barrier of some warps. The hardware's named barriers are as good, but racecheck reports races,
/// even across barriers of all threads, where two warps have passed different numbers of them.
class WarpsBarrier {
 public:
  __device__ __forceinline__ explicit WarpsBarrier(Barrier& barrier) : barrier_(barrier) {}
  __device__ __forceinline__ void sync() {
    barrier_.arrive();
    barrier_.wait(phase_);
    phase_ ^= 1;
  }

 private:
  Barrier& barrier_;
  std::uint32_t phase_ = 0;
};

/// The warps of the producer group that do not load tiles.
struct Helpers {
  static constexpr int kWarps = 3;
  static constexpr int kThreads = 96;
  WarpsBarrier barrier;
  __device__ static int thread() { return static_cast<int>(threadIdx.x) - 32; }
  __device__ void sync() { barrier.sync(); }
};

/// Where 16-byte chunk `chunk` of a row lies in a tile of 128-byte panels, swizzled as TMA does.
__device__ __forceinline__ int chunk_offset(int row, int chunk, int panel_bytes) {
  return chunk / 8 * panel_bytes + row * 128 + ((chunk & 7) ^ (row & 7)) * 16;
}

}  // namespace lca::cuda::decoding::streaming
