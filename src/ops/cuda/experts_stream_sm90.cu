/// Grouped products on Hopper for few rows: bound by reading the weights of the experts hit.
///
/// Shapes     a tile is 128 weight rows of one expert × up to 128 or 64 of its sorted rows, in
///            products of four widths: weights are the large operand.
/// Moving     one warp fills a ring of stages (64 or 128 values of weight rows and of rows) by TMA.
///            Two warp groups multiply 64 weight rows each with wgmma and write results as they lie
///            in registers, two bytes at a time, which is little beside the weights. Rows come from
///            L2 once for each tile.
/// Work       a persistent grid over (expert, weight rows, rows), rows fastest: an expert with more
///            rows than a tile finds its weights in L2 again.
/// Overlap    the ring's first weights are loaded before the kernel ahead ends.
/// Memory     6 × (16 + 16) KiB or 4 × (32 + 16) KiB = 192 KiB.
/// Bounds     batch 200: 66 experts, 1.14 GB, 267 µs at 4.27 TB/s.

#include <algorithm>
#include <cstdint>

#include "ops/cuda/experts_tiles.cuh"

namespace lca::cuda {
namespace {

constexpr int kFlowSizes = 4;  // widths of products

/// Groups: warp groups that multiply. Panels: of 64 values in a stage. Rows: most of a tile.
template <int Groups, int Panels, int Rows, int Stages>
struct FlowTile {
  static constexpr int kGroups = Groups, kPanels = Panels, kRows = Rows, kStages = Stages;
  static constexpr int kWeights = 64 * Groups;  // weight rows
  static constexpr int kInner = 64 * Panels;
  static constexpr int kThreads = 128 * Groups + 32;
  static constexpr int kWeightsBytes = kWeights * 128;  // of a panel
  static constexpr int kRowsBytes = Rows * 128;
  /// Widths of products: the last is Rows.
  static constexpr int width(int size) { return (Rows >> (kFlowSizes - 1)) << size; }
};

template <typename T>
struct FlowShared {
  alignas(1024) unsigned char weights[T::kStages][T::kPanels][T::kWeightsBytes];
  alignas(1024) unsigned char rows[T::kStages][T::kPanels][T::kRowsBytes];
  LoadBarrier full[T::kStages];
  Barrier empty[T::kStages];
  int works[kTableExperts + 1];
};

struct FlowParams {
  const int* begin;
  bf16* out;
  int experts, columns, inner, out_width;
  int shared_from;
};

struct FlowMaps {
  CUtensorMap rows[kFlowSizes], shared_rows[kFlowSizes], weights;
};

struct Flow {
  int expert, first, count;  // rows
  int column;
  int size;  // of the product
};

template <typename T>
class Flows {
 public:
  __device__ __forceinline__ Flows(const FlowParams& p, const FlowShared<T>& shared)
      : p_(p), shared_(shared), work_(blockIdx.x) {}
  __device__ __forceinline__ bool next(Flow& flow) {
    if (work_ >= shared_.works[p_.experts]) return false;
    while (work_ >= shared_.works[expert_ + 1]) ++expert_;
    const int begin = load_after_wait(p_.begin + expert_);
    const int rows = load_after_wait(p_.begin + expert_ + 1) - begin;
    const int pieces = (rows + T::kRows - 1) / T::kRows;
    const int inside = work_ - shared_.works[expert_];
    const int piece = inside % pieces;
    flow.expert = expert_;
    flow.first = begin + piece * T::kRows;
    flow.count = min(T::kRows, rows - piece * T::kRows);
    flow.column = inside / pieces * T::kWeights;
    flow.size =
        (flow.count > T::width(0)) + (flow.count > T::width(1)) + (flow.count > T::width(2));
    work_ += gridDim.x;
    return true;
  }

