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

/// With entry positions: the RoPE parts of the queries as representatives and sink see them, by the
/// helpers. A thread has one pair of channels of some heads; pairs behind those that are rotated
/// stay as they are.
class FarQueries {
 public:
  /// What needs no other kernel: nothing on the GPU writes steps.
  __device__ __forceinline__ void begin(const RotationView& rotation) {
    const int pair = Helpers::thread() % kPairs;
    const bool rotated = pair < rotation.pairs;
    step_ = rotated ? __ldg(rotation.steps + pair) : 0;
    channel_ = rotated ? pair_channels(rotation, pair) : int2{2 * pair, 2 * pair + 1};
  }

  /// Asks for them; needs nothing but the launch.
  __device__ __forceinline__ void load(const Args& args, int session, const Heads& heads) {
    const auto* const from = reinterpret_cast<const unsigned short*>(
        args.step.queries +
        (std::int64_t{session} * args.heads + heads.first + first_row()) * R::kScore + R::kFirst);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      x_[i] = y_[i] = 0;
      if (first_row() + i * kRowStep >= heads.count) continue;
      x_[i] = load_after_wait(from + i * kRowStep * R::kScore + channel_.x);
      y_[i] = load_after_wait(from + i * kRowStep * R::kScore + channel_.y);
    }
  }

  __device__ __forceinline__ void store(int difference, unsigned char* to) const {
    const Turn turn = turn_of(step_, difference);  // of step 0: none
    const auto place = [&](int row, int channel) {
      return reinterpret_cast<unsigned short*>(to + chunk_offset(row, channel / 8, 0)) +
             channel % 8;
    };
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = first_row() + i * kRowStep;
      if (row >= kBlockHeads) break;
      const float2 given = unpack_bf16(x_[i] | std::uint32_t{y_[i]} << 16);
      const float2 value = turn(given.x, given.y);
      const std::uint32_t bits = pack_bf16(value.x, value.y);
      *place(row, channel_.x) = static_cast<unsigned short>(bits);
      *place(row, channel_.y) = static_cast<unsigned short>(bits >> 16);
    }
  }

 private:
  static constexpr int kPairs = R::kPositional / 2;
  static constexpr int kRowStep = Helpers::kThreads / kPairs;
  static constexpr int kEach = (kBlockHeads + kRowStep - 1) / kRowStep;
  static_assert(Helpers::kThreads % kPairs == 0);
  __device__ static int first_row() { return Helpers::thread() / kPairs; }

  std::uint64_t step_;
  int2 channel_;
  unsigned short x_[kEach], y_[kEach];
};

}  // namespace lca::cuda::decoding::streaming
