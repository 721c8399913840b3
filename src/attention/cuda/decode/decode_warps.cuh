#pragma once
/// What Hopper's decode kernels for wide latents share: the row, the warps of a block, and how a
/// tile lies in shared memory.

#include "attention/cuda/decode/decode_reduce.cuh"
#include "core/cuda/hopper.cuh"

namespace lca::cuda::decoding::streaming {

using R = Row<Form::mla, 512, 64, 1, 12>;  // three warp groups

inline constexpr int kBlockHeads = 16;

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

/// With entry positions: the RoPE parts of the queries as representatives and sink see them. A
/// thread's share are pairs of channels, rotated or (behind those) as they are.
class FarQueries {
 public:
  /// Asks for them; needs nothing but the launch.
  __device__ __forceinline__ void load(const Args& args, int session, const Heads& heads,
                                       int thread) {
    const RotationView& rotation = args.step.rotation;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = (thread + i * kLoaders) / kSlots;
      const int slot = (thread + i * kLoaders) % kSlots;
      x_[i] = y_[i] = 0;
      step_[i] = slot < rotation.pairs ? __ldg(rotation.steps + slot) : 0;
      if (row >= heads.count) continue;
      const auto* const rope = reinterpret_cast<const unsigned short*>(
          args.step.queries + (std::int64_t{session} * args.heads + heads.first + row) * R::kScore +
          R::kFirst);
      const int2 channel = channels(rotation, slot);
      x_[i] = load_after_wait(rope + channel.x);
      y_[i] = load_after_wait(rope + channel.y);
    }
  }

  __device__ __forceinline__ void store(const Args& args, int difference, int thread,
                                        unsigned char* to) const {
    const RotationView& rotation = args.step.rotation;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = (thread + i * kLoaders) / kSlots;
      const int slot = (thread + i * kLoaders) % kSlots;
      if (row >= kBlockHeads) break;
      std::uint32_t bits = x_[i] | std::uint32_t{y_[i]} << 16;
      if (slot < rotation.pairs) {
        const float2 given = unpack_bf16(bits);
        const float2 value = turn_of(step_[i], difference)(given.x, given.y);
        bits = pack_bf16(value.x, value.y);
      }
      const int2 channel = channels(rotation, slot);
      *place(to, row, channel.x) = static_cast<unsigned short>(bits);
      *place(to, row, channel.y) = static_cast<unsigned short>(bits >> 16);
    }
  }

 private:
  static constexpr int kSlots = R::kPositional / 2;
  static constexpr int kLoaders = R::kThreads - 32;
  static constexpr int kEach = (kBlockHeads * kSlots + kLoaders - 1) / kLoaders;

  __device__ static int2 channels(const RotationView& rotation, int slot) {
    return slot < rotation.pairs ? pair_channels(rotation, slot) : int2{2 * slot, 2 * slot + 1};
  }
  __device__ static unsigned short* place(unsigned char* to, int row, int channel) {
    return reinterpret_cast<unsigned short*>(to + chunk_offset(row, channel / 8, 0)) + channel % 8;
  }

  unsigned short x_[kEach], y_[kEach];
  std::uint64_t step_[kEach];
};

}  // namespace lca::cuda::decoding::streaming
