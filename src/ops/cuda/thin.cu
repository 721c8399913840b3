/// Products of a few rows: weights go through registers once.
///
/// Shapes     y[rows ≤ 32][columns] = x[rows][inner] · W[columns][inner]ᵀ, batched at strides.
/// Moving     eight warps have 16 weight rows (32 with more than 16 rows of x) and divide the inner
///            dimension among them; where it is short, each warp has weight rows of its own. Lanes
///            load weights as they lie in memory and hand them to the tensor cores without shared
///            memory; warps add up there, always in one order.
/// Overlap    the first weights are loaded before the kernel ahead ends.
/// Bounds     the bytes of W: 2048 × 2048 takes 2 µs at 4.27 TB/s.

#include "ops/cuda/thin.h"

#include <cstdint>

#include "core/cuda/overlap.cuh"
#include "ops/cuda/stream_ops.cuh"

namespace lca::cuda {
namespace {

constexpr int kThinWarps = 8;
constexpr int kThinThreads = 32 * kThinWarps;
constexpr int kThinShort = 256;  // an inner dimension that warps do not divide

__device__ __forceinline__ void thin_store(const Thin& t, int batch, int row, int column,
                                           float sum) {
  if (t.bias != nullptr) sum += t.bias[std::int64_t{batch} * t.columns + column];
  const std::int64_t at = batch * t.y_batch + row * t.y_stride + column;
  if (!t.y_float) {
    static_cast<bf16*>(t.y)[at] = __float2bfloat16(sum);
  } else if (t.accumulate) {
    static_cast<float*>(t.y)[at] += sum;
  } else {
    static_cast<float*>(t.y)[at] = sum;
  }
}

/// Tiles: eights of rows. Blocks: of 16 weight rows. Steps: of 32 values, loaded together. Split:
/// warps that divide the inner dimension.
template <int Tiles, int Blocks, int Steps, int Split>
__global__ void __launch_bounds__(kThinThreads) thin_wide(Thin t) {
  __shared__ float sums[kThinWarps][8 * Tiles][16 * Blocks];
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int r = lane / 4, q = lane % 4;
  constexpr int kTeams = kThinWarps / Split;  // with weight rows of their own
  const int team = warp / Split, part = warp % Split;
  const int column_block = blockIdx.x * 16 * Blocks * kTeams;
  const int column_first = column_block + team * 16 * Blocks;
  const int steps = (t.inner + 31) / 32;
  const int begin = steps * part / Split, end = steps * (part + 1) / Split;
  const bf16* const w = t.w + blockIdx.y * t.w_batch;
  const bf16* const x = t.x + blockIdx.y * t.x_batch;
  float sum[Blocks][Tiles][4] = {};
  grid_release();
  for (int step = begin; step < end; step += Steps) {
    uint4 weights[Steps][Blocks][2], rows[Steps][Tiles];
#pragma unroll
    for (int i = 0; i < Steps; ++i) {
      const int k = (step + i) * 32 + 8 * q;
      const bool real = step + i < end && k < t.inner;
#pragma unroll
      for (int b = 0; b < Blocks; ++b) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int column = column_first + 16 * b + 8 * half + r;
          weights[i][b][half] = real && column < t.columns
                                    ? weights_load(w + std::int64_t{column} * t.w_stride + k)
                                    : uint4{};
        }
      }
    }
    if (step == begin) grid_wait();
#pragma unroll
    for (int i = 0; i < Steps; ++i) {
      const int k = (step + i) * 32 + 8 * q;
      const bool real = step + i < end && k < t.inner;
#pragma unroll
      for (int n = 0; n < Tiles; ++n) {
        const int row = 8 * n + r;
        rows[i][n] = real && row < t.rows
                         ? load_after_wait(reinterpret_cast<const uint4*>(x + row * t.x_stride + k))
                         : uint4{};
      }
    }
#pragma unroll
    for (int i = 0; i < Steps; ++i) {
#pragma unroll
      for (int b = 0; b < Blocks; ++b) {
#pragma unroll
        for (int n = 0; n < Tiles; ++n) {
          multiply_wide(sum[b][n], weights[i][b][0], weights[i][b][1], rows[i][n]);
        }
      }
    }
  }
#pragma unroll
  for (int b = 0; b < Blocks; ++b) {
#pragma unroll
    for (int n = 0; n < Tiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[warp][8 * n + 2 * q + i % 2][16 * b + r + i / 2 * 8] = sum[b][n][i];
      }
    }
  }
  __syncthreads();
  grid_wait();  // warps without steps
  constexpr int kColumns = 16 * Blocks * kTeams;
  for (int i = threadIdx.x; i < 8 * Tiles * kColumns; i += kThinThreads) {
    const int row = i / kColumns, column = column_block + i % kColumns;
    if (row >= t.rows || column >= t.columns) continue;
    const int first = i % kColumns / (16 * Blocks) * Split, inside = i % (16 * Blocks);
    float total = 0;
#pragma unroll
    for (int other = 0; other < Split; ++other) total += sums[first + other][row][inside];
    thin_store(t, blockIdx.y, row, column, total);
  }
}

