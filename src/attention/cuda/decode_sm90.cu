/// Decode on Hopper for blocks that read many entries: batches of long sessions.
///
/// Shapes     MLA 512 + 64, up to 16 heads a job, bf16 representatives. A tile is 64 entries; pages
///            of representatives are tiles.
/// Moving     the producer warp group brings tiles: a page by TMA (nine boxes of 64 rows × 128
///            bytes), exact tokens of a ring by cp.async. Two consumer warp groups have a stage of
///            72 KiB each and take tiles in turn, so that one's softmax hides under the other's
///            loads and products. Entries are the long dimension of every product (M = 64), heads
///            the short one (N = 16): nothing is padded.
///              scores   Sᵀ [64 entries × 16]  = K [64 × 576] · Qᵀ, 36 wgmma
///              outputs  Oᵀ [512 × 16]        += Vᵀ [512 × 64] · P, 32 wgmma, V the latents of K
/// Memory     stages 144 KiB, queries 18 KiB, probabilities 4 KiB, scratch of condensing 11 KiB.
/// Bounds     V2-Lite at 128K, 32 sessions: 339 MB, 79 µs at 4.27 TB/s; shared memory reads a tile
///            twice, 1,150 cycles of the 3,900 that its load takes.

#include "attention/cuda/decode_group.cuh"
#include "attention/cuda/decode_reduce.cuh"
#include "attention/cuda/hopper.cuh"
#include "attention/cuda/tensor_map.h"

namespace lca::cuda::decoding {
namespace {

using R = Row<Form::mla, 512, 64, 1, 12>;  // three warp groups
using ScoreAtom = gmma::MMA_64x16x16_F32BF16BF16_SS<gmma::Major::K, gmma::Major::K>;
using OutputAtom = gmma::MMA_64x16x16_F32BF16BF16_SS<gmma::Major::MN, gmma::Major::K>;

constexpr int kHeads = 16;
constexpr int kPanels = R::kWidth / 64;   // of 64 columns, 128 bytes
constexpr int kPanelBytes = kTile * 128;  // of a tile
constexpr int kQueryPanelBytes = kHeads * 128;
constexpr int kTileBytes = kPanels * kPanelBytes;
constexpr int kOutputTiles = R::kValue / 64;
constexpr int kResultStride = R::kValue + 8;

struct Shared {
  alignas(1024) unsigned char stage[2][kTileBytes];  // at the end: results of both warp groups
  alignas(1024) unsigned char query[kPanels * kQueryPanelBytes];
  alignas(1024) unsigned char weights[2][kHeads * 128];  // Pᵀ: a row of 64 entries for each head
  float scratch[R::kScore + 2 * kMostGroup + 32];
  alignas(16) std::uint32_t fresh[R::kWidth / 2];  // the representative of this step
  float fresh_bias;
  float tops[2][4][kHeads];  // per warp group and warp
  float2 stats[2][kHeads];   // per warp group: maximum and sum
  float2 merged[kHeads];
  int flag;
  Barrier full[2], empty[2];
};

/// Where 16-byte chunk `chunk` of a row lies in a tile of 128-byte panels, swizzled as TMA does.
__device__ __forceinline__ int chunk_offset(int row, int chunk, int panel_bytes) {
  return chunk / 8 * panel_bytes + row * 128 + ((chunk & 7) ^ (row & 7)) * 16;
}

template <typename Atom, std::size_t... I>
__device__ __forceinline__ void product(float* d, std::uint64_t a, std::uint64_t b, bool add,
                                        std::index_sequence<I...>) {
  Atom::fma(a, b, d[I]..., add ? gmma::ScaleOut::One : gmma::ScaleOut::Zero);
}

// --- producer ----------------------------------------------------------------------------------

/// A tile of exact tokens, by all threads of the producer warp group. `start` is where in the ring
/// the window begins: one division for the whole step.
__device__ __forceinline__ void exact_load(const Args& args, const SessionView& view,
                                           const Place& at, const Tile& tile, int start,
                                           int session, unsigned char* stage) {
  const int part = threadIdx.x % 8;
  const int window_first = at.groups + at.sink_size;  // in the list
#pragma unroll
  for (int i = 0; i < kTile / 16; ++i) {
    const int row = static_cast<int>(threadIdx.x) / 8 + 16 * i;
    const bool real = row < tile.count;
    const int entry = tile.first + row;
    // The newest token comes from where it was given: nobody waits for the ring.
    const bf16* semantic = args.step.semantic + std::int64_t{session} * R::kSemantic;
    const bf16* positional = args.step.positional + std::int64_t{session} * R::kPositional;
    if (real && entry != at.entries - 1) {
      int in_ring = start + entry - window_first;
      if (in_ring >= at.ring) in_ring -= at.ring;
      const std::int64_t from = entry < window_first ? entry - at.groups : at.sink + in_ring;
      semantic = view.semantic + from * R::kSemantic;
      positional = view.positional + from * R::kPositional;
    }
    semantic += part * 8;
    positional += part * 8;
    const std::uint32_t to = shared_address(stage + chunk_offset(row, part, kPanelBytes));
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      copy_chunk(to + panel * kPanelBytes,
                 panel < R::kSemantic / 64 ? semantic + panel * 64 : positional, real);
    }
  }
}

__device__ __forceinline__ void page_load(const CUtensorMap& semantic,
                                          const CUtensorMap& positional, Barrier& full,
                                          unsigned char* stage, int row) {
  auto* const barrier = reinterpret_cast<std::uint64_t*>(&full);
  LoadBarrier::arrive_and_expect_tx(barrier, kTileBytes);
  constexpr auto kOnce = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
#pragma unroll
  for (int panel = 0; panel < kPanels - 1; ++panel) {
    cute::SM90_TMA_LOAD_3D::copy(&semantic, barrier, kOnce, stage + panel * kPanelBytes, panel * 64,
                                 0, row);
  }
  cute::SM90_TMA_LOAD_3D::copy(&positional, barrier, kOnce, stage + (kPanels - 1) * kPanelBytes, 0,
                               0, row);
}

/// Tile into its stage; all 128 threads of the producer warp group come here, and each announces
/// its part: TMA when its bytes are there, cp.async when this thread's copies are.
__device__ __forceinline__ void tile_load(const Args& args, const CUtensorMap& semantic,
                                          const CUtensorMap& positional, const SessionView& view,
                                          const Place& at, const Tile& tile, int page, int start,
                                          int session, Shared& shared, int stage) {
  Barrier& full = shared.full[stage];
  if (!tile.groups) {
    exact_load(args, view, at, tile, start, session, shared.stage[stage]);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&full))
                 : "memory");
  } else if (threadIdx.x == 0) {
    page_load(semantic, positional, full, shared.stage[stage], page * kPageRows);
  } else {
    full.arrive();
  }
}

