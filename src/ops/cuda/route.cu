/// Routing rows to experts: choice, sorting, gathering, combination.
///
/// Shapes     logits [rows][experts], residual [rows][hidden] float32; rows [*][hidden] bf16.
/// Sorting    a block per expert counts the choices below its own and its own, which gives its
///            place without a second kernel; the order within an expert is by row.
/// Bounds     DeepSeek-V2-Lite, 16K rows: the gather writes 0.4 GB, the combination moves 0.8 GB.

#include <algorithm>
#include <cstdint>

#include "core/cuda/overlap.cuh"
#include "core/cuda/warp_ops.cuh"
#include "ops/cuda/route.h"
#include "ops/cuda/route_choice.cuh"
#include "ops/cuda/stream_ops.cuh"

namespace lca::cuda {
namespace {

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
  const float* const mine = logits + std::int64_t{row} * rule.experts;
  row_choose<Slots>(
      rule, [&](int e) { return load_after_wait(mine + e); },
      forced == nullptr ? nullptr : forced + out, scores[warp], best[warp], chosen + out,
      weights + out);
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

}  // namespace

void route_choose(const RouteRule& rule, const Route& route, const Queue& queue) {
  if (route.rows == 0) return;
  route_logits(rule, route, queue);
  const auto choice = rule.experts <= 64 ? route_choice<2> : route_choice<kMostExperts / 32>;
  launch_overlapping(choice, dim3(launch_pieces(route.rows, kChooseWarps)), 32 * kChooseWarps, 0,
                     queue, rule, route.logits, route.forced, route.rows, route.chosen,
                     route.weights);
}

void route_sort(const RouteRule& rule, int shared, const int* chosen, int rows, const Sorted& out,
                const Queue& queue) {
  launch_overlapping(route_sorting, dim3(static_cast<unsigned>(rule.experts + shared + 1)),
                     kSortThreads, 0, queue, rule.experts, rule.per_token, shared, chosen, rows,
                     out);
}

void route_gather(const bf16* x, const int* source, std::int64_t count, int hidden, bf16* out,
                  const Queue& queue) {
  if (count == 0) return;
  const bool wide = hidden % 8 == 0;
  const int chunks = wide ? hidden / 8 : hidden;
  const dim3 grid(launch_pieces(count, std::max(1, 256 / chunks)));
  if (wide) {
    launch_overlapping(route_gathering<uint4>, grid, 256, 0, queue, x, source, count, chunks, out);
  } else {
    launch_overlapping(route_gathering<unsigned short>, grid, 256, 0, queue, x, source, count,
                       chunks, out);
  }
}

void route_combine(const Combine& combine, const Queue& queue) {
  if (combine.rows == 0) return;
  const dim3 grid(static_cast<unsigned>(combine.rows));
  if (combine.hidden % 8 == 0) {
    launch_overlapping(route_combining, grid, kCombineThreads, 0, queue, combine);
  } else {
    route_combining_any<<<grid, kCombineThreads, 0, queue.stream>>>(combine);
    check(cudaGetLastError(), "adding what experts gave");
  }
}

}  // namespace lca::cuda