/// Any sizes and addresses: a warp per column and row.
__global__ void __launch_bounds__(kThinThreads) thin_any(Thin t) {
  const int column = blockIdx.x * kThinWarps + threadIdx.x / 32;
  const int lane = threadIdx.x & 31;
  if (column >= t.columns) return;
  const bf16* const w = t.w + blockIdx.y * t.w_batch + column * t.w_stride;
  for (int row = 0; row < t.rows; ++row) {
    const bf16* const x = t.x + blockIdx.y * t.x_batch + row * t.x_stride;
    float sum = 0;
    for (int k = lane; k < t.inner; k += 32) {
      sum = fmaf(__bfloat162float(w[k]), __bfloat162float(x[k]), sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) thin_store(t, blockIdx.y, row, column, sum);
  }
}

bool thin_aligned(const Thin& t) {
  const auto address =
      reinterpret_cast<std::uintptr_t>(t.x) | reinterpret_cast<std::uintptr_t>(t.w);
  const std::int64_t strides = t.inner | t.x_stride | t.w_stride | t.x_batch | t.w_batch;
  return address % 16 == 0 && strides % 8 == 0;
}

template <int Tiles, int Blocks, int Steps, int Split>
void thin_launch(const Thin& thin, const Queue& queue) {
  constexpr int kColumns = 16 * Blocks * (kThinWarps / Split);
  const dim3 grid(launch_pieces(thin.columns, kColumns), static_cast<unsigned>(thin.batch));
  launch_overlapping(thin_wide<Tiles, Blocks, Steps, Split>, grid, kThinThreads, 0, queue, thin);
}

}  // namespace

bool thin_fits(const Thin& thin) {
  // Measured on an H200: beyond this cuBLASLt is as fast or faster.
  constexpr std::int64_t kSmall = std::int64_t{8} << 20;
  const std::int64_t weights = std::int64_t{thin.columns} * thin.inner * thin.batch;
  return thin.rows >= 1 && (thin.rows <= 8 || (thin.rows <= 16 && weights <= kSmall)) &&
         thin.inner >= 64 && thin_aligned(thin) && (!thin.accumulate || thin.y_float);
}

void thin_multiply(const Thin& thin, const Queue& queue) {
  if (thin.rows <= 0 || thin.columns <= 0 || thin.batch <= 0) return;
  if (thin.rows > kThinRows || !thin_aligned(thin)) {
    const dim3 grid(static_cast<unsigned>((thin.columns + kThinWarps - 1) / kThinWarps),
                    static_cast<unsigned>(thin.batch));
    thin_any<<<grid, kThinThreads, 0, queue.stream>>>(thin);
    check(cudaGetLastError(), "multiplying a few rows on the GPU");
  } else if (thin.inner <= kThinShort) {
    thin.rows <= 8    ? thin_launch<1, 1, 4, 1>(thin, queue)
    : thin.rows <= 16 ? thin_launch<2, 1, 4, 1>(thin, queue)
                      : thin_launch<4, 1, 4, 1>(thin, queue);
  } else {
    thin.rows <= 8    ? thin_launch<1, 1, 8, 8>(thin, queue)
    : thin.rows <= 16 ? thin_launch<2, 1, 4, 8>(thin, queue)
                      : thin_launch<4, 2, 2, 8>(thin, queue);
  }
}

}  // namespace lca::cuda
