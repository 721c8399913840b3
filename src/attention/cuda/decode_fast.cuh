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

#include "attention/cuda/decode_group.cuh"
#include "attention/cuda/decode_reduce.cuh"

namespace lca::cuda::decoding {

template <typename R, bool kQuant>
__global__ void __launch_bounds__(R::kThreads, 1) decode_kernel(const __grid_constant__ Args args) {
  using Room = Memory<R, kQuant>;
  constexpr int kHeadTiles = R::kHeadTiles;
  constexpr int kSteps = R::kScore / 32;  // k-steps of 16 columns in one half of the key
  constexpr int kWarps = R::kWarps;
  static_assert((kWarps == 8 || kWarps == 16) && R::kValue / kWarps % 8 == 0);
  constexpr int kEntries = 2 * kTile / kWarps;      // of a tile, whose scores one warp makes
  constexpr int kColumns = R::kValue / kWarps;      // of the value, for one warp
  constexpr int kChains = kHeadTiles == 1 ? 2 : 1;  // enough independent products to hide latency

  extern __shared__ __align__(128) unsigned char shared[];
  unsigned char* const work = shared;
  unsigned char* const stages = shared + Room::kWorkBytes;
  auto* const metas = reinterpret_cast<float*>(stages + args.stages * Room::kStageBytes);
  float* const scores_apart = metas + args.stages * Room::kMetaFloats;
  unsigned char* const weights =
      reinterpret_cast<unsigned char*>(scores_apart) + (Room::kScoresApart ? Room::kScoreBytes : 0);
  auto* const rescale = reinterpret_cast<float*>(weights + Room::kWeightBytes);
  auto* const stats = reinterpret_cast<float2*>(rescale + R::kRows);  // maximum and sum of each row

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

  grid_wait();
  // Queries need nothing but the launch: first of all. They pass through room that no tile has yet.
  unsigned char* const query_room = kQuant ? work : stages + (args.stages - 1) * Room::kStageBytes;
  for (int i = tid; i < R::kRows * (R::kScore / 8); i += R::kThreads) {
    const int row = i / (R::kScore / 8);
    const int chunk = i % (R::kScore / 8);
    const bool real = row < heads.count;
    const bf16* source = args.step.queries;
    if (real) {
      source += (static_cast<std::int64_t>(session) * args.heads + heads.first + row) * R::kScore +
                chunk * 8;
    }
    copy_chunk(shared_address(query_room + R::offset(row, chunk)), source, real);
  }
  copy_commit();

  const SessionView& view = args.step.sessions[session];  // read again where it is wanted
  const Place at_read =
      place_of(args, view, static_cast<int>(blockIdx.z * args.cluster + blockIdx.x));
  auto* const kept = reinterpret_cast<Place*>(stats + R::kRows);
  if constexpr (Room::kPlaceKept) {
    if (tid == 0) *kept = at_read;
    __syncthreads();
  }
  const Place& at = Room::kPlaceKept ? *kept : at_read;
  if (static_cast<int>(blockIdx.z) * args.cluster >= active_blocks(args, at)) {
    // No block of this cluster has anything to do.
    copy_wait<0>();
    __syncthreads();
    if (tid == 0) length_advance(args, session, at.n);
    return;
  }

  const Tiles<R, kQuant> tiles(at);
  Loader<R, kQuant> loader{args, view, at, tiles, session, kv, {}};
  const auto tile_issue = [&](int index) {
    if (index < tiles.count) {
      const int stage = index % args.stages;
      loader.load(index, shared_address(stages + stage * Room::kStageBytes),
                  shared_address(metas + stage * Room::kMetaFloats));
      loader.pages_fetch(index + 1);
    }
    copy_commit();
  };
  loader.pages_fetch(0);
  for (int i = 0; i < args.stages - 1; ++i) tile_issue(i);

  if (at.owns_newest_token() && head_group == 0) token_store<R>(args, view, at, session, kv);

  // Before the queries take the registers; its room is what they leave.
  NewGroup<R> made;
  using Condense = CondenseRoom<R>;
  static_assert(sizeof(Condense) <= (kTile - R::kRows) * R::kStride);
  int made_tile = -1;
  int made_row = -1;
  if (at.owns_newest_group()) {
    made = group_condense<R, kQuant>(
        args, view, at, kv, head_group == 0,
        [&](int pair) { return query_sum<R>(args, session, kv, pair); },
        *reinterpret_cast<Condense*>(query_room + R::kRows * R::kStride));
    made_tile = (at.groups - 1 - at.first) / kTile;
    made_row = (at.groups - 1 - at.first) % kTile;
  }

  // Queries as fragments: heads are rows, this warp's half of the key's columns.
  const int half = warp / (kWarps / 2);
  std::uint32_t query[kHeadTiles][kSteps][4];
  copy_wait_for(args.stages - 1);
  __syncthreads();
  if (tid == 0) length_advance(args, session, at.n);  // under the first tile's load
#pragma unroll
  for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      matrix_load(query[h][k],
                  shared_address(query_room + R::offset(h * 16 + lane % 16,
                                                        (half * kSteps + k) * 2 + lane / 16)));
    }
  }

  if (tid < R::kRows) stats[tid] = {-INFINITY, 0.f};
  float result[kHeadTiles][kColumns / 8][4];
