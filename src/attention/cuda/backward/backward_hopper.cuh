#pragma once
/// What the two Hopper kernels of the backward pass share.

#include "attention/cuda/backward/backward_plan.h"
#include "core/cuda/hopper.cuh"
#include "core/cuda/numbers.h"
#include "core/cuda/tensor_map.h"

namespace lca::cuda {

inline constexpr int kBackwardConsumers = 2;  ///< warp groups that multiply
inline constexpr int kBackwardThreads = 128 * (kBackwardConsumers + 1);
// What the producer gives up is what the consumers take: 168 registers each at the start. With one
// register more for either side the last warp group would wait for ever.
inline constexpr int kBackwardProducerRegisters = 24;
inline constexpr int kBackwardConsumerRegisters = 240;
static_assert(kBackwardProducerRegisters + kBackwardConsumers * kBackwardConsumerRegisters <=
              168 * (kBackwardConsumers + 1));

/// Position in a ring: slot and phase.
template <int Slots>
struct RingPhase {
  int slot = 0;
  std::uint32_t phase = 0;
  __device__ __forceinline__ void next() {
    if (++slot == Slots) {
      slot = 0;
      phase ^= 1;
    }
  }
};

/// Loads `Columns` columns of `Rows` rows of one head in panels of 64 columns.
template <int Rows, int Columns>
__device__ __forceinline__ void panels_load(const CUtensorMap& map, LoadBarrier& full,
                                            unsigned char* to, int head, int row) {
  constexpr auto kHint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
#pragma unroll
  for (int c = 0; c < Columns; c += 64) {
    cute::SM90_TMA_LOAD_3D::copy(&map, reinterpret_cast<std::uint64_t*>(&full), kHint,
                                 to + c * Rows * 2, c, head, row);
  }
}

/// Clears rows outside [begin, end) of panels of 64 columns; all 128 threads of a warp group call
/// it. Swizzling moves bytes within a row only. The caller fences and meets.
template <int Rows, int Columns>
__device__ __forceinline__ void rows_clear(unsigned char* panels, int begin, int end) {
  for (int i = threadIdx.x & 127; i < Rows * Columns / 8; i += 128) {
    const int row = i / 8 % Rows;
    if (row >= begin && row < end) continue;
    reinterpret_cast<uint4*>(panels)[i] = uint4{0, 0, 0, 0};
  }
}

/// S [64×N] = A·Bᵀ over `Columns` columns: rows of A from `a` on, panels `ARows` rows high.
template <int N, int Columns, int ARows, int BRows>
__device__ __forceinline__ void product_panels(float (&s)[N / 2], std::uint32_t a, std::uint32_t b,
                                               bool add) {
#pragma unroll
  for (int c = 0; c < Columns; c += 16) {
    const int panel = c / 64 * 128, inside = (c & 63) * 2;
    product_shared<N>(s, descriptor<128>(a, panel * ARows + inside),
                      descriptor<128>(b, panel * BRows + inside), c > 0 || add);
  }
}

/// D [64×N] (+)= A [64×Inner]·B [Inner×N]: A in registers, B in panels of 64 columns.
template <int N, int Inner>
__device__ __forceinline__ void product_rows(float (&d)[N / 2], const std::uint32_t* a,
                                             std::uint32_t b, bool add) {
#pragma unroll
  for (int k = 0; k < Inner; k += 16) {
    product_registers<N>(d, a + k / 4, descriptor<128>(b, k * 128, Inner * 128), k > 0 || add);
  }
}

/// Writes `Columns` columns of accumulators from column `From` on, times `scale`, as bf16: one row
/// in the first (r = 0) or second half of the thread's. All lanes call it.
template <int From, int Columns, int N>
__device__ __forceinline__ void row_write(const float (&d)[N], int r, float scale, bool real,
                                          bf16* to, int quad) {
#pragma unroll
  for (int i = From / 2; i < (From + Columns) / 2; i += 16) {  // four chunks of 8 columns
    std::uint32_t chunk[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      chunk[c] = pack_bf16(d[i + 4 * c + 2 * r] * scale, d[i + 4 * c + 2 * r + 1] * scale);
    }
    quad_transpose(chunk, quad);
    if (real) {
      *reinterpret_cast<uint4*>(to + 2 * i - From + 8 * quad) =
          uint4{chunk[0], chunk[1], chunk[2], chunk[3]};
    }
  }
}

}  // namespace lca::cuda
