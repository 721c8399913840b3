/// Routing rows to experts: logits, choice, sorting, gathering, combination.
///
/// Shapes     x [rows][hidden] bf16, router [experts][hidden] float32; DeepSeek-V2-Lite: hidden
///            2048, 64 experts, 6 chosen.
/// Logits     float32 sums. Few rows: a warp per expert and four rows. Many: tensor cores, with
/// each
///            weight cut into three bf16 that add up to it, so that products are exact as well.
/// Sorting    a block per expert counts the choices below its own and its own, which gives its
///            place without a second kernel; the order within an expert is by row.
/// Bounds     16K rows: logits 13 GFLOP (three products), 67 MB of x; gather 0.8 GB; combine 0.8
/// GB.

#include <algorithm>
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

// --- choice ------------------------------------------------------------------------------------

constexpr int kChooseWarps = 8;  // a row each

/// Slots: scores of a lane.
template <int Slots>
__global__ void __launch_bounds__(32 * kChooseWarps)
    route_choice(RouteRule rule, const float* logits, const int* forced, int rows, int* chosen,
                 float* weights) {
  __shared__ float scores[kChooseWarps][32 * Slots];
  __shared__ float best[kChooseWarps][32 * Slots];
  const int warp = threadIdx.x / 32;
  const int row = blockIdx.x * kChooseWarps + warp;
  if (row >= rows) return;
  grid_release();
  grid_wait();
  const std::int64_t out = std::int64_t{row} * rule.per_token;
  row_choose<Slots>(rule, logits + std::int64_t{row} * rule.experts,
                    forced == nullptr ? nullptr : forced + out, scores[warp], best[warp],
                    chosen + out, weights + out);
}

// --- sorting -----------------------------------------------------------------------------------

constexpr int kSortThreads = 1024;
constexpr int kSortEach = 4;  // choices of a thread at a time

/// Sums of the threads before this one, and of all.
__device__ __forceinline__ int2 block_scan(int value, int* warps) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  int before = value;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(~0u, before, offset);
    if (lane >= offset) before += other;
  }
  __syncthreads();  // the sums of the call before are read
  if (lane == 31) warps[warp] = before;
  __syncthreads();
  const int mine = lane < kSortThreads / 32 ? warps[lane] : 0;
  int up_to = mine;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(~0u, up_to, offset);
    if (lane >= offset) up_to += other;
  }
  const int all = __shfl_sync(~0u, up_to, 31);
  const int warps_before = __shfl_sync(~0u, up_to - mine, warp);
  return {before - value + warps_before, all};
}

__global__ void __launch_bounds__(kSortThreads)
    route_sorting(int experts, int per_token, int shared, const int* chosen, int rows, Sorted out) {
  __shared__ int warps[32];
  const int expert = blockIdx.x;
  const int visits = per_token + shared;
  const int count = rows * per_token;
  grid_release();
  grid_wait();
  if (expert >= experts) {  // a shared one, and behind the last the end
    const int begin = count + (expert - experts) * rows;
    if (threadIdx.x == 0) out.begin[expert] = begin;
    if (expert == experts + shared) return;
    for (int row = threadIdx.x; row < rows; row += kSortThreads) {
      out.place[std::int64_t{row} * visits + per_token + expert - experts] = begin + row;
      out.source[begin + row] = row;
    }
    return;
  }
  int below = 0;
#pragma unroll 8
  for (int i = threadIdx.x; i < count; i += kSortThreads) {
    below += load_after_wait(chosen + i) < expert;
  }
  int next = block_scan(below, warps).y;
  if (threadIdx.x == 0) out.begin[expert] = next;
  for (int first = 0; first < count; first += kSortThreads * kSortEach) {
    bool mine[kSortEach];
    int own = 0;
#pragma unroll
    for (int i = 0; i < kSortEach; ++i) {
      const int at = first + threadIdx.x * kSortEach + i;
      mine[i] = at < count && load_after_wait(chosen + at) == expert;
      own += mine[i];
    }
    const int2 scan = block_scan(own, warps);
    int to = next + scan.x;
#pragma unroll
    for (int i = 0; i < kSortEach; ++i) {
      if (!mine[i]) continue;
      const int at = first + threadIdx.x * kSortEach + i;
      const int row = at / per_token;
      out.place[std::int64_t{row} * visits + at % per_token] = to;
      out.source[to++] = row;
    }
    next += scan.y;
  }
}

