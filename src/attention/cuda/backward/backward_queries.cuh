#pragma once
/// The queries kernel on Hopper (backward_queries_sm90.cu): its widths, its shared memory, and what
/// a consumer warp group does with the keys that pass by its queries.

#include "attention/cuda/backward/backward_launch.cuh"
#include "attention/cuda/prefill/prefill_tiles.cuh"
#include "attention/cuda/rotate.cuh"

namespace lca::cuda {

/// A block of keys is held until dQ has read it, which is under way while S of the next block is:
/// a third stage hides its load. Values are read once.
template <int Nope, int Rope, int Value, int Keys, int ValueStages, bool Tight, bool Entry = false>
struct QueriesConfig {
  static constexpr bool kEntry = Entry;
  /// Too few registers for S, dP and dS at the same time: dP is issued after the exponentials,
  /// and P waits as bf16.
  static constexpr bool kTight = Tight;
  static constexpr int kRegisters = 232;
  static constexpr int kProducerRegisters = producer_registers(kRegisters);
  static constexpr int kNope = Nope, kRope = Rope, kScore = Nope + Rope, kValue = Value;
  static constexpr int kKeys = Keys, kKeyStages = 3, kValueStages = ValueStages;
  static constexpr int kRotated = Rope > 0 ? Rope : Nope;  // columns that have two forms
  static constexpr int kQueryBytes = kQueries * kScore * 2, kDoutBytes = kQueries * Value * 2;
  static constexpr int kFarBytes = Entry ? kQueries * kRotated * 2 : 0;
  static constexpr int kKeyBytes = Keys * kScore * 2, kValueBytes = Keys * Value * 2;
  static_assert(Nope % 64 == 0 && Rope % 64 == 0 && Value % 64 == 0 && Keys % 16 == 0);
};

struct QueriesParams : BackwardParams {
  Layout32 layout;
  const BackwardRun* runs;
  int run_count, items;
  Heads heads;
  RotationView rotation;
  GradRows q_nope, q_rope;
};

struct QueryWork : QueryTile {
  std::int64_t stat_row;  // of its first query
};

/// What consumers must know of a block of keys, beside it.
struct alignas(16) BlockNote {
  std::int32_t kind;    // BlockKind
  std::int32_t base;    // position, or representative, of its first key
  std::int32_t masked;  // whether some query does not see some key
  std::int32_t clear;   // ClearNote of keys that are not the document's
};

template <typename C>
struct QueriesShared {
  alignas(1024) unsigned char query[C::kQueryBytes];
  alignas(1024) unsigned char dout[C::kDoutBytes];
  alignas(1024) unsigned char far[C::kEntry ? C::kFarBytes : 16];
  alignas(1024) unsigned char key[C::kKeyStages][C::kKeyBytes];
  alignas(1024) unsigned char value[C::kValueStages][C::kValueBytes];
  alignas(16) float bias[C::kKeyStages][C::kKeys];
  BlockNote notes[C::kKeyStages];
  ItemQueue<QueryWork> queue;
  LoadBarrier query_full, dout_full, key_full[C::kKeyStages], value_full[C::kValueStages];
  Barrier query_empty, dout_empty, key_empty[C::kKeyStages], value_empty[C::kValueStages];
  Barrier cleared;
};

/// Accumulator i of a thread: row lane/4 (+ 8 where i & 2), column 8·(i/4) + 2·(lane%4) + (i & 1).
template <typename C>
class QueriesConsumer {
 public:
  __device__ __forceinline__ QueriesConsumer(const QueriesParams& params, QueriesShared<C>& shared,
                                             int group)
      : p_(params), shared_(shared), lane_(threadIdx.x & 31) {
    row_ = group * 64 + (threadIdx.x / 32 & 3) * 16 + lane_ / 4;
    const int rows = group * (64 * 128 / 16);
    query_ = cute::cast_smem_ptr_to_uint(shared.query) / 16 + rows;
    far_ = cute::cast_smem_ptr_to_uint(shared.far) / 16 + rows;
    dout_ = cute::cast_smem_ptr_to_uint(shared.dout) / 16 + rows;
    key_ = cute::cast_smem_ptr_to_uint(shared.key) / 16;
    value_ = cute::cast_smem_ptr_to_uint(shared.value) / 16;
  }