/// The page of a tile of representatives, for the one thread that asks TMA for it.
__device__ __forceinline__ int page_of(const SessionView& view, const Tile& tile) {
  return tile.groups && threadIdx.x == 0 ? __ldg(view.pages + tile.first / kPageRows) : 0;
}

// --- consumers ---------------------------------------------------------------------------------

/// One warp group's share of a block: tiles group, group + 2, …
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const Args& args, const SessionView& view, const Place& at,
                                      Shared& shared, int group)
      : args_(args), view_(view), at_(at), shared_(shared), group_(group) {
    lane_ = threadIdx.x & 31;
    warp_ = threadIdx.x / 32 & 3;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      top_[c] = -INFINITY;
      sum_[c] = 0;
    }
#pragma unroll
    for (int m = 0; m < kOutputTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 8; ++i) o_[m][i] = 0;
    }
  }

  /// `fresh`: the row of the tile that holds this step's representative, or −1.
  __device__ __forceinline__ void tile(const Tile& tile, int fresh, std::uint32_t phase) {
    unsigned char* const stage = shared_.stage[group_];
    shared_.full[group_].wait(phase);
    if (!tile.groups) {
      async_proxy_fence();  // cp.async wrote it, wgmma reads it
    } else if (tile.count < kTile || fresh >= 0) {
      tile_mend(tile, fresh, stage);
    }
    scores(stage);
    softmax(tile, fresh);
    outputs(stage);
    shared_.empty[group_].arrive();  // every thread: some have mended rows themselves
  }

  /// Maxima and sums of all heads to shared memory.
  __device__ __forceinline__ void stats_write() {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float sum = sum_[c];
#pragma unroll
      for (int step = 4; step < 32; step <<= 1) sum += __shfl_xor_sync(~0u, sum, step);
      if (lane_ < 4) shared_.tops[group_][warp_][head(c)] = sum;
    }
    group_barrier();
    if (warp_ == 0 && lane_ < 4) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        float sum = 0;
        for (int w = 0; w < 4; ++w) sum += shared_.tops[group_][w][head(c)];
        shared_.stats[group_][head(c)] = {top_[c], sum};
      }
    }
  }

  /// The outputs, on the scale of the block's maximum: written by one warp group, added to by the
  /// other.
  __device__ __forceinline__ void results_write(float* results, bool add) const {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float factor = top_[c] == -INFINITY ? 0.f : exp2f(top_[c] - shared_.merged[head(c)].x);
      float* row = results + head(c) * kResultStride + warp_ * 16 + lane_ / 4;
#pragma unroll
      for (int m = 0; m < kOutputTiles; ++m) {
#pragma unroll
        for (int low = 0; low < 2; ++low) {
          float& to = row[m * 64 + 8 * low];
          const float value = o_[m][c / 2 * 4 + 2 * low + (c & 1)] * factor;
          to = add ? to + value : value;
        }
      }
    }
  }

 private:
  /// Column c of this thread's accumulators: heads 2·(lane % 4), + 1, + 8, + 9.
  __device__ __forceinline__ int head(int c) const { return c / 2 * 8 + 2 * (lane_ & 3) + (c & 1); }
  __device__ __forceinline__ void group_barrier() const { NamedBarrier::sync(128, group_); }

  /// Puts this step's representative into its row, and zeros into rows that hold nothing: even a
  /// weight of zero does not cancel a NaN.
  __device__ __forceinline__ void tile_mend(const Tile& tile, int fresh, unsigned char* stage) {
    const int thread = threadIdx.x & 127;
    if (fresh >= 0 && thread < R::kChunks) {
      *reinterpret_cast<uint4*>(stage + chunk_offset(fresh, thread, kPanelBytes)) =
          reinterpret_cast<const uint4*>(shared_.fresh)[thread];
    }
    for (int i = thread; i < (kTile - tile.count) * R::kChunks; i += 128) {
      *reinterpret_cast<uint4*>(stage + chunk_offset(tile.count + i / R::kChunks, i % R::kChunks,
                                                     kPanelBytes)) = uint4{0, 0, 0, 0};
    }
    async_proxy_fence();
    group_barrier();
  }

  __device__ __forceinline__ void scores(const unsigned char* stage) {
    const std::uint32_t k = shared_address(stage) / 16;
    const std::uint32_t q = shared_address(shared_.query) / 16;
    float odd[8];  // two chains: products this narrow are shorter than their latency
    accumulators_fence(s_);
    accumulators_fence(odd);
    cute::warpgroup_arrive();
#pragma unroll
    for (int c = 0; c < R::kScore; c += 16) {
      const int panel = c / 64, inside = (c & 63) * 2;
      product<ScoreAtom>(c & 16 ? odd : s_, descriptor<128>(k, panel * kPanelBytes + inside),
                         descriptor<128>(q, panel * kQueryPanelBytes + inside), c >= 32,
                         std::make_index_sequence<8>());
    }
    cute::warpgroup_commit_batch();
    cute::warpgroup_wait<0>();
    accumulators_fence(s_);
    accumulators_fence(odd);
#pragma unroll
    for (int i = 0; i < 8; ++i) s_[i] += odd[i];
  }

  /// Scores to weights in shared memory. Thread: entries lane / 4 and + 8 of its warp's 16.
  __device__ __forceinline__ void softmax(const Tile& tile, int fresh) {
    const float factor = args_.step.scale * kLog2e;
    float x[4][2];
#pragma unroll
    for (int low = 0; low < 2; ++low) {
      const int row = warp_ * 16 + lane_ / 4 + 8 * low;
      float bias = 0;
      if (tile.groups && row < tile.count) {
        bias = args_.bias_all;
        if (args_.step.pool.bias != nullptr) {
          const std::int64_t page = __ldg(view_.pages + tile.first / kPageRows);
          bias = row == fresh ? shared_.fresh_bias
                              : __ldg(args_.step.pool.bias + page * kPageRows + row);
        }
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float score = s_[c / 2 * 4 + 2 * low + (c & 1)];
        x[c][low] = row < tile.count ? fmaf(score, factor, bias * kLog2e) : -INFINITY;
      }
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float top = fmaxf(x[c][0], x[c][1]);
#pragma unroll
      for (int step = 4; step < 32; step <<= 1) {
        top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
      }
      if (lane_ < 4) shared_.tops[group_][warp_][head(c)] = top;
    }
    group_barrier();
    bool moved = false;
    float rescale[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float top = -INFINITY;
#pragma unroll
      for (int w = 0; w < 4; ++w) top = fmaxf(top, shared_.tops[group_][w][head(c)]);
      const bool larger = top > top_[c] + kLazyRescale;  // the same for the whole warp group
      rescale[c] = larger ? exp2f(top_[c] - top) : 1.f;
      if (larger) top_[c] = top;
      moved |= larger;
    }
    unsigned char* const weights = shared_.weights[group_];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float sum = 0;
#pragma unroll
      for (int low = 0; low < 2; ++low) {
        const float weight = exp2_fast(x[c][low] - top_[c]);
        sum += weight;
        const int entry = warp_ * 16 + lane_ / 4 + 8 * low;
        *reinterpret_cast<bf16*>(weights + chunk_offset(head(c), entry / 8, 0) + entry % 8 * 2) =
            __float2bfloat16(weight);
      }
      sum_[c] = sum_[c] * rescale[c] + sum;
    }
    if (__any_sync(~0u, moved)) {
#pragma unroll
      for (int m = 0; m < kOutputTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 8; ++i) o_[m][i] *= rescale[i / 4 * 2 + (i & 1)];
      }
    }
    async_proxy_fence();
    group_barrier();
  }

  __device__ __forceinline__ void outputs(const unsigned char* stage) {
    const std::uint32_t v = shared_address(stage) / 16;
    const std::uint32_t p = shared_address(shared_.weights[group_]) / 16;
#pragma unroll
    for (int m = 0; m < kOutputTiles; ++m) accumulators_fence(o_[m]);
    cute::warpgroup_arrive();
#pragma unroll
    for (int n = 0; n < kTile; n += 16) {
#pragma unroll
      for (int m = 0; m < kOutputTiles; ++m) {
        product<OutputAtom>(o_[m], descriptor<128>(v, m * kPanelBytes + n * 128, kPanelBytes),
                            descriptor<128>(p, n * 2), true, std::make_index_sequence<8>());
      }
    }
    cute::warpgroup_commit_batch();
    cute::warpgroup_wait<0>();
#pragma unroll
    for (int m = 0; m < kOutputTiles; ++m) accumulators_fence(o_[m]);
  }

  const Args& args_;
  const SessionView& view_;
  const Place& at_;
  Shared& shared_;
  int group_, lane_, warp_;
  float top_[4], sum_[4];
  float s_[8];
  float o_[kOutputTiles][8];
};