 private:
  const FlowParams& p_;
  const FlowShared<T>& shared_;
  int work_;
  int expert_ = 0;
};

template <typename T>
__device__ __forceinline__ void flows_load(const FlowParams& p, const FlowMaps& maps,
                                           FlowShared<T>& shared) {
  const int inner_stage = T::kInner;
  Flow flow;
  const auto weights_fetch = [&](const Flow& of, int slot, int k) {
    shared.full[slot].arrive_and_expect_tx(T::kPanels *
                                           (T::kWeightsBytes + T::width(of.size) * 128));
#pragma unroll
    for (int i = 0; i < T::kPanels; ++i) {
      box_load(maps.weights, shared.full[slot], shared.weights[slot][i], k + 64 * i,
               of.expert * p.columns + of.column);
    }
  };
  const auto rows_fetch = [&](const Flow& of, int slot, int k) {
    const bool own = of.expert >= p.shared_from;
    const CUtensorMap& map = own ? maps.shared_rows[of.size] : maps.rows[of.size];
    const int row = own ? of.first - load_after_wait(p.begin + of.expert) : of.first;
#pragma unroll
    for (int i = 0; i < T::kPanels; ++i) {
      box_load(map, shared.full[slot], shared.rows[slot][i], k + 64 * i, row);
    }
  };

  // The first stages: weights now, rows when the kernel ahead has written them.
  Flows<T> early(p, shared);
  int filled = 0;
  while (filled < T::kStages && early.next(flow)) {
    for (int k = 0; k < p.inner && filled < T::kStages; k += inner_stage) {
      weights_fetch(flow, filled++, k);
    }
  }
  grid_wait();
  Flows<T> flows(p, shared);
  RingPlace<T::kStages> place;
  int stage = 0;
  while (flows.next(flow)) {
    for (int k = 0; k < p.inner; k += inner_stage, ++stage) {
      if (stage >= T::kStages) {
        shared.empty[place.slot].wait(place.phase ^ 1);
        weights_fetch(flow, place.slot, k);
      }
      rows_fetch(flow, place.slot, k);
      place.next();
    }
  }
}

template <bool Glu, int N, typename T>
__device__ __forceinline__ void flow_multiply(const FlowParams& p, FlowShared<T>& shared,
                                              const Flow& flow, RingPlace<T::kStages>& place) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;  // of all groups
  const std::uint32_t weights = shared_address(shared.weights) / 16 + warp / 4 * (64 * 128 / 16);
  const std::uint32_t rows = shared_address(shared.rows) / 16;
  float sum[N / 2];
  for (int k = 0; k < p.inner; k += T::kInner) {
    const int s = place.slot;
    shared.full[s].wait(place.phase);
    accumulators_fence(sum);
    cute::warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < T::kInner; i += 16) {
      const int panel = i / 64, inside = i % 64 * 2;
      product_shared<N>(
          sum,
          descriptor<128>(weights + (s * T::kPanels + panel) * (T::kWeightsBytes / 16), inside),
          descriptor<128>(rows + (s * T::kPanels + panel) * (T::kRowsBytes / 16), inside),
          k + i > 0);
    }
    cute::warpgroup_commit_batch();
    accumulators_fence(sum);
    cute::warpgroup_wait<0>();
    if (lane == 0) shared.empty[s].arrive();
    place.next();
  }
  accumulators_fence(sum);
  const int r = lane / 4, q = lane % 4;
  const int at = Glu ? flow.column / 2 + warp * 8 + r : flow.column + warp * 16 + r;
#pragma unroll
  for (int block = 0; block < N / 8; ++block) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 8 * block + 2 * q + i;
      if (row >= flow.count) continue;
      bf16* const to = p.out + std::int64_t{flow.first + row} * p.out_width;
      const float low = sum[4 * block + i], high = sum[4 * block + i + 2];
      if constexpr (Glu) {
        if (at < p.out_width) to[at] = __float2bfloat16(silu(low) * high);
      } else {
        if (at < p.out_width) to[at] = __float2bfloat16(low);
        if (at + 8 < p.out_width) to[at + 8] = __float2bfloat16(high);
      }
    }
  }
}