#pragma unroll
  for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
    for (int c = 0; c < kColumns / 8; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) result[h][c][i] = 0.f;
    }
  }

  for (int index = 0; index < tiles.count; ++index) {
    const Tile tile = tiles(at, index);
    unsigned char* const stage = stages + index % args.stages * Room::kStageBytes;
    float* const meta = metas + index % args.stages * Room::kMetaFloats;
    copy_wait_for(args.stages - 2);
    if (index == made_tile) {
      if (!kQuant) made.put(stage, made_row);
      if (tid == 0) meta[made_row] = made.bias;
    }
    __syncthreads();
    tile_issue(index + args.stages - 1);  // where tile index − 1 was: nobody reads that any more

    const unsigned char* rows = stage;
    float* scores = scores_apart;
    if constexpr (kQuant) {
      if (!Room::kScoresApart) scores = reinterpret_cast<float*>(tile.groups ? stage : work);
      if (tile.groups) {
        const int skip = index == made_tile ? made_row : -1;
        tile_dequantise<R>(args.step.pool.type, stage, meta + kTile, tile, skip, work);
        if (skip >= 0) made.put(work, skip);
        rows = work;
        __syncthreads();
      }
    }

    // Scores of some entries with this warp's half of the key.
    const int entries = warp % (kWarps / 2) * kEntries;
    if (entries < tile.count) {
      float score[kHeadTiles][kChains][kEntries / 8][4] = {};
      if constexpr (kEntries == 16) {
        const int row = entries + lane / 16 * 8 + lane % 8;
        const int odd = lane / 8 % 2;
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          std::uint32_t key[4];  // entries 0–7: columns 0–7, 8–15; entries 8–15: the same
          matrix_load(key, shared_address(rows + R::offset(row, (half * kSteps + k) * 2 + odd)));
#pragma unroll
          for (int h = 0; h < kHeadTiles; ++h) {
            multiply(score[h][k % kChains][0], query[h][k], key[0], key[1]);
            multiply(score[h][k % kChains][1], query[h][k], key[2], key[3]);
          }
        }
      } else {
        static_assert(kSteps % 2 == 0);
        const int row = entries + lane % 8;
#pragma unroll
        for (int k = 0; k < kSteps; k += 2) {
          std::uint32_t key[4];  // columns 0–7, 8–15, 16–23, 24–31
          matrix_load(key,
                      shared_address(rows + R::offset(row, (half * kSteps + k) * 2 + lane / 8)));
#pragma unroll
          for (int h = 0; h < kHeadTiles; ++h) {
            multiply(score[h][0][0], query[h][k], key[0], key[1]);
            multiply(score[h][kChains - 1][0], query[h][k + 1], key[2], key[3]);
          }
        }
      }
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
        for (int e = 0; e < kEntries / 8; ++e) {
#pragma unroll
          for (int low = 0; low < 2; ++low) {
            float2 value{score[h][0][e][2 * low], score[h][0][e][2 * low + 1]};
            if constexpr (kChains == 2) {
              value.x += score[h][1][e][2 * low];
              value.y += score[h][1][e][2 * low + 1];
            }
            const int head = h * 16 + lane / 4 + 8 * low;
            const int pair = entries / 2 + e * 4 + lane % 4;
            // Pairs are permuted by row, so that eight rows are written without conflicts.
            reinterpret_cast<float2*>(scores + (half * R::kRows + head) *
                                                   kTile)[pair ^ (head & 3) * 4] = value;
          }
        }
      }
    }
    __syncthreads();

    // Softmax: this warp's one or two heads of every 16; a lane has entries 2·lane and 2·lane + 1.
    const float factor = args.step.scale * kLog2e;
    float bias[2] = {0.f, 0.f};
    if (tile.groups) {
      const bool stored = args.step.pool.bias != nullptr;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        bias[e] = (stored ? meta[2 * lane + e] : args.bias_all) * kLog2e;
      }
    }
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int i = 0; i < 16 / kWarps; ++i) {
        const int head = h * 16 + warp * (16 / kWarps) + i;
        const int pair = lane ^ (head & 3) * 4;
        const float2 low = reinterpret_cast<const float2*>(scores + head * kTile)[pair];
        const float2 high =
            reinterpret_cast<const float2*>(scores + (R::kRows + head) * kTile)[pair];
        float x = (low.x + high.x) * factor + bias[0];
        float y = (low.y + high.y) * factor + bias[1];
        x = 2 * lane < tile.count ? x : -INFINITY;
        y = 2 * lane + 1 < tile.count ? y : -INFINITY;
        const float2 before = stats[head];
        const float best = fmaxf(before.x, warp_max(fmaxf(x, y)));
        const float keep = exp2f(before.x - best);
        x = exp2f(x - best);
        y = exp2f(y - best);
        const float after = before.y * keep + warp_sum(x + y);
        *reinterpret_cast<std::uint32_t*>(weights + head * (kTile * 2) +
                                          (lane / 4 ^ (head & 7)) * 16 + lane % 4 * 4) =
            pack_bf16(x, y);
        __syncwarp();  // every lane has read the old maximum
        if (lane == 0) {
          rescale[head] = keep;
          stats[head] = {best, after};
        }
      }
    }
    __syncthreads();

    // Values: this warp's columns.
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
      const float upper = rescale[h * 16 + lane / 4];
      const float lower = rescale[h * 16 + lane / 4 + 8];
