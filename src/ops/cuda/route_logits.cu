/// The router's logits.
///
/// Shapes     x [rows][hidden] bf16, router [experts][hidden] float32; DeepSeek-V2-Lite: hidden
///            2048, 64 experts.
/// Sums       float32. Few rows: a warp per expert and four rows. Many: tensor cores, with each
///            weight cut into three bf16 that add up to it, so that products are exact as well;
///            warps divide the inner dimension and load what the tensor cores take as it lies in
///            memory. Rows of any width: through shared memory.
/// Bounds     16K rows: 13 GFLOP (three products); 67 MB of x, and the router once a block from L2.

#include <cstdint>

#include "core/cuda/overlap.cuh"
#include "core/cuda/warp_ops.cuh"
#include "ops/cuda/route.h"
#include "ops/cuda/route_choice.cuh"
#include "ops/cuda/stream_ops.cuh"

namespace lca::cuda {
namespace {

// --- logits of few rows ------------------------------------------------------------------------

constexpr int kFewRouteRows = 4;  // of one warp
constexpr int kFewRouteWarps = 4;

__global__ void __launch_bounds__(32 * kFewRouteWarps)
    route_logits_few(const bf16* x, const float* router, const float* bias, int rows, int hidden,
                     int experts, float* logits) {
  const int expert = blockIdx.x * kFewRouteWarps + threadIdx.x / 32;
  const int lane = threadIdx.x & 31;
  const int first = blockIdx.y * kFewRouteRows;
  if (expert >= experts) return;
  const float* w = router + std::int64_t{expert} * hidden;
  const bool aligned = hidden % 4 == 0;
  const int whole = hidden / 4 * 4;
  float sum[kFewRouteRows] = {};
  grid_release();
  grid_wait();
#pragma unroll 4
  for (int k = 4 * lane; k < whole; k += 128) {
    const float4 a = row_values(w + k, aligned);
#pragma unroll
    for (int r = 0; r < kFewRouteRows; ++r) {
      const int row = min(first + r, rows - 1);
      const float4 b = row_values(x + std::int64_t{row} * hidden + k, aligned);
      sum[r] = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum[r]))));
    }
  }
  for (int k = whole + lane; k < hidden; k += 32) {
#pragma unroll
    for (int r = 0; r < kFewRouteRows; ++r) {
      const int row = min(first + r, rows - 1);
      sum[r] = fmaf(w[k], __bfloat162float(x[std::int64_t{row} * hidden + k]), sum[r]);
    }
  }
  const float add = bias == nullptr ? 0.0f : bias[expert];
#pragma unroll
  for (int r = 0; r < kFewRouteRows; ++r) {
    const float total = warp_sum(sum[r]);
    if (lane == 0 && first + r < rows) {
      logits[std::int64_t{first + r} * experts + expert] = total + add;
    }
  }
}

// --- logits of many rows -----------------------------------------------------------------------

constexpr int kRouteTile = 64;                 // rows, and experts, of a block
constexpr int kRouteInner = 32;                // values of both at a time
constexpr int kRouteStride = kRouteInner + 8;  // without bank conflicts

struct RouteShared {
  alignas(16) bf16 x[kRouteTile][kRouteStride];
  alignas(16) bf16 w[3][kRouteTile][kRouteStride];
};

/// Matrix fragments of 16 rows × 16 values at `at`.
__device__ __forceinline__ void route_fragment(std::uint32_t (&to)[4], const bf16* at, int lane) {
  matrix_load(to, shared_address(at + (lane & 15) * kRouteStride + (lane >> 4) * 8));
}