  __device__ __forceinline__ void run() {
    for (std::uint32_t k = 0;; ++k) {
      const QueryWork& tile = shared_.queue.wait(k);
      if (tile.rows == 0) return;
      multiply(tile, k);
      write(tile);
      shared_.queue.done(k).arrive();
    }
  }

 private:
  static constexpr int kKeys = C::kKeys;
  static constexpr int kScores = kKeys / 2;  // accumulators of S and dP

  /// dP, which takes the place of S where registers are few.
  __device__ __forceinline__ float (&dp())[kScores] {
    if constexpr (C::kTight) {
      return s_;
    } else {
      return dp_;
    }
  }

  __device__ __forceinline__ BlockNote note() const { return shared_.notes[keys_ring_.slot]; }

  /// Waits for the next block's keys and clears rows that are not the document's, of its values
  /// too. Returns whether the block is seen by the far form of queries.
  __device__ __forceinline__ bool keys_wait() {
    shared_.key_full[keys_ring_.slot].wait(keys_ring_.phase);
    const BlockNote block = note();
    const bool far = block.kind != static_cast<int>(BlockKind::local);
    if (block.clear == ClearNote::kNone) return far;
    shared_.value_full[values_ring_.slot].wait(values_ring_.phase);
    rows_clear<kKeys, C::kScore>(shared_.key[keys_ring_.slot], block.clear);
    rows_clear<kKeys, C::kValue>(shared_.value[values_ring_.slot], block.clear);
    ClearNote::meet(block.clear, shared_.cleared);
    return far;
  }

  __device__ __forceinline__ void scores_issue(bool far) {
    const std::uint32_t key = key_ + keys_ring_.slot * (C::kKeyBytes / 16);
    accumulators_fence(s_);
    cute::warpgroup_arrive();
    if constexpr (C::kRope == 0) {
      product_panels<kKeys, C::kNope, kQueries, kKeys>(s_, C::kEntry && far ? far_ : query_, key,
                                                       false);
    } else {
      constexpr int kAfter = C::kNope * 2 / 16;  // the RoPE panel, in rows of 16 bytes
      product_panels<kKeys, C::kNope, kQueries, kKeys>(s_, query_, key, false);
      product_panels<kKeys, C::kRope, kQueries, kKeys>(
          s_, C::kEntry && far ? far_ : query_ + kQueries * kAfter, key + kKeys * kAfter, true);
    }
    cute::warpgroup_commit_batch();
    accumulators_fence(s_);
  }
  __device__ __forceinline__ void dprobabilities_issue() {
    shared_.value_full[values_ring_.slot].wait(values_ring_.phase);
    accumulators_fence(dp());
    cute::warpgroup_arrive();
    product_panels<kKeys, C::kValue, kQueries, kKeys>(
        dp(), dout_, value_ + values_ring_.slot * (C::kValueBytes / 16), false);
    cute::warpgroup_commit_batch();
    accumulators_fence(dp());
  }
  __device__ __forceinline__ void dqueries_issue(int slot, bool add) {
    accumulators_fence(dq_);
    cute::warpgroup_arrive();
    product_rows<C::kScore, kKeys>(dq_, dscores_, key_ + slot * (C::kKeyBytes / 16), add);
    cute::warpgroup_commit_batch();
    accumulators_fence(dq_);
  }