// --- moving rows -------------------------------------------------------------------------------

template <typename Chunk>
__global__ void __launch_bounds__(256)
    route_gathering(const bf16* x, const int* source, std::int64_t count, int chunks, bf16* out) {
  // A block copies several rows, so that short rows fill it too.
  const int rows_at_once = max(1, 256 / chunks);
  const int inside = threadIdx.x / chunks;
  grid_wait();
  grid_release();  // the sorted order is complete
  if (inside >= rows_at_once && rows_at_once > 1) return;
  const std::int64_t row =
      std::int64_t{blockIdx.x} * rows_at_once + (rows_at_once > 1 ? inside : 0);
  if (row >= count) return;
  const Chunk* const from =
      reinterpret_cast<const Chunk*>(x) + std::int64_t{load_after_wait(source + row)} * chunks;
  Chunk* const to = reinterpret_cast<Chunk*>(out) + row * chunks;
  if (rows_at_once > 1) {
    to[threadIdx.x % chunks] = from[threadIdx.x % chunks];
  } else {
    for (int i = threadIdx.x; i < chunks; i += 256) to[i] = from[i];
  }
}

constexpr int kCombineThreads = 256;
constexpr int kCombineVisits = 8;  // whose rows are loaded before they are added

/// Eight values a thread.
__global__ void __launch_bounds__(kCombineThreads) route_combining(Combine c) {
  const std::int64_t row = blockIdx.x;
  const int visits = c.per_token + c.shared;
  grid_wait();
  const int* const place = c.place + row * visits;
  for (int column = 8 * threadIdx.x; column < c.hidden; column += 8 * kCombineThreads) {
    float sum[8] = {};
    for (int first = 0; first < visits; first += kCombineVisits) {
      uint4 values[kCombineVisits];
      float weight[kCombineVisits];
#pragma unroll
      for (int i = 0; i < kCombineVisits; ++i) {
        const int visit = first + i;
        weight[i] = 0;
        values[i] = uint4{};
        if (visit >= visits) continue;
        weight[i] =
            visit < c.per_token ? load_after_wait(c.weights + row * c.per_token + visit) : 1.0f;
        values[i] = load_after_wait(reinterpret_cast<const uint4*>(
            c.y + std::int64_t{load_after_wait(place + visit)} * c.hidden + column));
      }
#pragma unroll
      for (int i = 0; i < kCombineVisits; ++i) {
        const std::uint32_t pairs[4] = {values[i].x, values[i].y, values[i].z, values[i].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 two = unpack_bf16(pairs[j]);
          sum[2 * j] = fmaf(weight[i], two.x, sum[2 * j]);
          sum[2 * j + 1] = fmaf(weight[i], two.y, sum[2 * j + 1]);
        }
      }
    }
    float4* const to = reinterpret_cast<float4*>(c.residual + row * c.hidden + column);
    float4 low = to[0], high = to[1];
    low.x += sum[0], low.y += sum[1], low.z += sum[2], low.w += sum[3];
    high.x += sum[4], high.y += sum[5], high.z += sum[6], high.w += sum[7];
    to[0] = low;
    to[1] = high;
  }
}

/// The same for rows of any width.
__global__ void __launch_bounds__(kCombineThreads) route_combining_any(Combine c) {
  const std::int64_t row = blockIdx.x;
  const int visits = c.per_token + c.shared;
  for (int column = threadIdx.x; column < c.hidden; column += kCombineThreads) {
    float sum = 0;
    for (int visit = 0; visit < visits; ++visit) {
      const float weight = visit < c.per_token ? c.weights[row * c.per_token + visit] : 1.0f;
      sum = fmaf(
          weight,
          __bfloat162float(c.y[std::int64_t{c.place[row * visits + visit]} * c.hidden + column]),
          sum);
    }
    c.residual[row * c.hidden + column] += sum;
  }
}

/// A launch that may overlap with the kernel ahead, where it is the GPU's.
template <typename... Parameters, typename... Arguments>
void route_launch(void (*kernel)(Parameters...), dim3 grid, int threads, const Queue& queue,
                  Arguments... arguments) {
  cudaLaunchAttribute attributes[1];
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = queue.stream;
  config.attrs = attributes;
  overlap_allow(*queue.device, config);
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...),
        "routing rows to experts");
}