__global__ void __launch_bounds__(128)
    route_logits_many(const bf16* x, const float* router, const float* bias, int rows, int hidden,
                      int experts, float* logits) {
  __shared__ RouteShared shared;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int row_first = blockIdx.x * kRouteTile, expert_first = blockIdx.y * kRouteTile;
  const bool aligned = hidden % 8 == 0;
  float sum[8][4] = {};
  // A thread loads half a row of each chunk: 16 values of x, 16 weights.
  const int load_row = threadIdx.x / 2, load_column = threadIdx.x % 2 * 16;
  const bf16* const x_row = x + std::int64_t{min(row_first + load_row, rows - 1)} * hidden;
  const bool expert_real = expert_first + load_row < experts;
  const float* const w_row =
      router + std::int64_t{min(expert_first + load_row, experts - 1)} * hidden;
  uint4 x_next[2];
  float4 w_next[4];
  const auto fetch = [&](int k) {
    if (aligned) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = k + load_column + 8 * i;
        x_next[i] = at < hidden ? *reinterpret_cast<const uint4*>(x_row + at) : uint4{};
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = k + load_column + 4 * i;
        w_next[i] =
            at < hidden && expert_real ? *reinterpret_cast<const float4*>(w_row + at) : float4{};
      }
      return;
    }
    auto* const xs = reinterpret_cast<unsigned short*>(x_next);
    auto* const ws = reinterpret_cast<float*>(w_next);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int at = k + load_column + i;
      xs[i] = at < hidden ? reinterpret_cast<const unsigned short*>(x_row)[at] : 0;
      ws[i] = at < hidden && expert_real ? w_row[at] : 0.0f;
    }
  };
  fetch(0);
  for (int k = 0; k < hidden; k += kRouteInner) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      *reinterpret_cast<uint4*>(&shared.x[load_row][load_column + 8 * i]) = x_next[i];
      std::uint32_t parts[3][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float4 four = w_next[2 * i + j / 2];
        float low = j % 2 == 0 ? four.x : four.z, high = j % 2 == 0 ? four.y : four.w;
#pragma unroll
        for (int part = 0; part < 3; ++part) {  // what the parts so far leave over
          parts[part][j] = pack_bf16(low, high);
          const float2 taken = unpack_bf16(parts[part][j]);
          low -= taken.x;
          high -= taken.y;
        }
      }
#pragma unroll
      for (int part = 0; part < 3; ++part) {
        *reinterpret_cast<uint4*>(&shared.w[part][load_row][load_column + 8 * i]) =
            uint4{parts[part][0], parts[part][1], parts[part][2], parts[part][3]};
      }
    }
    __syncthreads();
    if (k + kRouteInner < hidden) fetch(k + kRouteInner);
#pragma unroll
    for (int inner = 0; inner < kRouteInner; inner += 16) {
      std::uint32_t a[4];
      route_fragment(a, &shared.x[warp * 16][inner], lane);
#pragma unroll
      for (int part = 2; part >= 0; --part) {  // small ones first
#pragma unroll
        for (int n = 0; n < kRouteTile; n += 16) {
          std::uint32_t b[4];
          route_fragment(b, &shared.w[part][n][inner], lane);
          multiply(sum[n / 8], a, b[0], b[2]);
          multiply(sum[n / 8 + 1], a, b[1], b[3]);
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = row_first + warp * 16 + lane / 4 + i / 2 * 8;
      const int expert = expert_first + n * 8 + lane % 4 * 2 + i % 2;
      if (row < rows && expert < experts) {
        logits[std::int64_t{row} * experts + expert] =
            sum[n][i] + (bias == nullptr ? 0.0f : bias[expert]);
      }
    }
  }
}

// --- the same without shared memory ------------------------------------------------------------

constexpr int kWideWarps = 8;  // that divide the inner dimension

/// Eight weights of two experts, each as three bf16 that add up to it.
__device__ __forceinline__ void weights_cut(const float* w, uint4 (&parts)[3]) {
  const float4 first = *reinterpret_cast<const float4*>(w);
  const float4 second = *reinterpret_cast<const float4*>(w + 4);
  float rest[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    std::uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = pack_bf16(rest[2 * i], rest[2 * i + 1]);
      const float2 taken = unpack_bf16(words[i]);
      rest[2 * i] -= taken.x;
      rest[2 * i + 1] -= taken.y;
    }
    parts[part] = uint4{words[0], words[1], words[2], words[3]};
  }
}

