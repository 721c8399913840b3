/// Decode on Hopper for wide latents whose representatives are quantised.
///
/// Shapes     MLA 512 + 64, up to 16 heads a job, fp8 or int8 representatives. A tile is a page of
///            64 representatives (41.25 KiB) or 32 exact tokens (36 KiB).
/// Moving     one thread loads tiles by TMA into three stages, as they are stored; the other warps
///            of its group condense the group that leaves the window, if one does. Two consumer
///            warp groups alternate tiles (decode_quantised.cuh).
/// Memory     stages 126 KiB, partial scores 32 KiB, inbox 34 KiB, scratch of condensing 23 KiB,
///            probabilities 4 KiB.
/// Bounds     V2-Lite at 128K, 32 sessions: 209 MB, 49 µs at 4.27 TB/s, 2,250 cycles a page. A page
///            costs each of the four schedulers about 1,000 instructions, of them 320 that widen
///            (every other cycle one) and 136 products.

#include "attention/cuda/decode/decode_quantised.cuh"

namespace lca::cuda::decoding {
namespace {

using namespace streaming;

/// Contiguous bytes, 16 or a multiple.
__device__ __forceinline__ void bytes_load(void* to, const void* from, int bytes,
                                           LoadBarrier& full) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(&full))
      : "memory");
}

/// A page as it is stored: latents are bytes, two to a column of the map.
__device__ __forceinline__ void page_load(const GroupPool& pool, const RowMaps& maps,
                                          LoadBarrier& full, unsigned char* stage, int page) {
  const int row = page * kPageRows;
  const bool biased = pool.bias != nullptr;
  full.arrive_and_expect_tx(biased ? NarrowStage::kBytes : NarrowStage::kBias);
#pragma unroll
  for (int part = 0; part < kPageParts; ++part) {
    panel_load(maps.group_semantic, full, stage + part * kPagePanelBytes, part * 64, row);
  }
  panel_load(maps.group_positional, full, stage + NarrowStage::kRope, 0, row);
  bytes_load(stage + NarrowStage::kScales, pool.semantic_scale + std::int64_t{row} * R::kScales,
             kPageRows * R::kScales * 4, full);
  if (biased) bytes_load(stage + NarrowStage::kBias, pool.bias + row, kPageRows * 4, full);
}

