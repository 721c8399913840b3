/// Grouped products on every GPU since sm_80, and the arrangement of weights.
///
/// Shapes     sorted rows [*][inner] times [experts][columns][inner]; any sizes.
/// Moving     a block has a tile of 64 rows × 64 weight rows and steps of 32 along the inner
///            dimension in shared memory, the next step in registers. Blocks beyond the last tile,
///            whose number only the GPU knows, end at once.
/// Bounds     not tuned: for other GPUs than Hopper, and for shapes that Hopper's kernels refuse.

#include <cstdint>

#include "core/cuda/warp_ops.cuh"
#include "ops/cuda/experts_kernels.h"

namespace lca::cuda {
namespace {

constexpr int kPlainTile = 64;  // rows, and weight rows
constexpr int kPlainInner = 32;
constexpr int kPlainStride = kPlainInner + 8;  // without bank conflicts

__device__ __forceinline__ void plain_fragment(std::uint32_t (&to)[4], const bf16* at, int lane) {
  matrix_load(to, shared_address(at + (lane & 15) * kPlainStride + (lane >> 4) * 8));
}

/// 16 values of a row from `at` on, zeros behind its end.
__device__ __forceinline__ void plain_fetch(uint4 (&to)[2], const bf16* row, int at, int inner,
                                            bool real) {
  if (inner % 8 == 0) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      to[i] =
          real && at + 8 * i < inner ? *reinterpret_cast<const uint4*>(row + at + 8 * i) : uint4{};
    }
    return;
  }
  std::uint32_t words[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const auto* const values = reinterpret_cast<const unsigned short*>(row);
    const std::uint32_t low = real && at + 2 * i < inner ? values[at + 2 * i] : 0;
    const std::uint32_t high = real && at + 2 * i + 1 < inner ? values[at + 2 * i + 1] : 0;
    words[i] = low | high << 16;
  }
  to[0] = uint4{words[0], words[1], words[2], words[3]};
  to[1] = uint4{words[4], words[5], words[6], words[7]};
}

__device__ __forceinline__ float plain_silu(float x) { return x / (1.0f + expf(-x)); }

__global__ void __launch_bounds__(128) grouped_plain(Grouped g) {
  __shared__ alignas(16) bf16 rows_tile[kPlainTile][kPlainStride];
  __shared__ alignas(16) bf16 weights_tile[kPlainTile][kPlainStride];
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  // The tile's expert: tiles are counted expert by expert.
  int expert = 0, tile = blockIdx.x, first = 0, last = 0;
  for (;; ++expert) {
    if (expert == g.experts) return;
    first = g.begin[expert];
    last = g.begin[expert + 1];
    const int tiles = (last - first + kPlainTile - 1) / kPlainTile;
    if (tile < tiles) break;
    tile -= tiles;
  }
  first += tile * kPlainTile;
  const int column_first = blockIdx.y * kPlainTile;

  const int load_row = threadIdx.x / 2, load_column = threadIdx.x % 2 * 16;
  const bool row_real = first + load_row < last;
  const int row = row_real ? first + load_row : first;
  const bf16* const x = g.x + std::int64_t{g.source == nullptr ? row : g.source[row]} * g.inner;
  const bool column_real = column_first + load_row < g.columns;
  const bf16* const w =
      g.w +
      (std::int64_t{expert} * g.columns + (column_real ? column_first + load_row : 0)) * g.inner;
  float sum[8][4] = {};
  uint4 x_next[2], w_next[2];
  plain_fetch(x_next, x, load_column, g.inner, row_real);
  plain_fetch(w_next, w, load_column, g.inner, column_real);
  for (int k = 0; k < g.inner; k += kPlainInner) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      *reinterpret_cast<uint4*>(&rows_tile[load_row][load_column + 8 * i]) = x_next[i];
      *reinterpret_cast<uint4*>(&weights_tile[load_row][load_column + 8 * i]) = w_next[i];
    }
    __syncthreads();
    plain_fetch(x_next, x, k + kPlainInner + load_column, g.inner, row_real);
    plain_fetch(w_next, w, k + kPlainInner + load_column, g.inner, column_real);