/// Blocks: of 16 experts. Tiles: of eight rows.
template <int Blocks, int Tiles>
__global__ void __launch_bounds__(32 * kWideWarps)
    route_logits_wide(const bf16* x, const float* router, const float* bias, int rows, int hidden,
                      int experts, float* logits) {
  extern __shared__ float wide_sums[];  // [warp][row][expert]
  constexpr int kExperts = 16 * Blocks, kRows = 8 * Tiles;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int r = lane / 4, q = lane % 4;
  const int row_first = blockIdx.x * kRows, expert_first = blockIdx.y * kExperts;
  const int steps = hidden / 32;
  const int begin = steps * warp / kWideWarps, end = steps * (warp + 1) / kWideWarps;
  float sum[Blocks][Tiles][4] = {};
  grid_release();
  grid_wait();
  for (int step = begin; step < end; ++step) {
    const int k = step * 32 + 8 * q;
    uint4 values[Tiles];
#pragma unroll
    for (int n = 0; n < Tiles; ++n) {
      const int row = min(row_first + 8 * n + r, rows - 1);
      values[n] =
          load_after_wait(reinterpret_cast<const uint4*>(x + std::int64_t{row} * hidden + k));
    }
#pragma unroll
    for (int b = 0; b < Blocks; ++b) {
      uint4 low[3], high[3];
      const int expert = expert_first + 16 * b + r;
      weights_cut(router + std::int64_t{min(expert, experts - 1)} * hidden + k, low);
      weights_cut(router + std::int64_t{min(expert + 8, experts - 1)} * hidden + k, high);
#pragma unroll
      for (int part = 2; part >= 0; --part) {  // small ones first
#pragma unroll
        for (int n = 0; n < Tiles; ++n) multiply_wide(sum[b][n], low[part], high[part], values[n]);
      }
    }
  }
#pragma unroll
  for (int b = 0; b < Blocks; ++b) {
#pragma unroll
    for (int n = 0; n < Tiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 8 * n + 2 * q + i % 2, expert = 16 * b + r + i / 2 * 8;
        wide_sums[(warp * kRows + row) * kExperts + expert] = sum[b][n][i];
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kRows * kExperts; i += 32 * kWideWarps) {
    const int row = row_first + i / kExperts, expert = expert_first + i % kExperts;
    if (row >= rows || expert >= experts) continue;
    float total = bias == nullptr ? 0.0f : bias[expert];
#pragma unroll
    for (int other = 0; other < kWideWarps; ++other)
      total += wide_sums[other * kRows * kExperts + i];
    logits[std::int64_t{row} * experts + expert] = total;
  }
}

constexpr int kFewLogits = 8;      // rows up to which a warp works on four rows and an expert
constexpr int kWideLogits = 2048;  // rows up to which experts are divided among blocks

template <int Blocks, int Tiles>
void logits_wide_launch(const RouteRule& rule, const Route& route, const Queue& queue) {
  constexpr int kExperts = 16 * Blocks, kRows = 8 * Tiles;
  constexpr std::size_t kBytes = sizeof(float) * kWideWarps * kRows * kExperts;
  const auto kernel = route_logits_wide<Blocks, Tiles>;
  queue.device->shared_allow(reinterpret_cast<const void*>(kernel), kBytes);
  launch_overlapping(kernel,
                     dim3(launch_pieces(route.rows, kRows), launch_pieces(rule.experts, kExperts)),
                     32 * kWideWarps, kBytes, queue, route.x, route.router, route.bias, route.rows,
                     route.hidden, rule.experts, route.logits);
}

}  // namespace

void route_logits(const RouteRule& rule, const Route& route, const Queue& queue) {
  if (route.rows <= kFewLogits) {
    const dim3 grid(launch_pieces(rule.experts, kFewRouteWarps),
                    launch_pieces(route.rows, kFewRouteRows));
    launch_overlapping(route_logits_few, grid, 32 * kFewRouteWarps, 0, queue, route.x, route.router,
                       route.bias, route.rows, route.hidden, rule.experts, route.logits);
  } else if (route.hidden % 32 != 0) {
    const dim3 grid(launch_pieces(route.rows, kRouteTile), launch_pieces(rule.experts, kRouteTile));
    route_logits_many<<<grid, 128, 0, queue.stream>>>(route.x, route.router, route.bias, route.rows,
                                                      route.hidden, rule.experts, route.logits);
    check(cudaGetLastError(), "computing the router's logits");
  } else if (route.rows <= kWideLogits) {
    logits_wide_launch<1, 4>(rule, route, queue);
  } else {
    logits_wide_launch<4, 6>(rule, route, queue);
  }
}

}  // namespace lca::cuda
