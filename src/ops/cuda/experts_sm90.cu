/// Grouped products on Hopper for many rows.
///
/// Shapes     a tile is 128 sorted rows of one expert × 256 weight rows; with gate and up in turn
/// it
///            gives 128 columns. DeepSeek-V2-Lite, 16K rows: 131,072 visits × 2816 × 2048, then
///            × 2048 × 1408.
/// Moving     one thread fills a ring of four stages (64 values of 128 rows and of 256 weight rows)
///            by TMA; two warp groups multiply 64 × 256 each with wgmma from shared memory. Blocks
///            are pairs: neighbours in the list of row tiles. Where both have rows of one expert,
///            each loads half of the weights for both. Results go from registers to memory, four
///            lanes exchanging columns so that each writes 16 bytes; the next tile's stages are
///            loaded meanwhile.
/// Work       a persistent grid runs over (pair of row tiles, column tile), column tiles fastest;
///            the number of row tiles of each expert follows from the sorted order on the GPU.
///            A tile that an expert does not fill computes rows of the next and drops them.
/// Memory     4 × (16 + 32) KiB = 192 KiB of 227.
/// Bounds     2.27 TFLOP a layer of 16K rows: 2.9 ms at 782 TFLOP/s.

#include <algorithm>
#include <cstdint>

#include "ops/cuda/experts_tiles.cuh"

namespace lca::cuda {
namespace {

constexpr int kTileRows = 128;
constexpr int kTileColumns = 256;
constexpr int kTileInner = 64;
constexpr int kTileStages = 4;
constexpr int kPair = 2;           // blocks of a cluster
constexpr int kTileConsumers = 2;  // warp groups that multiply
constexpr int kTileThreads = 128 * (kTileConsumers + 1);
constexpr int kRowsBytes = kTileRows * kTileInner * 2;
constexpr int kWeightsBytes = kTileColumns * kTileInner * 2;
constexpr int kHalfBytes = kWeightsBytes / 2;

struct TileShared {
  alignas(1024) unsigned char rows[kTileStages][kRowsBytes];
  alignas(1024) unsigned char weights[kTileStages][kWeightsBytes];
  LoadBarrier full[kTileStages];
  Barrier empty[kTileStages];
  int tiles[kTableExperts + 1];
};

struct TileParams {
  const int* begin;
  bf16* out;
  int experts, columns, inner, out_width;
  int shared_from;  // experts from here on read rows of their own tensor
};

struct TileMaps {
  CUtensorMap rows, shared_rows, weights;
};

/// A piece of work of one block.
struct Tile {
  int expert, first, last;  // rows
  int column;
  bool paired;  // the other block of the pair works on the same weights
};

/// Goes through the works of a pair of blocks.
class Works {
 public:
  __device__ __forceinline__ Works(const TileParams& p, const TileShared& shared, int rank)
      : p_(p), shared_(shared), rank_(rank) {
    columns_ = (p.columns + kTileColumns - 1) / kTileColumns;
    total_ = (shared.tiles[p.experts] + kPair - 1) / kPair * columns_;
    work_ = blockIdx.x / kPair;
  }
  __device__ __forceinline__ bool next(Tile& tile) {
    if (work_ >= total_) return false;
    const int last = shared_.tiles[p_.experts] - 1;
    const int own = work_ / columns_ * kPair + rank_;
    const int at = min(own, last);  // one without work repeats its neighbour's, and writes nothing
    while (at >= shared_.tiles[expert_ + 1]) ++expert_;
    tile.expert = expert_;
    const int begin = load_after_wait(p_.begin + expert_);
    tile.first = begin + (at - shared_.tiles[expert_]) * kTileRows;
    tile.last = own == at ? load_after_wait(p_.begin + expert_ + 1) : 0;
    tile.column = work_ % columns_ * kTileColumns;
    const int other = min(own ^ 1, last);
    tile.paired = other >= shared_.tiles[expert_] && other < shared_.tiles[expert_ + 1];
    work_ += gridDim.x / kPair;
    return true;
  }