template <GroupType kType, bool kEntry>
__global__ void __launch_bounds__(R::kThreads, 1)
    decode_quantised_kernel(const __grid_constant__ Args args,
                            const __grid_constant__ RowMaps maps) {
  extern __shared__ unsigned char memory[];
  const std::uint32_t misaligned = shared_address(memory) & 1023;
  auto& shared = *reinterpret_cast<NarrowShared*>(memory + (1024 - misaligned & 1023));
  const int tid = static_cast<int>(threadIdx.x);
  const int role = __shfl_sync(~0u, tid / 128, 0);
  const int session = static_cast<int>(blockIdx.y) / args.jobs;
  const int job = static_cast<int>(blockIdx.y) % args.jobs;
  const Heads heads{job * kNarrowHeads, min(kNarrowHeads, args.heads - job * kNarrowHeads),
                    static_cast<int>(blockIdx.y)};
  if (tid == 0) {
    for (int i = 0; i < kNarrowStages; ++i) {
      for (int group = 0; group < 2; ++group) shared.full[i][group].init(1);
      shared.empty[i].init(128);
    }
    for (int i = 0; i < 2; ++i) shared.group_met[i].init(128);
    shared.fresh.init();
    shared.inbox_full.init(1);
    cutlass::arch::fence_barrier_init();
    maps.prefetch();
  }
  const bool helps = role == 0 && tid >= 32;
  FarQueries far;
  if constexpr (kEntry) {
    if (helps) far.begin(args.step.rotation);
  }
  __syncthreads();
  grid_wait();

  const SessionView view = args.step.sessions[session];
  NarrowConsumer<kType, kEntry> consumer(args, shared, max(role - 1, 0));
  // Queries need nothing but the launch.
  if (role > 0) consumer.queries_load(session, heads);
  if constexpr (kEntry) {
    if (helps) far.load(args, session, heads);
  }
  const Place at = place_of(args, view, 0);
  const Schedule tiles(at, args.blocks, args.chunk / kTile,
                       static_cast<int>(blockIdx.z * args.cluster + blockIdx.x), kExactTile);
  const int senders = min(args.cluster, tiles.active - static_cast<int>(blockIdx.z) * args.cluster);
  if (senders <= 0) {
    __syncthreads();
    if (tid == 0) length_advance(args, session, at.n);
    return;
  }
  const auto exact_row =
      static_cast<int>((view.semantic - args.step.exact.semantic) / R::kSemantic);
  const int loads_end = min(tiles.loads, tiles.last);
  const int pages_end = min(tiles.pages, tiles.last);
  int page[kNarrowStages] = {};  // numbers of the next pages
  // Loads tile i into its stage, which has been read.
  const auto tile_load = [&](int i) {
    const int index = i - tiles.first;
    const int stage = index % kNarrowStages;
    LoadBarrier& full = shared.full[stage][index & 1];
    if (i < tiles.pages) {
      page_load(args.step.pool, maps, full, shared.stage[stage].bytes, page[0]);
#pragma unroll
      for (int k = 0; k + 1 < kNarrowStages; ++k) page[k] = page[k + 1];
      if (i + kNarrowStages < pages_end) {
        page[kNarrowStages - 1] = load_after_wait(view.pages + i + kNarrowStages);
      }
    } else {
      rows_load<kExactPanelBytes>(maps.exact_semantic, maps.exact_positional, full,
                                  shared.stage[stage].bytes, exact_row + tiles(i).row);
    }
  };
  uint4 newest{0, 0, 0, 0};
  if (tid == 0) {
#pragma unroll
    for (int k = 0; k < kNarrowStages; ++k) {
      if (tiles.first + k < pages_end) page[k] = load_after_wait(view.pages + tiles.first + k);
    }
    shared.inbox_full.arrive_and_expect_tx(senders * message_bytes(R::kValue / args.cluster));
#pragma unroll 1
    for (int i = tiles.first; i < min(tiles.first + kNarrowStages, loads_end); ++i) tile_load(i);
  } else if (tid >= 32) {
    const int chunk = tid & 127;
    if (role > 0 && tiles.owns_newest_token() && chunk < R::kChunks) {
      newest = newest_load(args, session, chunk);
    }
    if constexpr (kEntry) {
      if (helps) far.store(FarEntries(at).difference, shared.far);
    }
  }
  block_sync();
  if (args.cluster > 1) {  // every block takes messages from here on
    cluster_arrive_relaxed();
    cluster_wait();
  }

  if (role > 0) {
    consumer.place(at);
    int i = tiles.first + role - 1;
    if (i < pages_end) {
      consumer.pages_begin();
#pragma unroll 1
      for (; i < pages_end; i += 2) consumer.page(tiles(i), i - tiles.first);
      consumer.pages_end(i < tiles.last);
    }
#pragma unroll 1
    for (; i < tiles.last; i += 2) consumer.exact(tiles(i), i - tiles.first, newest);
    consumer.stats_write();
  } else if (tid == 0) {
#pragma unroll 1
    for (int i = tiles.first + kNarrowStages; i < loads_end; ++i) {
      const int use = (i - tiles.first) / kNarrowStages;
      shared.empty[(i - tiles.first) % kNarrowStages].wait(use - 1 & 1);
      tile_load(i);
    }
  } else if (tid >= 32) {
    helpers_run<true, kEntry>(args, view, at, tiles, session, job, shared.fresh);
  }
  block_sync();
  const bool sends = role > 0 && tiles.first < tiles.last;
  if (sends) consumer.results_give();
  block_sync();
  if (sends) narrow_results_send(args, shared, tid - 128);
  messages_wait(&shared.inbox_full, args.cluster);
  inbox_reduce<R>(args, tiles.active, session, heads, shared.inbox,
                  reinterpret_cast<float*>(shared.stage));
}

}  // namespace

void launch_stream_quantised(Args args, const Queue& queue) {
  constexpr std::size_t kBytes = sizeof(NarrowShared) + 1024;
  static_assert(kBytes <= 227 * 1024);
  const bool entry = args.step.rotation.steps != nullptr;
  const auto kernel = args.step.pool.type == GroupType::fp8
                          ? (entry ? decode_quantised_kernel<GroupType::fp8, true>
                                   : decode_quantised_kernel<GroupType::fp8, false>)
                          : (entry ? decode_quantised_kernel<GroupType::int8, true>
                                   : decode_quantised_kernel<GroupType::int8, false>);
  queue.device->shared_allow(reinterpret_cast<const void*>(kernel), kBytes);
  cudaLaunchAttribute attributes[2]{};
  const cudaLaunchConfig_t config =
      cluster_config(step_grid(args), R::kThreads, kBytes, args.cluster, queue, attributes);
  const GroupPool& pool = args.step.pool;
  const ExactPool& exact = args.step.exact;
  const RowMaps maps{pages_map(pool.semantic, R::kSemantic / 2),
                     pages_map(pool.positional, R::kPositional),
                     rows_map(exact.semantic, R::kSemantic, exact.rows, kExactTile),
                     rows_map(exact.positional, R::kPositional, exact.rows, kExactTile)};
  check(cudaLaunchKernelEx(&config, kernel, args, maps), "a decode step");
}

}  // namespace lca::cuda::decoding