#pragma unroll
    for (int inner = 0; inner < kPlainInner; inner += 16) {
      std::uint32_t a[4];
      plain_fragment(a, &rows_tile[warp * 16][inner], lane);
#pragma unroll
      for (int n = 0; n < kPlainTile; n += 16) {
        std::uint32_t b[4];
        plain_fragment(b, &weights_tile[n][inner], lane);
        multiply(sum[n / 8], a, b[0], b[2]);
        multiply(sum[n / 8 + 1], a, b[1], b[3]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int to = first + warp * 16 + lane / 4 + i / 2 * 8;
    const int inside = lane % 4 * 2 + i % 2;
    if (to >= last) continue;
    if (g.glu) {
      const int width = g.columns / 2;
#pragma unroll
      for (int n = 0; n < 8; n += 2) {  // eight gates, eight ups
        const int column = column_first / 2 + n * 4 + inside;
        if (column < width) {
          g.out[std::int64_t{to} * width + column] =
              __float2bfloat16(plain_silu(sum[n][i]) * sum[n + 1][i]);
        }
      }
    } else {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const int column = column_first + n * 8 + inside;
        if (column < g.columns) {
          g.out[std::int64_t{to} * g.columns + column] = __float2bfloat16(sum[n][i]);
        }
      }
    }
  }
}

// --- arrangement of weights --------------------------------------------------------------------

/// One stored row of gate and up a block, zeros where there is none.
__global__ void __launch_bounds__(256)
    gate_up_arranging(const bf16* gate, const bf16* up, int width, int hidden, bf16* out) {
  const int stored = blockIdx.x;
  const int row = stored / 16 * 8 + stored % 8;
  const bf16* const from = (stored % 16 < 8 ? gate : up) + std::int64_t{row} * hidden;
  bf16* const to = out + std::int64_t{stored} * hidden;
  for (int i = threadIdx.x; i < hidden; i += 256) {
    to[i] = row < width ? from[i] : __float2bfloat16(0.0f);
  }
}

__global__ void __launch_bounds__(256)
    down_arranging(const bf16* down, std::int64_t stride, int width, int stored, bf16* out) {
  const bf16* const from = down + blockIdx.x * stride;
  bf16* const to = out + std::int64_t{blockIdx.x} * stored;
  for (int i = threadIdx.x; i < stored; i += 256) {
    to[i] = i < width ? from[i] : __float2bfloat16(0.0f);
  }
}

}  // namespace

void grouped_portable(const Grouped& grouped, const Queue& queue) {
  if (grouped.sorted_rows == 0) return;
  // At most so many tiles: every expert may have one that is not full.
  const auto tiles = static_cast<unsigned>(grouped.sorted_rows / kPlainTile + grouped.experts);
  const dim3 grid(tiles, static_cast<unsigned>((grouped.columns + kPlainTile - 1) / kPlainTile));
  grouped_plain<<<grid, 128, 0, queue.stream>>>(grouped);
  check(cudaGetLastError(), "launching the products of experts");
}

void expert_store(const ExpertsShape& shape, int index, const ExpertSource& source, bf16* gate_up,
                  bf16* down, const Queue& queue) {
  const int stored = shape.stored_width();
  gate_up_arranging<<<2 * stored, 256, 0, queue.stream>>>(
      source.gate, source.up, shape.width, shape.hidden,
      gate_up + std::int64_t{index} * 2 * stored * shape.hidden);
  down_arranging<<<shape.hidden, 256, 0, queue.stream>>>(
      source.down, source.down_stride, shape.width, stored,
      down + std::int64_t{index} * shape.hidden * stored);
  check(cudaGetLastError(), "arranging the weights of an expert");
}

}  // namespace lca::cuda