constexpr int kFewLogits = 64;     // rows up to which a warp works on four rows and an expert
constexpr int kWideLogits = 2048;  // rows up to which experts are divided among blocks

unsigned pieces(std::int64_t count, std::int64_t size) {
  return static_cast<unsigned>((count + size - 1) / size);
}

}  // namespace

namespace {

template <int Blocks, int Tiles>
void logits_wide_launch(const RouteRule& rule, const Route& route, const Queue& queue) {
  constexpr int kExperts = 16 * Blocks, kRows = 8 * Tiles;
  constexpr std::size_t kBytes = sizeof(float) * kWideWarps * kRows * kExperts;
  const auto kernel = route_logits_wide<Blocks, Tiles>;
  queue.device->shared_allow(reinterpret_cast<const void*>(kernel), kBytes);
  cudaLaunchAttribute attributes[1];
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(pieces(route.rows, kRows), pieces(rule.experts, kExperts));
  config.blockDim = dim3(32 * kWideWarps);
  config.dynamicSmemBytes = kBytes;
  config.stream = queue.stream;
  config.attrs = attributes;
  overlap_allow(*queue.device, config);
  check(cudaLaunchKernelEx(&config, kernel, route.x, route.router, route.bias, route.rows,
                           route.hidden, rule.experts, route.logits),
        "computing the router's logits");
}

}  // namespace

void route_choose(const RouteRule& rule, const Route& route, const Queue& queue) {
  if (route.rows == 0) return;
  if (route.rows <= kFewLogits) {
    route_launch(route_logits_few,
                 dim3(pieces(rule.experts, kFewRouteWarps), pieces(route.rows, kFewRouteRows)),
                 32 * kFewRouteWarps, queue, route.x, route.router, route.bias, route.rows,
                 route.hidden, rule.experts, route.logits);
  } else if (route.hidden % 32 != 0) {
    const dim3 grid(pieces(route.rows, kRouteTile), pieces(rule.experts, kRouteTile));
    route_logits_many<<<grid, 128, 0, queue.stream>>>(route.x, route.router, route.bias, route.rows,
                                                      route.hidden, rule.experts, route.logits);
    check(cudaGetLastError(), "computing the router's logits");
  } else if (route.rows <= kWideLogits) {
    logits_wide_launch<1, 4>(rule, route, queue);
  } else {
    logits_wide_launch<4, 6>(rule, route, queue);
  }
  const auto choice = rule.experts <= 64 ? route_choice<2> : route_choice<kMostExperts / 32>;
  route_launch(choice, dim3(pieces(route.rows, kChooseWarps)), 32 * kChooseWarps, queue, rule,
               route.logits, route.forced, route.rows, route.chosen, route.weights);
}

void route_sort(const RouteRule& rule, int shared, const int* chosen, int rows, const Sorted& out,
                const Queue& queue) {
  route_launch(route_sorting, dim3(static_cast<unsigned>(rule.experts + shared + 1)), kSortThreads,
               queue, rule.experts, rule.per_token, shared, chosen, rows, out);
}

void route_gather(const bf16* x, const int* source, std::int64_t count, int hidden, bf16* out,
                  const Queue& queue) {
  if (count == 0) return;
  const bool wide = hidden % 8 == 0;
  const int chunks = wide ? hidden / 8 : hidden;
  const dim3 grid(pieces(count, std::max(1, 256 / chunks)));
  if (wide) {
    route_launch(route_gathering<uint4>, grid, 256, queue, x, source, count, chunks, out);
  } else {
    route_launch(route_gathering<unsigned short>, grid, 256, queue, x, source, count, chunks, out);
  }
}

void route_combine(const Combine& combine, const Queue& queue) {
  if (combine.rows == 0) return;
  const dim3 grid(static_cast<unsigned>(combine.rows));
  if (combine.hidden % 8 == 0) {
    route_launch(route_combining, grid, kCombineThreads, queue, combine);
  } else {
    route_combining_any<<<grid, kCombineThreads, 0, queue.stream>>>(combine);
    check(cudaGetLastError(), "adding what experts gave");
  }
}

}  // namespace lca::cuda
