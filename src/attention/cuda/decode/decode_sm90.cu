/// Decode on Hopper for wide latents.
///
/// Shapes     MLA 512 + 64, up to 16 heads a job, bf16 representatives. A tile is 64 entries; pages
///            of representatives are tiles.
/// Moving     one thread loads tiles by TMA (nine boxes of 64 rows × 128 bytes); the other warps of
///            its group condense the group that leaves the window, if one does. Two consumer warp
///            groups have a stage of 72 KiB each and alternate tiles, so that one's softmax
///            hides under the other's loads and products. Entries are the long dimension of every
///            product (M = 64), heads the short one (N = 16): nothing is padded.
///              scores   Sᵀ [64 entries × 16]  = K [64 × 576] · Qᵀ, 36 wgmma
///              outputs  Oᵀ [512 × 16]        += Vᵀ [512 × 64] · P, 32 wgmma, V the latents of K
/// At the end the warp groups exchange half of the heads, and every block sends its columns
/// to the block of the cluster that owns them (decode_inbox.cuh).
/// Memory     stages 144 KiB, queries 18 KiB, probabilities 4 KiB, inbox 34 KiB, scratch of
/// condensing
///            23 KiB.
/// Bounds     V2-Lite at 128K, 32 sessions: 339 MB, 79 µs at 4.27 TB/s; shared memory reads a tile
///            twice, 1,150 cycles of the 3,900 that its load takes.

#include "attention/cuda/decode/decode_stream.cuh"

