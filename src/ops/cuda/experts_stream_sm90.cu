/// Grouped products on Hopper for few rows: bound by reading the weights of the experts hit.
///
/// Shapes     a tile is 64 weight rows of one expert × up to 64 of its sorted rows, in products of
///            8, 16, 32 or 64 columns: weights are the large operand.
/// Moving     one warp fills a ring of stages (128 values of 64 weight rows, and of the rows) by
///            TMA; a warp group multiplies with wgmma and writes its results as they lie in
///            registers, two bytes at a time, which is little beside the weights.
/// Work       a persistent grid over (expert, 64 weight rows, 64 rows), rows fastest: an expert
///            with more than 64 rows finds its weights in L2 again.
/// Overlap    the ring's first weights are loaded before the kernel ahead ends.
/// Memory     6 × (16 + 16) KiB = 192 KiB; 96 KiB of weights under way.
/// Bounds     batch 200: 66 experts, 1.14 GB, 267 µs at 4.27 TB/s.

#include <algorithm>
#include <cstdint>

#include "ops/cuda/experts_tiles.cuh"

namespace lca::cuda {
namespace {

constexpr int kFlowWeights = 64;  // weight rows of a tile
constexpr int kFlowRows = 64;     // most rows of a tile
constexpr int kFlowPanels = 2;    // of 64 values in a stage
constexpr int kFlowStages = 6;
constexpr int kFlowThreads = 128 + 32;
constexpr int kFlowWeightsBytes = kFlowWeights * 128;  // of a panel
constexpr int kFlowRowsBytes = kFlowRows * 128;
constexpr int kFlowSizes = 4;  // 8, 16, 32, 64 rows

struct FlowShared {
  alignas(1024) unsigned char weights[kFlowStages][kFlowPanels][kFlowWeightsBytes];
  alignas(1024) unsigned char rows[kFlowStages][kFlowPanels][kFlowRowsBytes];
  LoadBarrier full[kFlowStages];
  Barrier empty[kFlowStages];
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
  int size;  // 8 << size is the number of rows multiplied
};

class Flows {
 public:
  __device__ __forceinline__ Flows(const FlowParams& p, const FlowShared& shared)
      : p_(p), shared_(shared), work_(blockIdx.x) {}
  __device__ __forceinline__ bool next(Flow& flow) {
    if (work_ >= shared_.works[p_.experts]) return false;
    while (work_ >= shared_.works[expert_ + 1]) ++expert_;
    const int begin = load_after_wait(p_.begin + expert_);
    const int rows = load_after_wait(p_.begin + expert_ + 1) - begin;
    const int pieces = (rows + kFlowRows - 1) / kFlowRows;
    const int inside = work_ - shared_.works[expert_];
    const int piece = inside % pieces;
    flow.expert = expert_;
    flow.first = begin + piece * kFlowRows;
    flow.count = min(kFlowRows, rows - piece * kFlowRows);
    flow.column = inside / pieces * kFlowWeights;
    flow.size = flow.count <= 8 ? 0 : flow.count <= 16 ? 1 : flow.count <= 32 ? 2 : 3;
    work_ += gridDim.x;
    return true;
  }

