#pragma once
/// The inside of Hopper's decode kernel (decode_sm90.cu): its shared memory, and what a consumer
/// warp group does with a tile: scores, softmax, outputs, and its part of the result at the end.

#include "attention/cuda/decode/decode_helpers.cuh"
#include "attention/cuda/decode/decode_inbox.cuh"

namespace lca::cuda::decoding::streaming {

using ScoreAtom = gmma::MMA_64x16x16_F32BF16BF16_SS<gmma::Major::K, gmma::Major::K>;
using OutputAtom = gmma::MMA_64x16x16_F32BF16BF16_SS<gmma::Major::MN, gmma::Major::K>;

constexpr int kHeads = kBlockHeads;
constexpr int kPanels = R::kWidth / 64;   // of 64 columns, 128 bytes
constexpr int kPanelBytes = kTile * 128;  // of a tile
constexpr int kQueryPanelBytes = kHeads * 128;
constexpr int kTileBytes = kPanels * kPanelBytes;
constexpr int kOutputTiles = R::kValue / 64;

struct Shared {
  alignas(1024) unsigned char stage[2][kTileBytes];  // at the end: what warp groups exchange
  alignas(1024) unsigned char query[kPanels * kQueryPanelBytes];
  alignas(1024) unsigned char far[kQueryPanelBytes];     // entry positions: the RoPE part once more
  alignas(1024) unsigned char weights[2][kHeads * 128];  // Pᵀ: a row of 64 entries for each head
  float tops[2][4][kHeads];  // per warp group and warp: maxima of a tile, at the end sums
  float group_tops[2][kHeads];
  Inbox<R::kValue> inbox;
  FreshGroup fresh;
  LoadBarrier full[2];
  Barrier empty[2];
  Barrier group_met[2];
  LoadBarrier inbox_full;
};

template <typename Atom, std::size_t... I>
__device__ __forceinline__ void product(float* d, std::uint64_t a, std::uint64_t b, bool add,
                                        std::index_sequence<I...>) {
  Atom::fma(a, b, d[I]..., add ? gmma::ScaleOut::One : gmma::ScaleOut::Zero);
}

/// One warp group's share of a block: every other tile. kEntry: positions are those of entries.
template <bool kEntry>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const Args& args, const SessionView& view, const Place& at,
                                      Shared& shared, int group)
      : args_(args),
        view_(view),
        at_(at),
        shared_(shared),
        barrier_(shared.group_met[group]),
        group_(group) {
    thread_ = threadIdx.x & 127;
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

  /// Rows, tile number `count` of this warp group. `newest` is this thread's 16 bytes of the newest
  /// token.
  __device__ __forceinline__ void tile(const Rows& rows, int count, const uint4& newest) {
    unsigned char* const stage = shared_.stage[group_];
    if (rows.kind == Rows::made) {
      if (count > 0) group_barrier();  // others may still read the stage
      rows_clear(1, stage);
      row_put(shared_.fresh.wait(thread_), 0, stage);
      shared_write_end();
    } else {
      shared_.full[group_].wait(count & 1);
      // The newest token is not in its ring yet, and comes from where it was given.
      const bool has_newest = rows.first + rows.count == at_.entries;
      if (has_newest) row_put(newest, rows.count - 1, stage);
      if (rows.count < kTile) rows_clear(rows.count, stage);
      if (has_newest || rows.count < kTile) shared_write_end();
    }
    scores(stage, rows);
    softmax(rows);
    outputs(stage);
    shared_.empty[group_].arrive();  // every thread: some wrote rows
  }

  /// Maxima and sums of all heads to shared memory.
  __device__ __forceinline__ void stats_write() {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float sum = sum_[c];
#pragma unroll
      for (int step = 4; step < 32; step <<= 1) sum += __shfl_xor_sync(~0u, sum, step);
      if (lane_ < 4) shared_.tops[group_][warp_][head(c)] = sum;
      if (lane_ < 4 && warp_ == 0) shared_.group_tops[group_][head(c)] = top_[c];
    }
  }

  /// Half of the heads to the other warp group, through the stages, which have been read.
  __device__ __forceinline__ void results_give() {
    auto* const give = reinterpret_cast<float4*>(shared_.stage[group_]) + thread_;
#pragma unroll
    for (int m = 0; m < kOutputTiles; ++m) {
      const float* o = o_[m];
      give[m * 128] =
          group_ == 0 ? make_float4(o[4], o[5], o[6], o[7]) : make_float4(o[0], o[1], o[2], o[3]);
    }
  }

  /// The other half of both warp groups' results as one, sent to the blocks that own the columns.
  __device__ __forceinline__ void results_send() {
    float own[2], others[2];  // weights of this thread's two heads
    float2 stats[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int row = group_ * 8 + 2 * (lane_ & 3) + k;
      const float mine = shared_.group_tops[group_][row];
      const float theirs = shared_.group_tops[1 - group_][row];
      const float top = fmaxf(mine, theirs);
      own[k] = mine == -INFINITY ? 0.f : exp2_fast(mine - top);
      others[k] = theirs == -INFINITY ? 0.f : exp2_fast(theirs - top);
      float sum = 0;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        sum += shared_.tops[group_][w][row] * own[k] + shared_.tops[1 - group_][w][row] * others[k];
      }
      stats[k] = {top, sum};
    }
    const int cluster = args_.cluster;
    const int rank = static_cast<int>(blockIdx.x);
    const int width = R::kValue / cluster;
    const int shift = __ffs(width) - 1;
    const int first_head = group_ * 8 + 2 * (lane_ & 3);
    float* const values = shared_.inbox.values + rank * width * kHeads;
    // Eight lanes have the same stats: one for each block of the cluster. Without a cluster the
    // others write where nothing is read.
    const int peer = lane_ / 4;
    if (warp_ == 0 && (peer < cluster || cluster == 1)) {
      float2* const place = &shared_.inbox.stats[cluster == 1 ? peer : rank][first_head];
      const Mailbox to(place, &shared_.inbox_full, peer, cluster);
      to.send(0, stats[0].x, stats[0].y);
      to.send(2, stats[1].x, stats[1].y);
    }
    __syncwarp();
    const auto* const take = reinterpret_cast<const float4*>(shared_.stage[1 - group_]) + thread_;