template <bool Glu, typename T>
__global__ void __launch_bounds__(T::kThreads, 1)
    grouped_flow(FlowParams p, const __grid_constant__ FlowMaps maps) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<FlowShared<T>*>(
      (reinterpret_cast<std::uintptr_t>(memory) + 1023) / 1024 * 1024);
  if (threadIdx.x == 0) {
    for (int s = 0; s < T::kStages; ++s) {
      shared.full[s].init(1);
      shared.empty[s].init(4 * T::kGroups);  // warps
    }
    cutlass::arch::fence_barrier_init();
  }
  if (threadIdx.x < 32) {
    // The sorted order was complete before the kernel ahead let this one start.
    const int tiles = (p.columns + T::kWeights - 1) / T::kWeights;
    works_count(p.begin, p.experts, shared.works,
                [&](int rows) { return tiles * ((rows + T::kRows - 1) / T::kRows); });
  }
  __syncthreads();
  if (threadIdx.x >= 128 * T::kGroups) {
    if (threadIdx.x == 128 * T::kGroups) flows_load<T>(p, maps, shared);
    return;
  }
  grid_wait();  // results go where the kernel ahead may still be reading
  grid_release();
  Flows<T> flows(p, shared);
  RingPlace<T::kStages> place;
  Flow flow;
  while (flows.next(flow)) {
    switch (flow.size) {
      case 0:
        flow_multiply<Glu, T::width(0), T>(p, shared, flow, place);
        break;
      case 1:
        flow_multiply<Glu, T::width(1), T>(p, shared, flow, place);
        break;
      case 2:
        flow_multiply<Glu, T::width(2), T>(p, shared, flow, place);
        break;
      default:
        flow_multiply<Glu, T::width(3), T>(p, shared, flow, place);
        break;
    }
  }
}

template <bool Glu, typename T>
void flow_launch(const Grouped& grouped, const GroupedRows& rows, const Queue& queue) {
  FlowParams params{};
  params.begin = grouped.begin;
  params.out = grouped.out;
  params.experts = grouped.experts;
  params.columns = grouped.columns;
  params.inner = grouped.inner;
  params.out_width = Glu ? grouped.columns / 2 : grouped.columns;
  const bool own = rows.shared_x != nullptr;
  params.shared_from = own ? rows.shared_from : grouped.experts;
  FlowMaps maps;
  for (int size = 0; size < kFlowSizes; ++size) {
    const int width = T::width(size);
    maps.rows[size] = rows_map(grouped.x, grouped.sorted_rows, grouped.inner, width);
    maps.shared_rows[size] =
        own ? rows_map(rows.shared_x, rows.shared_rows, grouped.inner, width) : maps.rows[size];
  }
  maps.weights = rows_map(grouped.w, std::int64_t{grouped.experts} * grouped.columns, grouped.inner,
                          T::kWeights);
  constexpr std::size_t kBytes = sizeof(FlowShared<T>) + 1024;
  static_assert(kBytes <= 227 * 1024);
  const auto kernel = grouped_flow<Glu, T>;
  queue.device->shared_allow(reinterpret_cast<const void*>(kernel), kBytes);
  cudaLaunchAttribute attributes[1];
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(queue.device->multiprocessors));
  config.blockDim = dim3(T::kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = queue.stream;
  config.attrs = attributes;
  overlap_allow(*queue.device, config);
  check(cudaLaunchKernelEx(&config, kernel, params, maps), "launching the products of experts");
}

}  // namespace

void grouped_stream_sm90(const Grouped& grouped, const GroupedRows& rows, const Queue& queue) {
  if (grouped.sorted_rows == 0) return;
  using Wide = FlowTile<2, 1, 128, 6>;
  using Long = FlowTile<2, 2, 64, 4>;
  // Shared experts of 129 to 256 rows would need two wide tiles, the second of them half empty.
  const std::int64_t most = grouped.rows_most;
  if (most > 128 && most <= 256) {
    grouped.glu ? flow_launch<true, Long>(grouped, rows, queue)
                : flow_launch<false, Long>(grouped, rows, queue);
  } else {
    grouped.glu ? flow_launch<true, Wide>(grouped, rows, queue)
                : flow_launch<false, Wide>(grouped, rows, queue);
  }
}

}  // namespace lca::cuda