__global__ void __launch_bounds__(R::kThreads, 1)
    decode_stream_kernel(const __grid_constant__ Args args,
                         const __grid_constant__ CUtensorMap semantic,
                         const __grid_constant__ CUtensorMap positional) {
  extern __shared__ unsigned char memory[];
  const std::uint32_t misaligned = shared_address(memory) & 1023;
  auto& shared = *reinterpret_cast<Shared*>(memory + (1024 - misaligned & 1023));
  const int tid = static_cast<int>(threadIdx.x);
  const int role = __shfl_sync(~0u, tid / 128, 0);
  const int session = static_cast<int>(blockIdx.y) / args.jobs;
  const int job = static_cast<int>(blockIdx.y) % args.jobs;
  const Heads heads{job * kHeads, min(kHeads, args.heads - job * kHeads),
                    static_cast<int>(blockIdx.y)};
  const SessionView view = args.step.sessions[session];
  const Place at = place_of(args, view, static_cast<int>(blockIdx.z * args.cluster + blockIdx.x));
  if (static_cast<int>(blockIdx.z) * args.cluster >= active_blocks(args, at)) {
    __syncthreads();
    if (tid == 0) length_advance(args, view, session, at.n);
    return;
  }
  if (tid == 0) {
    for (int i = 0; i < 2; ++i) {
      shared.full[i].init(128);
      shared.empty[i].init(128);
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();

  // The first two tiles are on their way before anything else happens.
  const Tiles<R, false> tiles(at);
  const int start = max(at.window_begin - at.sink, 0) % at.ring;
  if (role == 0) {
    const int pages[2] = {tiles.count > 0 ? page_of(view, tiles(at, 0)) : 0,
                          tiles.count > 1 ? page_of(view, tiles(at, 1)) : 0};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i >= tiles.count) break;
      tile_load(args, semantic, positional, view, at, tiles(at, i), pages[i], start, session,
                shared, i);
    }
  }
  if (tid == R::kThreads - 1) length_advance(args, view, session, at.n);
  for (int i = tid; i < kHeads * R::kChunks; i += R::kThreads) {
    const int row = i / R::kChunks;
    const int chunk = i % R::kChunks;
    uint4 value{0, 0, 0, 0};
    if (row < heads.count) {
      value = reinterpret_cast<const uint4*>(
          args.step.queries +
          (std::int64_t{session} * args.heads + heads.first + row) * R::kScore)[chunk];
    }
    *reinterpret_cast<uint4*>(shared.query + chunk_offset(row, chunk, kQueryPanelBytes)) = value;
  }
  if (at.owns_newest_token() && job == 0) token_store<R>(args, view, at, session, 0);
  int fresh_tile = -1;
  if (at.owns_newest_group()) {
    const NewGroup<R> made =
        group_condense<R>(args, view, at, session, 0, job == 0, shared.scratch);
    if (tid < R::kWidth / 2) shared.fresh[tid] = made.pairs[0];
    if (tid == 0) shared.fresh_bias = made.bias;
    fresh_tile = (at.groups - 1 - at.first) / kTile;
  }
  async_proxy_fence();  // the queries are read by wgmma
  __syncthreads();

  auto* const results = reinterpret_cast<float*>(shared.stage);
  if (role == 0) {
    for (int i = 2; i < tiles.count; ++i) {
      const Tile tile = tiles(at, i);
      const int page = page_of(view, tile);
      shared.empty[i & 1].wait((i / 2 & 1) ^ 1);
      tile_load(args, semantic, positional, view, at, tile, page, start, session, shared, i & 1);
    }
    copy_wait<0>();  // results take the stages' place
    __syncthreads();
    __syncthreads();
    __syncthreads();
  } else {
    Consumer consumer(args, view, at, shared, role - 1);
    for (int i = role - 1; i < tiles.count; i += 2) {
      const int fresh = i == fresh_tile ? (at.groups - 1 - at.first) % kTile : -1;
      consumer.tile(tiles(at, i), fresh, i / 2 & 1);
    }
    consumer.stats_write();
    __syncthreads();
    const int thread = tid - 128;
    if (thread < kHeads) {
      const float2 a = shared.stats[0][thread], b = shared.stats[1][thread];
      const float top = fmaxf(a.x, b.x);
      const float sum = (a.x == -INFINITY ? 0.f : a.y * exp2f(a.x - top)) +
                        (b.x == -INFINITY ? 0.f : b.y * exp2f(b.x - top));
      shared.merged[thread] = {top, sum};
    }
    NamedBarrier::sync(256, 2);
    if (role == 1) consumer.results_write(results, false);
    __syncthreads();
    if (role == 2) consumer.results_write(results, true);
    __syncthreads();
  }
  if (args.cluster > 1) {
    cluster_arrive();
    cluster_wait();
  }
  results_reduce<R>(args, at, session, heads, results, kResultStride, shared.merged, &shared.flag);
}