  /// S to P.
  __device__ __forceinline__ void exponentiate(const QueryWork& tile) {
    const BlockNote block = note();
    float shift = 0;
    if (block.kind == static_cast<int>(BlockKind::groups)) {
      shift = p_.bias_all;
      if (p_.bias != nullptr) {
        const float* const bias = shared_.bias[keys_ring_.slot] + 2 * (lane_ & 3);
        const float unscale = 1.0f / p_.scale_log2;
#pragma unroll
        for (int i = 0; i < kScores; i += 4) {
          const float2 b = *reinterpret_cast<const float2*>(bias + 2 * i);
          s_[i] = fmaf(b.x, unscale, s_[i]);
          s_[i + 1] = fmaf(b.y, unscale, s_[i + 1]);
          s_[i + 2] = fmaf(b.x, unscale, s_[i + 2]);
          s_[i + 3] = fmaf(b.y, unscale, s_[i + 3]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float minus = shift - lse_[r];
#pragma unroll
      for (int i = 0; i < kScores; i += 4) {
        s_[i + 2 * r] = exp2_fast(fmaf(s_[i + 2 * r], p_.scale_log2, minus));
        s_[i + 2 * r + 1] = exp2_fast(fmaf(s_[i + 2 * r + 1], p_.scale_log2, minus));
      }
    }
    if (block.masked) mask(tile, {static_cast<BlockKind>(block.kind), block.base});
    if constexpr (C::kTight) {
#pragma unroll
      for (int i = 0; i < kScores; i += 2) probabilities_[i / 2] = pack_bf16(s_[i], s_[i + 1]);
    }
  }

  __device__ __forceinline__ void mask(const QueryWork& tile, const Block& block) {
    const int column = block.base + 2 * (lane_ & 3);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Row row = row_of(p_.layout, tile, row_ + 8 * r);
      const Span span = row_span<true>(row, tile, block.kind);
      const unsigned from_low = column - span.low;
#pragma unroll
      for (int i = 0; i < kScores; i += 4) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (from_low + 2 * i + j >= span.count) s_[i + 2 * r + j] = 0;
        }
      }
    }
  }

  /// P and dP to dS.
  __device__ __forceinline__ void differentiate() {
#pragma unroll
    for (int i = 0; i < kScores; i += 2) {
      const float d = delta_[i >> 1 & 1];
      float2 p{s_[i], s_[i + 1]};
      if constexpr (C::kTight) p = unpack_bf16(probabilities_[i / 2]);
      dscores_[i / 2] = pack_bf16(p.x * (dp()[i] - d), p.y * (dp()[i + 1] - d));
    }
  }

