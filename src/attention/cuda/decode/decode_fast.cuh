#pragma once
/// The tensor-core decode kernel, one launch for a step.
///
/// Shapes (DeepSeek-V2-Lite at 128K): 16 heads, entries of 512 + 64 values, 8128 representatives
/// and 1024 … 1039 exact tokens. Bytes: 10.6 MB a session, 2.5 µs at 4.27 TB/s, 79 µs for 32
/// sessions. Operations: 16 · 9152 · (576 + 512) · 2 = 0.32 GFLOP a session, far below that.
///
/// A job is one session and up to 16 · kHeadTiles query heads that share their KV head. Its list of
/// entries is cut over `blocks` blocks of 8 or 16 warps. Per tile of 64 entries:
///   loads (cp.async) of the tiles after it are under way, all stages but the one being read;
///   scores: the first half of the warps multiply the first half of the key's columns with 8 or 16
///     entries each, the others the second half; queries stay in registers; partial scores go
///     through shared memory;
///   softmax: each warp has one or two heads of every 16;
///   values: each warp has its share of the columns; weights as bf16 from shared memory.
/// Three barriers a tile (four where a quantised tile is made bf16 first).
///
/// Shared memory (V2-Lite, bf16): 3 stages of 72 KiB, scores 8 KiB, weights 2 KiB, bias 0.75 KiB:
/// 226.8 KiB of 227. Two stages, 144 KiB, are in flight while one is read.
///
/// Reduction: the blocks of a cluster read each other's results, each an eighth of the columns, and
/// write one partial result a cluster; the last to arrive of the blocks with the same eighth merges
/// the partials. Without clusters the same with one block for all columns.

#include "attention/cuda/decode/decode_stages.cuh"

namespace lca::cuda::decoding {

/// kEntry: positions are those of entries. Queries begin as representatives and sink see them,
/// rotated in shared memory while the first page numbers are on their way, and become what the
/// window sees when it begins.
template <typename R, bool kQuant, bool kEntry>
__global__ void __launch_bounds__(R::kThreads, 1) decode_kernel(const __grid_constant__ Args args) {
  using Space = Memory<R, kQuant, kEntry>;
  extern __shared__ __align__(128) unsigned char shared[];
  const Parts<R, kQuant, kEntry> parts(shared, args.stages);

  const int tid = static_cast<int>(threadIdx.x);
  const int warp = tid / 32;
  const int lane = tid % 32;
  // Clusters of all sessions first, then second ones, …: those without entries come last.
  const int session = static_cast<int>(blockIdx.y) / args.jobs;
  const int job = static_cast<int>(blockIdx.y) % args.jobs;
  const int sharing = args.sharing;
  const int head_groups = (sharing + R::kRows - 1) / R::kRows;
  const int kv = R::kMla ? 0 : job / head_groups;
  const int head_group = job % head_groups;
  const Heads heads{kv * sharing + head_group * R::kRows,
                    min(R::kRows, sharing - head_group * R::kRows), static_cast<int>(blockIdx.y)};

  QueryRotation<R> rotation;
  grid_wait();
  const SessionView& view = args.step.sessions[session];  // read again where it is needed
  const SessionStart start(view);                         // what all tiles wait for: first of all
  // Queries pass through memory that no tile has yet.
  unsigned char* const query_space =
      kQuant ? parts.work : parts.stages + (args.stages - 1) * Space::kStageBytes;
  // Steps of angles are asked for ahead of the queries: many queries would hold them up.
  if constexpr (kEntry) rotation.load(args, heads.count, tid);
  queries_load<R>(args, session, heads, tid, query_space);

  const Place at_read = place_of(args, start.length, start.ring,
                                 static_cast<int>(blockIdx.z * args.cluster + blockIdx.x));
  if constexpr (Space::kPlaceKept) {
    if (tid == 0) *parts.kept = at_read;
    __syncthreads();
  }
  const Place& at = Space::kPlaceKept ? *parts.kept : at_read;
  if (static_cast<int>(blockIdx.z) * args.cluster >= active_blocks(args, at)) {
    // No block of this cluster has anything to do.
    copy_wait<0>();
    __syncthreads();
    if (tid == 0) length_advance(args, session, at.n);
    return;
  }

  const Tiles<R, kQuant> tiles(at);
  Loader<R, kQuant> loader{args, view, at, tiles, session, kv, start.pages, {}};
  const auto tile_issue = [&](int index) {
    if (index < tiles.count) {
      const int stage = index % args.stages;
      loader.load(index, shared_address(parts.stages + stage * Space::kStageBytes),
                  shared_address(parts.metas + stage * Space::kMetaFloats));
      loader.pages_fetch(index + 1);
    }
    copy_commit();
  };
  loader.pages_fetch(0);
  int far_end = 0;  // of the entries that see the queries rotated; 0: queries are as given
  if constexpr (kEntry) {
    const FarEntries far(at);
    if (at.first < far.end) {
      far_end = far.end;
      if (at.last > far.end) {  // the first tile's commit takes them in
        queries_near_load<R, kQuant>(args, session, heads, tid, parts.near);
      }
      rotation.turn(far.difference);
      copy_wait<0>();
      __syncthreads();
      rotation.apply(args, heads.count, tid, query_space);
    }
  }
  for (int i = 0; i < args.stages - 1; ++i) tile_issue(i);

  if (at.owns_newest_token() && head_group == 0) token_store<R>(args, view, at, session, kv);

  // Before the queries take the registers; its scratch is what they leave.
  NewGroup<R> made;
  using Condense = CondenseScratch<R>;
  static_assert(sizeof(Condense) <= (kTile - R::kRows) * R::kStride);
  int made_tile = -1;
  int made_row = -1;
  if (at.owns_newest_group()) {
    made = group_condense<R, kQuant, kEntry>(
        args, view, at, session, kv, head_group == 0,
        *reinterpret_cast<Condense*>(query_space + R::kRows * R::kStride));
    made_tile = (at.groups - 1 - at.first) / kTile;
    made_row = (at.groups - 1 - at.first) % kTile;
  }

  const int half = warp / (R::kWarps / 2);
  typename WarpShare<R>::Queries query;
  copy_wait_for(args.stages - 1);
  __syncthreads();
  const int counted = tid == 0 ? length_count(args, session) : -1;  // looked at when all is done
  queries_read<R>(query_space, half, lane, query);
  if (R::kMla && half == 0) far_end = 0;  // has no positional columns

  if (tid < R::kRows) parts.stats[tid] = {-INFINITY, 0.f};
  typename WarpShare<R>::Results result;
#pragma unroll
  for (int h = 0; h < R::kHeadTiles; ++h) {
#pragma unroll
    for (int c = 0; c < WarpShare<R>::kColumns / 8; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) result[h][c][i] = 0.f;
    }
  }

