#pragma once
/// Rotating rows on to entry positions (mechanism §10). Angles are exact for positions of any size:
/// a step is a fraction of a turn in 64 bits, its product with a difference of positions loses
/// whole turns by overflow, and only what is left becomes a float.

#include <cstdint>

#include "attention/cuda/views.h"
#include "attention/rotate.h"

namespace lca::cuda {

/// Cosine and sine of one pair's angle.
struct Turn {
  float cosine = 1;
  float sine = 0;

  __device__ __forceinline__ float2 operator()(float x, float y) const {
    return {x * cosine - y * sine, y * cosine + x * sine};
  }
};

__device__ __forceinline__ Turn turn_of(std::uint64_t step, int difference) {
  const std::uint64_t part =
      step * static_cast<std::uint64_t>(static_cast<std::int64_t>(difference));
  Turn turn;
  sincospif(__int2float_rn(static_cast<int>(part >> 32)) * 0x1p-31f, &turn.sine, &turn.cosine);
  return turn;
}

/// Channels of a pair.
__device__ __forceinline__ int2 pair_channels(const RotationView& rotation, int pair) {
  const RotationPair channels = rotation_pair(rotation.layout, pair, rotation.pairs);
  return {static_cast<int>(channels.first), static_cast<int>(channels.second)};
}

/// One pair over the members of a group, each one position further back than the one before. Turns
/// are made one from another, and from the angle itself often enough that errors do not add up.
class MemberTurns {
 public:
  __device__ __forceinline__ MemberTurns(std::uint64_t step, int first_difference)
      : step_(step), difference_(first_difference), back_(turn_of(step, -1)) {}

  /// The next member's.
  __device__ __forceinline__ Turn next() {
    constexpr int kAgain = 32;
    if (count_ % kAgain == 0) {
      turn_ = turn_of(step_, difference_ - count_);
    } else {
      const float2 turned = back_(turn_.cosine, turn_.sine);
      turn_ = {turned.x, turned.y};
    }
    ++count_;
    return turn_;
  }

 private:
  std::uint64_t step_;
  int difference_;
  int count_ = 0;
  Turn back_, turn_;
};

/// Rotates 16 rows of bf16 in shared memory in place, by all lanes of a warp: lane l gives the
/// difference of row l % 16, and place(row, channel) is where a value lies. Neighbouring rows
/// mostly have the same difference, and then the same turns. Rows whose difference is 0 stay as
/// they are.
template <typename Place>
__device__ __forceinline__ void rows_rotate(const RotationView& rotation, int difference, int lane,
                                            const Place& place) {
  constexpr int kRows = 16, kAtOnce = 4;
#pragma unroll 1
  for (int first = 0; first < rotation.pairs; first += 32) {
    const bool real = first + lane < rotation.pairs;
    const int pair = real ? first + lane : first;
    const int2 channel = pair_channels(rotation, pair);
    const std::uint64_t step = __ldg(rotation.steps + pair);
    Turn turn;
    int turned = 0;  // the difference that `turn` is of
#pragma unroll 1
    for (int row = 0; row < kRows; row += kAtOnce) {
      bf16 x[kAtOnce], y[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        // Lanes without a pair must not read what others write.
        x[i] = real ? *place(row + i, channel.x) : bf16{};
        y[i] = real ? *place(row + i, channel.y) : bf16{};
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int by = __shfl_sync(0xffffffffu, difference, row + i);
        if (by == 0) continue;
        if (by != turned) turn = turn_of(step, by);
        turned = by;
        const float2 value = turn(__bfloat162float(x[i]), __bfloat162float(y[i]));
        if (!real) continue;
        *place(row + i, channel.x) = __float2bfloat16_rn(value.x);
        *place(row + i, channel.y) = __float2bfloat16_rn(value.y);
      }
    }
  }
}

}  // namespace lca::cuda