  /// The gradient of the far form to that of the query itself.
  __device__ __forceinline__ void rotate_back(const QueryWork& tile) {
    constexpr int kFrom = (C::kScore - C::kRotated) / 2;  // first accumulator
    constexpr int kPairs = C::kRotated / 2;
    const int quad = lane_ & 3;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int position = min(tile.first + row_ + 8 * r, tile.last);
      const int shift = p_.layout.position_shift(position + 1);
      if (shift == 0) continue;
      if (p_.rotation.layout == RopeLayout::halves) {
#pragma unroll
        for (int c = 0; c < kPairs / 8; ++c) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const Turn turn = turn_of(__ldg(p_.rotation.steps + 8 * c + 2 * quad + j), shift);
            float& x = dq_[kFrom + 4 * c + 2 * r + j];
            float& y = dq_[kFrom + 4 * (c + kPairs / 8) + 2 * r + j];
            const float2 turned = turn(x, y);
            x = turned.x;
            y = turned.y;
          }
        }
      } else {
#pragma unroll
        for (int c = 0; c < kPairs / 4; ++c) {
          const Turn turn = turn_of(__ldg(p_.rotation.steps + 4 * c + quad), shift);
          float& x = dq_[kFrom + 4 * c + 2 * r];
          float& y = dq_[kFrom + 4 * c + 2 * r + 1];
          const float2 turned = turn(x, y);
          x = turned.x;
          y = turned.y;
        }
      }
    }
  }

  __device__ __forceinline__ void multiply(const QueryWork& tile, std::uint32_t k) {
    const int blocks = tile.blocks();
    const int far = tile.sink_blocks + tile.group_blocks;
#pragma unroll
    for (int r = 0; r < 2; ++r) {  // statistics are there for whole tiles
      const std::int64_t at = tile.head * p_.stat_rows + tile.stat_row + row_ + 8 * r;
      lse_[r] = __ldg(p_.lse + at);
      delta_[r] = __ldg(p_.delta + at);
    }
    shared_.query_full.wait(k & 1);
    scores_issue(keys_wait());
    shared_.dout_full.wait(k & 1);
    if constexpr (!C::kTight) dprobabilities_issue();
    cute::warpgroup_wait<C::kTight ? 0 : 1>();
    accumulators_fence(s_);
    if (blocks == 1) warp_arrive(shared_.query_empty);
    exponentiate(tile);
    if constexpr (C::kTight) dprobabilities_issue();
    int before = 0;
    for (int n = 0; n + 1 < blocks; ++n) {
      cute::warpgroup_wait<0>();  // dP(n), and dQ(n − 1)
      accumulators_fence(dp());
      accumulators_fence(dq_);
      if (n > 0) shared_.key_empty[before].arrive();
      before = keys_ring_.slot;
      warp_arrive(shared_.value_empty[values_ring_.slot]);
      if (C::kEntry && n > 0 && n == far) rotate_back(tile);
      differentiate();
      keys_ring_.next();
      values_ring_.next();
      scores_issue(keys_wait());
      dqueries_issue(before, n > 0);
      if constexpr (!C::kTight) dprobabilities_issue();
      cute::warpgroup_wait<C::kTight ? 1 : 2>();
      accumulators_fence(s_);
      if (n + 2 == blocks) warp_arrive(shared_.query_empty);  // the next tile's may come
      exponentiate(tile);
      if constexpr (C::kTight) dprobabilities_issue();
    }
    cute::warpgroup_wait<0>();
    accumulators_fence(dp());
    accumulators_fence(dq_);
    warp_arrive(shared_.dout_empty);
    if (blocks > 1) shared_.key_empty[before].arrive();
    warp_arrive(shared_.value_empty[values_ring_.slot]);
    if (C::kEntry && blocks > 1 && blocks - 1 == far) rotate_back(tile);
    differentiate();
    dqueries_issue(keys_ring_.slot, blocks > 1);
    cute::warpgroup_wait<0>();
    accumulators_fence(dq_);
    shared_.key_empty[keys_ring_.slot].arrive();
    keys_ring_.next();
    values_ring_.next();
  }

  __device__ __forceinline__ void write(const QueryWork& tile) {
    const GradRows& nope = C::kRope > 0 ? p_.q_nope : p_.q_rope;
    const int quad = lane_ & 3;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row_ + 8 * r;
      const bool real = row < tile.rows;
      const std::int64_t at = tile.query_row + row;
      if (nope.data != nullptr) {
        row_write<0, C::kNope>(dq_, r, p_.scale, real,
                               nope.data + at * nope.row_stride + tile.head * nope.head_stride,
                               quad);
      }
      if constexpr (C::kRope > 0) {
        const GradRows& rope = p_.q_rope;
        if (rope.data != nullptr) {
          row_write<C::kNope, C::kRope>(
              dq_, r, p_.scale, real,
              rope.data + at * rope.row_stride + tile.head * rope.head_stride, quad);
        }
      }
    }
  }

  const QueriesParams& p_;
  QueriesShared<C>& shared_;
  int lane_, row_;
  std::uint32_t query_, far_, dout_, key_, value_;  // shared memory, in units of 16 bytes
  RingPhase<C::kKeyStages> keys_ring_;
  RingPhase<C::kValueStages> values_ring_;
  float lse_[2], delta_[2];
  float s_[kScores], dp_[C::kTight ? 1 : kScores], dq_[C::kScore / 2];
  std::uint32_t dscores_[kScores / 2], probabilities_[C::kTight ? kScores / 2 : 1];
};

}  // namespace lca::cuda