/// Pages as one long tensor without heads; how many there are nobody needs to know.
CUtensorMap page_map(const void* data, int width) {
  constexpr std::int64_t kRows = std::int64_t{1} << 31;
  const HeadRows rows{static_cast<const bf16*>(data), width, 0, width};
  return tensor_map(rows, 1, kRows, kTile);
}

}  // namespace

bool stream_fits(const Args& args) {
  const AttentionShape& shape = args.step.shape;
  return device().hopper() && shape.form == Form::mla && shape.d_latent == R::kSemantic &&
         shape.d_rope == R::kPositional && args.step.pool.type == GroupType::bf16 &&
         args.layout.method == MethodKind::lca && args.chunk % kTile == 0 &&
         args.chunk >= kStreamChunk;
}

void launch_stream(Args args, cudaStream_t stream) {
  constexpr std::size_t kBytes = sizeof(Shared) + 1024;
  static_assert(kBytes <= 227 * 1024);
  static const bool ready = [] {
    check(cudaFuncSetAttribute(decode_stream_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(kBytes)),
          "preparing the decode kernel");
    return true;
  }();
  static_cast<void>(ready);
  args.align = kTile;
  cudaLaunchAttribute attribute{};
  const cudaLaunchConfig_t config =
      cluster_config(step_grid(args), R::kThreads, kBytes, args.cluster, stream, attribute);
  check(cudaLaunchKernelEx(&config, decode_stream_kernel, args,
                           page_map(args.step.pool.semantic, R::kSemantic),
                           page_map(args.step.pool.positional, R::kPositional)),
        "a decode step");
}

}  // namespace lca::cuda::decoding