#pragma unroll
      for (int c = 0; c < kColumns / 8; ++c) {
        result[h][c][0] *= upper;
        result[h][c][1] *= upper;
        result[h][c][2] *= lower;
        result[h][c][3] *= lower;
      }
    }
    const int first_chunk = (R::kValueAt + warp * kColumns) / 8;
#pragma unroll
    for (int k = 0; k < kTile / 16; ++k) {
      if (k * 16 >= tile.count) break;  // rows beyond are not even zeros
      std::uint32_t weight[kHeadTiles][4];
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
        const int head = h * 16 + lane % 16;
        matrix_load(weight[h], shared_address(weights + head * (kTile * 2) +
                                              ((k * 2 + lane / 16) ^ (head & 7)) * 16));
      }
      const int row = k * 16 + lane % 16;
      if constexpr (kColumns == 8) {
        std::uint32_t value[2];
        matrix_load_transposed(value, shared_address(rows + R::offset(row, first_chunk)));
#pragma unroll
        for (int h = 0; h < kHeadTiles; ++h) {
          multiply(result[h][0], weight[h], value[0], value[1]);
        }
      } else {
#pragma unroll
        for (int c = 0; c < kColumns / 16; ++c) {
          std::uint32_t value[4];  // columns 0–7: entries 0–7, 8–15; columns 8–15: the same
          matrix_load_transposed(
              value, shared_address(rows + R::offset(row, first_chunk + 2 * c + lane / 16)));
#pragma unroll
          for (int h = 0; h < kHeadTiles; ++h) {
            multiply(result[h][2 * c], weight[h], value[0], value[1]);
            multiply(result[h][2 * c + 1], weight[h], value[2], value[3]);
          }
        }
      }
    }
  }

  // The block's result to shared memory, over the tiles.
  copy_wait<0>();
  __syncthreads();
  auto* const results = reinterpret_cast<float*>(shared);
  int* const flag = reinterpret_cast<int*>(results + R::kRows * Room::kResultStride);
#pragma unroll
  for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
    for (int c = 0; c < kColumns / 8; ++c) {
      const int column = warp * kColumns + c * 8 + lane % 4 * 2;
#pragma unroll
      for (int low = 0; low < 2; ++low) {
        const int head = h * 16 + lane / 4 + 8 * low;
        *reinterpret_cast<float2*>(results + head * Room::kResultStride + column) = {
            result[h][c][2 * low], result[h][c][2 * low + 1]};
      }
    }
  }
  if (args.cluster > 1) {
    cluster_arrive();
    cluster_wait();
  } else {
    __syncthreads();
  }
  results_reduce<R>(args, at, session, heads, results, Room::kResultStride, stats, flag);
}

/// The launch of one instance; `attributes` must live as long as it.
template <typename R, bool kQuant>
cudaLaunchConfig_t kernel_config(int stages, dim3 grid, int cluster, cudaStream_t stream,
                                 cudaLaunchAttribute (&attributes)[2]) {
  const int bytes = Memory<R, kQuant>::bytes(stages);
  static const bool ready = [&] {
    check(cudaFuncSetAttribute(decode_kernel<R, kQuant>,
                               cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
          "preparing the decode kernel");
    return true;
  }();
  static_cast<void>(ready);
  return cluster_config(grid, R::kThreads, static_cast<std::size_t>(bytes), cluster, stream,
                        attributes);
}

template <typename R, bool kQuant>
void kernel_launch(Args args, cudaStream_t stream) {
  args.stages = Memory<R, kQuant>::stages(device().shared_bytes);
  cudaLaunchAttribute attributes[2]{};
  const cudaLaunchConfig_t config =
      kernel_config<R, kQuant>(args.stages, step_grid(args), args.cluster, stream, attributes);
  check(cudaLaunchKernelEx(&config, decode_kernel<R, kQuant>, args), "a decode step");
}

/// Blocks in clusters of this size that run at once. Not every multiprocessor has a place in one.
template <typename R>
int kernel_slots(int cluster) {
  cudaLaunchAttribute attributes[2]{};
  const cudaLaunchConfig_t config =
      kernel_config<R, false>(Memory<R, false>::stages(device().shared_bytes),
                              dim3(static_cast<unsigned>(cluster)), cluster, nullptr, attributes);
  int clusters = 0;
  check(cudaOccupancyMaxActiveClusters(&clusters, decode_kernel<R, false>, &config),
        "asking how many clusters fit on the GPU");
  return clusters * cluster;
}

}  // namespace lca::cuda::decoding