#pragma unroll
    for (int m = 0; m < kOutputTiles; ++m) {
      const float4 got = take[m * 128];
      const float theirs[4] = {got.x, got.y, got.z, got.w};
      const Mailbox to(values, &shared_.inbox_full, m * 64 >> shift, cluster);
#pragma unroll
      for (int low = 0; low < 2; ++low) {
        float value[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const float mine = group_ == 0 ? o_[m][2 * low + k] : o_[m][4 + 2 * low + k];
          value[k] = mine * own[k] + theirs[2 * low + k] * others[k];
        }
        const int column = m * 64 + warp_ * 16 + lane_ / 4 + 8 * low;
        to.send(inbox_offset(column & (width - 1), first_head), value[0], value[1]);
      }
    }
  }

 private:
  /// Column c of this thread's accumulators: heads 2·(lane % 4), + 1, + 8, + 9.
  __device__ __forceinline__ int head(int c) const { return c / 2 * 8 + 2 * (lane_ & 3) + (c & 1); }
  __device__ __forceinline__ void group_barrier() { barrier_.sync(); }

  /// What this thread wrote to shared memory, and all others of the group, is read by wgmma next.
  __device__ __forceinline__ void shared_write_end() {
    async_proxy_fence();
    group_barrier();
  }

  /// Zeros into rows that hold nothing: even a weight of zero does not cancel a NaN.
  __device__ __forceinline__ void rows_clear(int first, unsigned char* stage) const {
    // In each panel they are the bytes at the end, however those before are swizzled.
    const int begin = first * 128 + thread_ * 16;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
      for (int i = 0; i < kPanelBytes / 2048; ++i) {
        const int byte = begin + i * 2048;
        if (byte < kPanelBytes) {
          *reinterpret_cast<uint4*>(stage + panel * kPanelBytes + byte) = uint4{0, 0, 0, 0};
        }
      }
    }
  }

  /// A row that this warp group's threads have, 16 bytes each.
  __device__ __forceinline__ void row_put(const uint4& chunk, int row, unsigned char* stage) const {
    if (thread_ >= R::kChunks) return;
    *reinterpret_cast<uint4*>(stage + chunk_offset(row, thread_, kPanelBytes)) = chunk;
  }

  __device__ __forceinline__ void scores(const unsigned char* stage, const Rows& rows) {
    const std::uint32_t k = shared_address(stage) / 16;
    const std::uint32_t q = shared_address(shared_.query) / 16;
    // The RoPE part as these entries see it; no tile has entries of both kinds.
    std::uint32_t rope = q + (kPanels - 1) * kQueryPanelBytes / 16;
    if (kEntry && rows.first < FarEntries(at_).end) rope = shared_address(shared_.far) / 16;
    float odd[8];  // two chains: products this narrow are shorter than their latency
    accumulators_fence(s_);
    accumulators_fence(odd);
    cute::warpgroup_arrive();
#pragma unroll
    for (int c = 0; c < R::kScore; c += 16) {
      const int panel = c / 64, inside = (c & 63) * 2;
      const std::uint64_t query = panel < kPanels - 1
                                      ? descriptor<128>(q, panel * kQueryPanelBytes + inside)
                                      : descriptor<128>(rope, inside);
      product<ScoreAtom>(c & 16 ? odd : s_, descriptor<128>(k, panel * kPanelBytes + inside), query,
                         c >= 32, std::make_index_sequence<8>());
    }
    cute::warpgroup_commit_batch();
    cute::warpgroup_wait<0>();
    accumulators_fence(s_);
    accumulators_fence(odd);
#pragma unroll
    for (int i = 0; i < 8; ++i) s_[i] += odd[i];
  }

  /// Scores to weights in shared memory. Thread: entries lane / 4 and + 8 of its warp's 16.
  __device__ __forceinline__ void softmax(const Rows& rows) {
    const float factor = args_.step.scale * kLog2e;
    float x[4][2];
#pragma unroll
    for (int low = 0; low < 2; ++low) {
      const int row = warp_ * 16 + lane_ / 4 + 8 * low;
      float bias = 0;
      if (rows.kind != Rows::exact && row < rows.count) {
        bias = args_.bias_all;
        if (args_.step.pool.bias != nullptr) {
          const std::int64_t page = load_after_wait(view_.pages + rows.first / kPageRows);
          bias = rows.kind == Rows::made
                     ? shared_.fresh.bias
                     : load_after_wait(args_.step.pool.bias + page * kPageRows + row);
        }
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float score = s_[c / 2 * 4 + 2 * low + (c & 1)];
        x[c][low] = row < rows.count ? fmaf(score, factor, bias * kLog2e) : -INFINITY;
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
  WarpsBarrier barrier_;
  int group_, thread_, lane_, warp_;
  float top_[4], sum_[4];
  float s_[8];
  float o_[kOutputTiles][8];
};

}  // namespace lca::cuda::decoding::streaming