namespace lca::cuda::decoding {
namespace {

using namespace streaming;

template <bool kEntry>
__global__ void __launch_bounds__(R::kThreads, 1)
    decode_stream_kernel(const __grid_constant__ Args args, const __grid_constant__ RowMaps maps) {
  extern __shared__ unsigned char memory[];
  const std::uint32_t misaligned = shared_address(memory) & 1023;
  auto& shared = *reinterpret_cast<Shared*>(memory + (1024 - misaligned & 1023));
  const int tid = static_cast<int>(threadIdx.x);
  const int role = __shfl_sync(~0u, tid / 128, 0);
  const int session = static_cast<int>(blockIdx.y) / args.jobs;
  const int job = static_cast<int>(blockIdx.y) % args.jobs;
  const Heads heads{job * kHeads, min(kHeads, args.heads - job * kHeads),
                    static_cast<int>(blockIdx.y)};
  if (tid == 0) {
    for (int i = 0; i < 2; ++i) {
      shared.full[i].init(1);
      shared.empty[i].init(128);
      shared.group_met[i].init(128);
    }
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
  // Queries need nothing but the launch; the first warp is kept for what everything waits for.
  constexpr int kLoaders = R::kThreads - 32;
  constexpr int kQueryLoads = (kHeads * R::kChunks + kLoaders - 1) / kLoaders;
  uint4 query[kQueryLoads];
  if (tid >= 32) {
#pragma unroll
    for (int i = 0; i < kQueryLoads; ++i) {
      const int row = (tid - 32 + i * kLoaders) / R::kChunks;
      const int chunk = (tid - 32 + i * kLoaders) % R::kChunks;
      query[i] = {0, 0, 0, 0};
      if (row < heads.count) {
        query[i] = load_after_wait(
            reinterpret_cast<const uint4*>(
                args.step.queries +
                (std::int64_t{session} * args.heads + heads.first + row) * R::kScore) +
            chunk);
      }
    }
  }
  if constexpr (kEntry) {
    if (helps) far.load(args, session, heads);
  }
  const Place at = place_of(args, view, 0);
  const Schedule tiles(at, args.blocks, args.chunk / kTile,
                       static_cast<int>(blockIdx.z * args.cluster + blockIdx.x));
  // Pages are asked for before anything else is worked out.
  int page = 0, next_page = 0;
  if (tid == 0) {
    if (tiles.first < min(tiles.pages, tiles.last))
      page = load_after_wait(view.pages + tiles.first);
    if (tiles.first + 1 < min(tiles.pages, tiles.last)) {
      next_page = load_after_wait(view.pages + tiles.first + 1);
    }
  }
  const int senders = min(args.cluster, tiles.active - static_cast<int>(blockIdx.z) * args.cluster);
  if (senders <= 0) {
    __syncthreads();
    if (tid == 0) length_advance(args, session, at.n);
    return;
  }
  const auto exact_row =
      static_cast<int>((view.semantic - args.step.exact.semantic) / R::kSemantic);
  const int loads_end = min(tiles.loads, tiles.last);
  // Loads the next tile into its stage, which has been read.
  const auto tile_load = [&](int i) {
    const int stage = i - tiles.first & 1;
    if (i < tiles.pages) {
      rows_load<kPanelBytes>(maps.group_semantic, maps.group_positional, shared.full[stage],
                             shared.stage[stage], page * kPageRows);
      page = next_page;
      if (i + 2 < min(tiles.pages, loads_end)) {
        next_page = load_after_wait(view.pages + i + 2);
      }
    } else {
      rows_load<kPanelBytes>(maps.exact_semantic, maps.exact_positional, shared.full[stage],
                             shared.stage[stage], exact_row + tiles(i).row);
    }
  };
  uint4 newest{0, 0, 0, 0};
  if (tid == 0) {
    shared.inbox_full.arrive_and_expect_tx(senders * message_bytes(R::kValue / args.cluster));
#pragma unroll 1
    for (int i = tiles.first; i < min(tiles.first + 2, loads_end); ++i) tile_load(i);
  } else if (tid >= 32) {
    const int chunk = tid & 127;
    if (role > 0 && tiles.owns_newest_token() && chunk < R::kChunks) {
      newest = newest_load(args, session, chunk);
    }
#pragma unroll
    for (int i = 0; i < kQueryLoads; ++i) {
      const int row = (tid - 32 + i * kLoaders) / R::kChunks;
      const int chunk = (tid - 32 + i * kLoaders) % R::kChunks;
      if (row >= kHeads) break;
      *reinterpret_cast<uint4*>(shared.query + chunk_offset(row, chunk, kQueryPanelBytes)) =
          query[i];
    }
    if constexpr (kEntry) {
      if (helps) far.store(FarEntries(at).difference, shared.far);
    }
    async_proxy_fence();  // wgmma reads them
  }
  __syncthreads();
  if (args.cluster > 1) {  // every block takes messages from here on
    cluster_arrive_relaxed();
    cluster_wait();
  }

  Consumer<kEntry> consumer(args, view, at, shared, max(role - 1, 0));
  if (role > 0) {
    for (int i = tiles.first + role - 1, count = 0; i < tiles.last; i += 2, ++count) {
      consumer.tile(tiles(i), count, newest);
    }
    consumer.stats_write();
  } else if (tid == 0) {
#pragma unroll 1
    for (int i = tiles.first + 2; i < loads_end; ++i) {
      shared.empty[i - tiles.first & 1].wait((i - tiles.first) / 2 - 1 & 1);
      tile_load(i);
    }
  } else if (tid >= 32) {
    helpers_run<false, kEntry>(args, view, at, tiles, session, job, shared.fresh);
  }
  block_sync();
  const bool sends = role > 0 && tiles.first < tiles.last;
  if (sends) consumer.results_give();
  __syncthreads();
  if (sends) consumer.results_send();
  messages_wait(&shared.inbox_full, args.cluster);
  inbox_reduce<R>(args, tiles.active, session, heads, shared.inbox,
                  reinterpret_cast<float*>(shared.stage));
}

}  // namespace

bool stream_fits(const Device& device, const AttentionShape& shape) {
  return device.hopper() && shape.form == Form::mla && shape.d_latent == R::kSemantic &&
         shape.d_rope == R::kPositional;
}

void launch_stream(Args args, const Queue& queue) {
  constexpr std::size_t kBytes = sizeof(Shared) + 1024;
  static_assert(kBytes <= 227 * 1024);
  const auto kernel = args.step.rotation.steps == nullptr ? decode_stream_kernel<false>
                                                          : decode_stream_kernel<true>;
  queue.device->shared_allow(reinterpret_cast<const void*>(kernel), kBytes);
  cudaLaunchAttribute attributes[2]{};
  const cudaLaunchConfig_t config =
      cluster_config(step_grid(args), R::kThreads, kBytes, args.cluster, queue, attributes);
  const GroupPool& pool = args.step.pool;
  const ExactPool& exact = args.step.exact;
  const CUtensorMap semantic = rows_map(exact.semantic, R::kSemantic, exact.rows, kTile);
  const CUtensorMap positional = rows_map(exact.positional, R::kPositional, exact.rows, kTile);
  RowMaps maps{semantic, positional, semantic, positional};
  if (args.step.settings.method == MethodKind::lca) {  // else there are no pages
    maps.group_semantic = pages_map(pool.semantic, R::kSemantic);
    maps.group_positional = pages_map(pool.positional, R::kPositional);
  }
  check(cudaLaunchKernelEx(&config, kernel, args, maps), "a decode step");
}

}  // namespace lca::cuda::decoding