 private:
  const TileParams& p_;
  const TileShared& shared_;
  int rank_, columns_, total_, work_;
  int expert_ = 0;
};

/// 256 weight rows of a tile: those of a pair once for both blocks.
__device__ __forceinline__ void weights_load_tile(const TileMaps& maps, TileShared& shared,
                                                  const Tile& tile, int s, int k, int weight,
                                                  int rank) {
  if (tile.paired) {
    cute::SM90_TMA_LOAD_MULTICAST_3D::copy(
        &maps.weights, reinterpret_cast<std::uint64_t*>(&shared.full[s]), 3,
        static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL),
        shared.weights[s] + rank * kHalfBytes, k, 0, weight + rank * (kTileColumns / 2));
  } else {
    box_load(maps.weights, shared.full[s], shared.weights[s], k, weight);
    box_load(maps.weights, shared.full[s], shared.weights[s] + kHalfBytes, k,
             weight + kTileColumns / 2);
  }
}

__device__ __forceinline__ void tiles_load(const TileParams& p, const TileMaps& maps,
                                           TileShared& shared, int rank) {
  Works works(p, shared, rank);
  RingPlace<kTileStages> place;
  Tile tile;
  while (works.next(tile)) {
    const bool own = tile.expert >= p.shared_from;
    const CUtensorMap& rows_of = own ? maps.shared_rows : maps.rows;
    const int row = own ? tile.first - load_after_wait(p.begin + tile.expert) : tile.first;
    const int weight = tile.expert * p.columns + tile.column;
    for (int k = 0; k < p.inner; k += kTileInner) {
      const int s = place.slot;
      shared.empty[s].wait(place.phase ^ 1);
      shared.full[s].arrive_and_expect_tx(kRowsBytes + kWeightsBytes);
      box_load(rows_of, shared.full[s], shared.rows[s], k, row);
      weights_load_tile(maps, shared, tile, s, k, weight, rank);
      place.next();
    }
  }
}

/// Writes a thread's sums: rows r and r + 8 of its warp's 16, two columns of every eight.
template <bool Glu>
__device__ __forceinline__ void tile_write(const TileParams& p, const Tile& tile,
                                           const float (&sum)[kTileColumns / 2], int row_inside) {
  const int q = threadIdx.x & 3;
  constexpr int kBlocks = kTileColumns / 8 / (Glu ? 2 : 1);  // of eight columns of the result
  const int first_column = Glu ? tile.column / 2 : tile.column;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = tile.first + row_inside + 8 * half;
    bf16* const to = p.out + std::int64_t{row} * p.out_width;
#pragma unroll
    for (int block = 0; block < kBlocks; block += 4) {
      std::uint32_t four[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (Glu) {
          const float* const gate = &sum[8 * (block + i) + 2 * half];
          four[i] = pack_bf16(silu(gate[0]) * gate[4], silu(gate[1]) * gate[5]);
        } else {
          const float* const two = &sum[4 * (block + i) + 2 * half];
          four[i] = pack_bf16(two[0], two[1]);
        }
      }
      quad_transpose(four, q);
      const int column = first_column + 8 * (block + q);
      if (row < tile.last && column < p.out_width) {
        *reinterpret_cast<uint4*>(to + column) = uint4{four[0], four[1], four[2], four[3]};
      }
    }
  }
}

template <bool Glu>
__device__ __forceinline__ void tiles_multiply(const TileParams& p, TileShared& shared, int rank,
                                               int group) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32 & 3;
  const std::uint32_t rows = shared_address(shared.rows) / 16 + group * (64 * 128 / 16);
  const std::uint32_t weights = shared_address(shared.weights) / 16;
  const auto release = [&](int slot) {
    if (lane < kPair) shared.empty[slot].arrive(lane, 1u);
  };
  Works works(p, shared, rank);
  RingPlace<kTileStages> place;
  Tile tile;
  float sum[kTileColumns / 2];
  while (works.next(tile)) {
    int before = -1;
    for (int k = 0; k < p.inner; k += kTileInner) {
      const int s = place.slot;
      shared.full[s].wait(place.phase);
      accumulators_fence(sum);
      cute::warpgroup_arrive();
#pragma unroll
      for (int i = 0; i < kTileInner; i += 16) {
        product_shared<kTileColumns>(sum, descriptor<128>(rows + s * (kRowsBytes / 16), i * 2),
                                     descriptor<128>(weights + s * (kWeightsBytes / 16), i * 2),
                                     k + i > 0);
      }
      cute::warpgroup_commit_batch();
      accumulators_fence(sum);
      cute::warpgroup_wait<1>();
      if (before >= 0) release(before);
      before = s;
      place.next();
    }
    cute::warpgroup_wait<0>();
    accumulators_fence(sum);
    release(before);
    tile_write<Glu>(p, tile, sum, group * 64 + warp * 16 + lane / 4);
  }
}