  for (int index = 0; index < tiles.count; ++index) {
    const EntryTile tile = tiles(at, index);
    unsigned char* const stage = parts.stages + index % args.stages * Space::kStageBytes;
    float* const meta = parts.metas + index % args.stages * Space::kMetaFloats;
    copy_wait_for(args.stages - 2);
    if (index == made_tile) {
      if (!kQuant) made.put(stage, made_row);
      if (tid == 0) meta[made_row] = made.bias;
    }
    __syncthreads();
    tile_issue(index + args.stages - 1);  // over tile index − 1, which has been read

    const unsigned char* rows = stage;
    float* scores = parts.scores_apart;
    if constexpr (kQuant) {
      if (!Space::kScoresApart) scores = reinterpret_cast<float*>(tile.groups ? stage : parts.work);
      if (tile.groups) {
        const int skip = index == made_tile ? made_row : -1;
        tile_dequantise<R>(args.step.pool.type, stage, meta + kTile, tile, skip, parts.work);
        if (skip >= 0) made.put(parts.work, skip);
        rows = parts.work;
        __syncthreads();
      }
    }
    if constexpr (kEntry) {
      tile_scores_entry<R, kQuant>(tile, rows, parts.near, warp, lane, half, scores, far_end,
                                   query);
    } else {
      tile_scores<R>(tile, rows, query, warp, lane, half, scores);
    }
    __syncthreads();
    tile_softmax<R, kQuant, kEntry>(args, tile, meta, scores, warp, lane, parts);
    __syncthreads();
    tile_values<R, kQuant, kEntry>(tile, rows, warp, lane, parts, result);
  }

  copy_wait<0>();
  __syncthreads();
  auto* const results = reinterpret_cast<float*>(shared);
  int* const flag = reinterpret_cast<int*>(results + R::kRows * Space::kResultStride);
  results_write<R>(result, warp, lane, Space::kResultStride, results);
  if (args.cluster > 1) {
    cluster_arrive();
    cluster_wait();
  } else {
    __syncthreads();
  }
  results_reduce<R>(args, at, session, heads, results, Space::kResultStride, parts.stats, flag);
  length_advance(args, session, at.n, counted);
}

/// The launch of one instance; `attributes` must live as long as it.
template <typename R, bool kQuant, bool kEntry>
cudaLaunchConfig_t kernel_config(int stages, dim3 grid, int cluster, const Queue& queue,
                                 cudaLaunchAttribute (&attributes)[2]) {
  const auto bytes = static_cast<std::size_t>(Memory<R, kQuant, kEntry>::bytes(stages));
  queue.device->shared_allow(reinterpret_cast<const void*>(decode_kernel<R, kQuant, kEntry>),
                             bytes);
  return cluster_config(grid, R::kThreads, bytes, cluster, queue, attributes);
}

template <typename R, bool kQuant, bool kEntry>
void kernel_launch_with(Args args, const Queue& queue) {
  args.stages = Memory<R, kQuant, kEntry>::stages(queue.device->shared_bytes);
  cudaLaunchAttribute attributes[2]{};
  const cudaLaunchConfig_t config = kernel_config<R, kQuant, kEntry>(
      args.stages, step_grid(args), args.cluster, queue, attributes);
  check(cudaLaunchKernelEx(&config, decode_kernel<R, kQuant, kEntry>, args), "a decode step");
}

template <typename R, bool kQuant>
void kernel_launch(const Args& args, const Queue& queue) {
  args.step.rotation.steps == nullptr ? kernel_launch_with<R, kQuant, false>(args, queue)
                                      : kernel_launch_with<R, kQuant, true>(args, queue);
}

/// Blocks in clusters of this size that run at once. Not every multiprocessor has a place in one.
template <typename R>
int kernel_slots(const Device& device, int cluster) {
  const auto* const kernel = reinterpret_cast<const void*>(decode_kernel<R, false, false>);
  return device.remember(kernel, cluster, [&] {
    const DeviceScope scope(device);
    cudaLaunchAttribute attributes[2]{};
    const cudaLaunchConfig_t config = kernel_config<R, false, false>(
        Memory<R, false>::stages(device.shared_bytes), dim3(static_cast<unsigned>(cluster)),
        cluster, {&device, nullptr}, attributes);
    int clusters = 0;
    check(cudaOccupancyMaxActiveClusters(&clusters, decode_kernel<R, false, false>, &config),
          "asking how many clusters fit on the GPU");
    return clusters * cluster;
  });
}

}  // namespace lca::cuda::decoding
