#pragma once
/// What the two grouped kernels on Hopper share: widths of products, rings of stages, tensor maps.

#include <cuda.h>

#include <cstdint>

#include "core/cuda/cluster.cuh"
#include "core/cuda/hopper.cuh"
#include "core/cuda/tensor_map.h"
#include "ops/cuda/experts_kernels.h"
#include "ops/cuda/stream_ops.cuh"

namespace lca::cuda {

namespace detail {

template <>
struct Atom<8> {
  using Shared = gmma::MMA_64x8x16_F32BF16BF16_SS<gmma::Major::K, gmma::Major::K>;
};
template <>
struct Atom<16> {
  using Shared = gmma::MMA_64x16x16_F32BF16BF16_SS<gmma::Major::K, gmma::Major::K>;
};
template <>
struct Atom<32> {
  using Shared = gmma::MMA_64x32x16_F32BF16BF16_SS<gmma::Major::K, gmma::Major::K>;
};
template <>
struct Atom<256> {
  using Shared = gmma::MMA_64x256x16_F32BF16BF16_SS<gmma::Major::K, gmma::Major::K>;
};

}  // namespace detail

/// Experts that a kernel keeps a table of: those of a router and the shared ones.
inline constexpr int kTableExperts = kMostExperts + 64;

/// A slot of a ring, and which time round it is.
template <int Slots>
struct RingPlace {
  int slot = 0;
  std::uint32_t phase = 0;
  __device__ __forceinline__ void next() {
    if (++slot == Slots) {
      slot = 0;
      phase ^= 1;
    }
  }
};

/// table[e] = Σ works of the experts before e, table[experts] = all: by the first warp. `works`
/// gives an expert's number from its number of rows.
template <typename Works>
__device__ __forceinline__ void works_count(const int* begin, int experts, int* table,
                                            Works works) {
  const int lane = threadIdx.x & 31;
  int before = 0;
  for (int first = 0; first < experts; first += 32) {
    const int e = first + lane;
    const int own =
        e < experts ? works(load_after_wait(begin + e + 1) - load_after_wait(begin + e)) : 0;
    int sum = own;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(~0u, sum, offset);
      if (lane >= offset) sum += other;
    }
    if (e < experts) table[e] = before + sum - own;
    before += __shfl_sync(~0u, sum, 31);
  }
  if (lane == 0) table[experts] = before;
}

/// Loads a box of 64 columns from (`column`, `row`) on.
__device__ __forceinline__ void box_load(const CUtensorMap& map, LoadBarrier& full, void* to,
                                         int column, int row) {
  cute::SM90_TMA_LOAD_3D::copy(&map, reinterpret_cast<std::uint64_t*>(&full),
                               static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL),
                               to, column, 0, row);
}

/// Boxes of `box_rows` rows × 64 columns of a dense [count][width].
inline CUtensorMap rows_map(const bf16* data, std::int64_t count, int width, int box_rows) {
  return tensor_map(HeadRows{data, width, 0, width}, 1, count, box_rows);
}

}  // namespace lca::cuda