template <bool Glu>
__global__ void __launch_bounds__(kTileThreads, 1)
    grouped_tiles(TileParams p, const __grid_constant__ TileMaps maps) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<TileShared*>((reinterpret_cast<std::uintptr_t>(memory) + 1023) /
                                                1024 * 1024);
  const int rank = static_cast<int>(blockIdx.x % kPair);
  if (threadIdx.x == 0) {
    for (int s = 0; s < kTileStages; ++s) {
      shared.full[s].init(1);
      shared.empty[s].init(4 * kTileConsumers * kPair);  // warps
    }
    cutlass::arch::fence_barrier_init();
  }
  if (threadIdx.x < 32) {
    works_count(p.begin, p.experts, shared.tiles,
                [](int rows) { return (rows + kTileRows - 1) / kTileRows; });
  }
  __syncthreads();
  cluster_arrive();
  cluster_wait();
  if (threadIdx.x < 128) {
    cutlass::arch::warpgroup_reg_dealloc<40>();
    if (threadIdx.x == 0) tiles_load(p, maps, shared, rank);
  } else {
    cutlass::arch::warpgroup_reg_alloc<232>();
    tiles_multiply<Glu>(p, shared, rank, static_cast<int>(threadIdx.x) / 128 - 1);
  }
  __syncwarp();
  cluster_arrive();
  cluster_wait();  // the other block may still write here
}

template <bool Glu>
void tiles_launch(const TileParams& params, const TileMaps& maps, const Queue& queue) {
  constexpr std::size_t kBytes = sizeof(TileShared) + 1024;
  static_assert(kBytes <= 227 * 1024);
  const auto kernel = grouped_tiles<Glu>;
  queue.device->shared_allow(reinterpret_cast<const void*>(kernel), kBytes);
  cudaLaunchAttribute attributes[1];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {kPair, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(queue.device->multiprocessors / kPair * kPair));
  config.blockDim = dim3(kTileThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = queue.stream;
  config.attrs = attributes;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, params, maps), "launching the products of experts");
}

}  // namespace

void grouped_sm90(const Grouped& grouped, const GroupedRows& rows, const Queue& queue) {
  if (grouped.sorted_rows == 0) return;
  TileParams params{};
  params.begin = grouped.begin;
  params.out = grouped.out;
  params.experts = grouped.experts;
  params.columns = grouped.columns;
  params.inner = grouped.inner;
  params.out_width = grouped.glu ? grouped.columns / 2 : grouped.columns;
  const bool own = rows.shared_x != nullptr;
  params.shared_from = own ? rows.shared_from : grouped.experts;
  TileMaps maps;
  maps.rows = rows_map(grouped.x, grouped.sorted_rows, grouped.inner, kTileRows);
  maps.shared_rows =
      own ? rows_map(rows.shared_x, rows.shared_rows, grouped.inner, kTileRows) : maps.rows;
  maps.weights = rows_map(grouped.w, std::int64_t{grouped.experts} * grouped.columns, grouped.inner,
                          kTileColumns / 2);
  grouped.glu ? tiles_launch<true>(params, maps, queue) : tiles_launch<false>(params, maps, queue);
}

bool grouped_has_fast(const ExpertsShape& shape) {
  // A box of the copy engine is 64 columns wide.
  return shape.hidden % 8 == 0 && shape.hidden >= 64 && shape.stored_width() >= 64 &&
         shape.experts() <= kTableExperts;
}

}  // namespace lca::cuda