 private:
  const FlowParams& p_;
  const FlowShared& shared_;
  int work_;
  int expert_ = 0;
};

__device__ __forceinline__ void flows_load(const FlowParams& p, const FlowMaps& maps,
                                           FlowShared& shared) {
  const int inner_stage = 64 * kFlowPanels;
  Flow flow;
  const auto weights_fetch = [&](const Flow& of, int slot, int k) {
    shared.full[slot].arrive_and_expect_tx(kFlowPanels *
                                           (kFlowWeightsBytes + (8 << of.size) * 128));
#pragma unroll
    for (int i = 0; i < kFlowPanels; ++i) {
      box_load(maps.weights, shared.full[slot], shared.weights[slot][i], k + 64 * i,
               of.expert * p.columns + of.column);
    }
  };
  const auto rows_fetch = [&](const Flow& of, int slot, int k) {
    const bool own = of.expert >= p.shared_from;
    const CUtensorMap& map = own ? maps.shared_rows[of.size] : maps.rows[of.size];
    const int row = own ? of.first - load_after_wait(p.begin + of.expert) : of.first;
#pragma unroll
    for (int i = 0; i < kFlowPanels; ++i) {
      box_load(map, shared.full[slot], shared.rows[slot][i], k + 64 * i, row);
    }
  };

  // The first stages: weights now, rows when the kernel ahead has written them.
  Flows early(p, shared);
  int filled = 0;
  while (filled < kFlowStages && early.next(flow)) {
    for (int k = 0; k < p.inner && filled < kFlowStages; k += inner_stage) {
      weights_fetch(flow, filled++, k);
    }
  }
  grid_wait();
  Flows flows(p, shared);
  RingPlace<kFlowStages> place;
  int stage = 0;
  while (flows.next(flow)) {
    for (int k = 0; k < p.inner; k += inner_stage, ++stage) {
      if (stage >= kFlowStages) {
        shared.empty[place.slot].wait(place.phase ^ 1);
        weights_fetch(flow, place.slot, k);
      }
      rows_fetch(flow, place.slot, k);
      place.next();
    }
  }
}

template <bool Glu, int N>
__device__ __forceinline__ void flow_multiply(const FlowParams& p, FlowShared& shared,
                                              const Flow& flow, RingPlace<kFlowStages>& place) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  const std::uint32_t weights = shared_address(shared.weights) / 16;
  const std::uint32_t rows = shared_address(shared.rows) / 16;
  float sum[N / 2];
  for (int k = 0; k < p.inner; k += 64 * kFlowPanels) {
    const int s = place.slot;
    shared.full[s].wait(place.phase);
    accumulators_fence(sum);
    cute::warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < 64 * kFlowPanels; i += 16) {
      const int panel = i / 64, inside = i % 64 * 2;
      product_shared<N>(
          sum,
          descriptor<128>(weights + (s * kFlowPanels + panel) * (kFlowWeightsBytes / 16), inside),
          descriptor<128>(rows + (s * kFlowPanels + panel) * (kFlowRowsBytes / 16), inside),
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

template <bool Glu>
__global__ void __launch_bounds__(kFlowThreads, 1)
    grouped_flow(FlowParams p, const __grid_constant__ FlowMaps maps) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<FlowShared*>((reinterpret_cast<std::uintptr_t>(memory) + 1023) /
                                                1024 * 1024);
  if (threadIdx.x == 0) {
    for (int s = 0; s < kFlowStages; ++s) {
      shared.full[s].init(1);
      shared.empty[s].init(4);  // warps
    }
    cutlass::arch::fence_barrier_init();
  }
  if (threadIdx.x < 32) {
    // The sorted order was complete before the kernel ahead let this one start.
    const int tiles = (p.columns + kFlowWeights - 1) / kFlowWeights;
    works_count(p.begin, p.experts, shared.works,
                [&](int rows) { return tiles * ((rows + kFlowRows - 1) / kFlowRows); });
  }
  __syncthreads();
  if (threadIdx.x >= 128) {
    if (threadIdx.x == 128) flows_load(p, maps, shared);
    return;
  }
  grid_wait();  // results go where the kernel ahead may still be reading
  grid_release();
  Flows flows(p, shared);
  RingPlace<kFlowStages> place;
  Flow flow;
  while (flows.next(flow)) {
    switch (flow.size) {
      case 0:
        flow_multiply<Glu, 8>(p, shared, flow, place);
        break;
      case 1:
        flow_multiply<Glu, 16>(p, shared, flow, place);
        break;
      case 2:
        flow_multiply<Glu, 32>(p, shared, flow, place);
        break;
      default:
        flow_multiply<Glu, 64>(p, shared, flow, place);
        break;
    }
  }
}

template <bool Glu>
void flow_launch(const FlowParams& params, const FlowMaps& maps, const Queue& queue) {
  constexpr std::size_t kBytes = sizeof(FlowShared) + 1024;
  static_assert(kBytes <= 227 * 1024);
  queue.device->shared_allow(reinterpret_cast<const void*>(grouped_flow<Glu>), kBytes);
  cudaLaunchAttribute attributes[1];
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(queue.device->multiprocessors));
  config.blockDim = dim3(kFlowThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = queue.stream;
  config.attrs = attributes;
  overlap_allow(*queue.device, config);
  check(cudaLaunchKernelEx(&config, grouped_flow<Glu>, params, maps),
        "launching the products of experts");
}

}  // namespace

void grouped_stream_sm90(const Grouped& grouped, const GroupedRows& rows, const Queue& queue) {
  if (grouped.sorted_rows == 0) return;
  FlowParams params{};
  params.begin = grouped.begin;
  params.out = grouped.out;
  params.experts = grouped.experts;
  params.columns = grouped.columns;
  params.inner = grouped.inner;
  params.out_width = grouped.glu ? grouped.columns / 2 : grouped.columns;
  const bool own = rows.shared_x != nullptr;
  params.shared_from = own ? rows.shared_from : grouped.experts;
  FlowMaps maps;
  for (int size = 0; size < kFlowSizes; ++size) {
    maps.rows[size] = rows_map(grouped.x, grouped.sorted_rows, grouped.inner, 8 << size);
    maps.shared_rows[size] =
        own ? rows_map(rows.shared_x, rows.shared_rows, grouped.inner, 8 << size) : maps.rows[size];
  }
  maps.weights = rows_map(grouped.w, std::int64_t{grouped.experts} * grouped.columns, grouped.inner,
                          kFlowWeights);
  grouped.glu ? flow_launch<true>(params, maps, queue) : flow_launch<false>(params, maps, queue);
}

}  // namespace lca::cuda
