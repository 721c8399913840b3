#pragma once
/// The keys kernel on Hopper (backward_keys_sm90.cu): its widths, its shared memory, and what a
/// consumer warp group does with the tiles that pass by its keys.

#include "attention/cuda/backward/backward_launch.cuh"
#include "attention/cuda/backward/backward_tiles.cuh"

namespace lca::cuda {

template <int Nope, int Rope, int Value, int Tile, int Stages, bool Tight>
struct KeysConfig {
  /// Too few registers for P and dSᵀ at the same time: dSᵀ takes the place of P after dV.
  static constexpr bool kTight = Tight;
  static constexpr int kRegisters = Nope + Rope + Value > 256 ? 240 : 232;
  static constexpr int kProducerRegisters = producer_registers(kRegisters);
  static constexpr int kNope = Nope, kRope = Rope, kScore = Nope + Rope, kValue = Value;
  static constexpr int kTile = Tile, kStages = Stages;
  static constexpr int kKeyBytes = kKeyBlock * kScore * 2, kValueBytes = kKeyBlock * Value * 2;
  static constexpr int kQueryBytes = Tile * kScore * 2, kDoutBytes = Tile * Value * 2;
  static_assert(Nope % 64 == 0 && Rope % 64 == 0 && Value % 64 == 0);
  static_assert(kStatAlign % Tile == 0);
};

struct KeysParams : BackwardParams {
  KeyItems items;
  KeyGrads exact, groups;
  float *rope_partials, *bias_partials;  // MLA
  std::int64_t keys;
  float* dbias;  // GQA's; MLA's says only whether it is wanted
};

/// What consumers must know of a tile, beside it.
struct alignas(16) TileNote {
  std::int32_t position;  // of its first query
  std::int32_t masked;    // whether some key is not seen by some query
  std::int32_t clear;     // ClearNote of queries after the document's end
};

template <typename C>
struct KeysShared {
  alignas(1024) unsigned char key[C::kKeyBytes];
  alignas(1024) unsigned char value[C::kValueBytes];
  alignas(1024) unsigned char query[C::kStages][C::kQueryBytes];
  alignas(1024) unsigned char dout[C::kStages][C::kDoutBytes];
  alignas(128) float lse[C::kStages][C::kTile];
  alignas(128) float delta[C::kStages][C::kTile];
  float bias[kKeyBlock];          // in powers of two
  float2 sums[kConsumerThreads];  // dbias: each thread its two rows
  TileNote notes[C::kStages];
  ItemQueue<KeyItem> queue;
  LoadBarrier keys_full, values_full, tile_full[C::kStages];
  Barrier keys_empty, values_empty, tile_empty[C::kStages];
  Barrier cleared;
};

/// Accumulator i of a thread: row lane/4 (+ 8 where i & 2), column 8·(i/4) + 2·(lane%4) + (i & 1).
template <typename C>
class KeysConsumer {
 public:
  __device__ __forceinline__ KeysConsumer(const KeysParams& params, KeysShared<C>& shared,
                                          int group)
      : p_(params), shared_(shared), lane_(threadIdx.x & 31) {
    row_ = group * 64 + (threadIdx.x / 32 & 3) * 16 + lane_ / 4;
    key_ = cute::cast_smem_ptr_to_uint(shared.key) / 16 + group * (64 * 128 / 16);
    value_ = cute::cast_smem_ptr_to_uint(shared.value) / 16 + group * (64 * 128 / 16);
    query_ = cute::cast_smem_ptr_to_uint(shared.query) / 16;
    dout_ = cute::cast_smem_ptr_to_uint(shared.dout) / 16;
  }

  __device__ __forceinline__ void run() {
    for (std::uint32_t k = 0;; ++k) {
      const KeyItem& item = shared_.queue.wait(k);
      if (item.rows == 0) return;
      multiply(item, k);
      if (item.partial == nullptr) {
        write(item);
      } else {
        write_partial(item);
      }
      shared_.queue.done(k).arrive();
    }
  }

 private:
  static constexpr int kTile = C::kTile;
  static constexpr int kScores = kTile / 2;  // accumulators of Sᵀ and dPᵀ
  static constexpr bool kTight = C::kTight;

  __device__ __forceinline__ std::uint32_t* dscores() { return kTight ? probabilities_ : dscores_; }

  /// dPᵀ, which takes the place of Sᵀ there too.
  __device__ __forceinline__ float (&dp())[kScores] {
    if constexpr (kTight) {
      return s_;
    } else {
      return dp_;
    }
  }

  /// Waits for a tile, and clears queries after the document's end.
  __device__ __forceinline__ void tile_wait() {
    shared_.tile_full[ring_.slot].wait(ring_.phase);
    const std::int32_t clear = shared_.notes[ring_.slot].clear;
    if (clear == ClearNote::kNone) return;
    rows_clear<kTile, C::kScore>(shared_.query[ring_.slot], clear);
    rows_clear<kTile, C::kValue>(shared_.dout[ring_.slot], clear);
    ClearNote::meet(clear, shared_.cleared);
  }

  __device__ __forceinline__ void scores_issue() {
    accumulators_fence(s_);
    cute::warpgroup_arrive();
    product_panels<kTile, C::kScore, kKeyBlock, kTile>(
        s_, key_, query_ + ring_.slot * (C::kQueryBytes / 16), false);
    cute::warpgroup_commit_batch();
    accumulators_fence(s_);
  }
  __device__ __forceinline__ void dprobabilities_issue() {
    accumulators_fence(dp());
    cute::warpgroup_arrive();
    product_panels<kTile, C::kValue, kKeyBlock, kTile>(
        dp(), value_, dout_ + ring_.slot * (C::kDoutBytes / 16), false);
    cute::warpgroup_commit_batch();
    accumulators_fence(dp());
  }
  __device__ __forceinline__ void dvalues_issue(bool add) {
    accumulators_fence(dv_);
    cute::warpgroup_arrive();
    product_rows<C::kValue, kTile>(dv_, probabilities_, dout_ + ring_.slot * (C::kDoutBytes / 16),
                                   add);
    cute::warpgroup_commit_batch();
    accumulators_fence(dv_);
  }
  __device__ __forceinline__ void dkeys_issue(int slot, bool add) {
    accumulators_fence(dk_);
    cute::warpgroup_arrive();
    product_rows<C::kScore, kTile>(dk_, dscores(), query_ + slot * (C::kQueryBytes / 16), add);
    cute::warpgroup_commit_batch();
    accumulators_fence(dk_);
  }

  /// Sᵀ to P.
  __device__ __forceinline__ void exponentiate(const KeyItem& item) {
    const TileNote note = shared_.notes[ring_.slot];
    const float* const lse = shared_.lse[ring_.slot] + 2 * (lane_ & 3);
    const float bias[2] = {shared_.bias[row_], shared_.bias[row_ + 8]};
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      const float2 top = *reinterpret_cast<const float2*>(lse + 2 * i);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        s_[i + 2 * r] = exp2_fast(fmaf(s_[i + 2 * r], p_.scale_log2, bias[r] - top.x));
        s_[i + 2 * r + 1] = exp2_fast(fmaf(s_[i + 2 * r + 1], p_.scale_log2, bias[r] - top.y));
      }
    }
    if (note.masked) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const auto queries = row_queries(item, r);
        const unsigned from = note.position + 2 * (lane_ & 3) - queries.begin;
        const unsigned seen = queries.end - queries.begin;
#pragma unroll
        for (int i = 0; i < kScores; i += 4) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            if (from + 2 * i + j >= seen) s_[i + 2 * r + j] = 0;
          }
        }
      }
    }
    if (!kTight) probabilities_pack();
  }

  __device__ __forceinline__ void probabilities_pack() {
#pragma unroll
    for (int i = 0; i < kScores; i += 2) probabilities_[i / 2] = pack_bf16(s_[i], s_[i + 1]);
  }

  /// The queries that see a thread's first or second key; those of the last where there is none.
  __device__ __forceinline__ BasicRange<std::int32_t> row_queries(const KeyItem& item, int r) {
    return key_queries(p_.items.layout, item.kind, item.base + min(row_ + 8 * r, item.rows - 1),
                       item.count);
  }

  __device__ __forceinline__ bool sums_wanted(const KeyItem& item) {
    return p_.dbias != nullptr && item.kind == KeyKind::groups;
  }

  /// Adds dSᵀ over queries.
  __device__ __forceinline__ void bias_add() {
    float2& sums = shared_.sums[threadIdx.x - 128];
    float2 sum = sums;
#pragma unroll
    for (int i = 0; i < kScores / 2; i += 2) {
      const float2 a = unpack_bf16(dscores()[i]), b = unpack_bf16(dscores()[i + 1]);
      sum.x += a.x + a.y;
      sum.y += b.x + b.y;
    }
    sums = sum;
  }

  /// dPᵀ to dSᵀ.
  __device__ __forceinline__ void differentiate() {
    const float* const delta = shared_.delta[ring_.slot] + 2 * (lane_ & 3);
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      const float2 d = *reinterpret_cast<const float2*>(delta + 2 * i);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const std::uint32_t both = probabilities_[i / 2 + r];
        const float x = __uint_as_float(both << 16) * (dp()[i + 2 * r] - d.x);
        const float y = __uint_as_float(both & 0xffff0000u) * (dp()[i + 2 * r + 1] - d.y);
        dscores()[i / 2 + r] = pack_bf16(x, y);
      }
    }
  }

  __device__ __forceinline__ void multiply(const KeyItem& item, std::uint32_t k) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float bias = 0;
      if (item.kind == KeyKind::groups) {
        bias = p_.bias_all;
        if (p_.bias != nullptr) {
          const std::int64_t at = item.key_row + min(row_ + 8 * r, item.rows - 1);
          bias = __ldg(p_.bias + at * p_.bias_heads + item.kv % p_.bias_heads) * kLog2e;
        }
      }
      if ((lane_ & 3) == 0) shared_.bias[row_ + 8 * r] = bias;  // one lane of a quad
    }
    shared_.sums[threadIdx.x - 128] = {0, 0};
    __syncwarp();
    const int all = item.step_end - item.step_begin;
    shared_.keys_full.wait(k & 1);
    if (all == 0) {  // a slice of fewer tiles than slices
      warp_arrive(shared_.keys_empty);
      shared_.values_full.wait(k & 1);
      warp_arrive(shared_.values_empty);
#pragma unroll
      for (float& x : dk_) x = 0;
#pragma unroll
      for (float& x : dv_) x = 0;
      return;
    }
    tile_wait();
    scores_issue();
    cute::warpgroup_wait<0>();
    accumulators_fence(s_);
    if (all == 1) warp_arrive(shared_.keys_empty);
    exponentiate(item);
    if (kTight) probabilities_pack();
    shared_.values_full.wait(k & 1);
    for (int n = 0; n + 1 < all; ++n) {
      dprobabilities_issue();
      dvalues_issue(n > 0);
      cute::warpgroup_wait<kTight ? 0 : 1>();
      accumulators_fence(dp());
      if constexpr (kTight) accumulators_fence(dv_);
      differentiate();
      if (sums_wanted(item)) bias_add();
      const int slot = ring_.slot;
      ring_.next();
      tile_wait();
      scores_issue();
      dkeys_issue(slot, n > 0);
      cute::warpgroup_wait<1>();
      accumulators_fence(s_);
      if (n + 2 == all) warp_arrive(shared_.keys_empty);  // the next item's may come
      exponentiate(item);
      cute::warpgroup_wait<0>();
      accumulators_fence(dk_);
      if constexpr (!kTight) accumulators_fence(dv_);
      shared_.tile_empty[slot].arrive();
      if (kTight) probabilities_pack();
    }
    dprobabilities_issue();
    dvalues_issue(all > 1);
    cute::warpgroup_wait<kTight ? 0 : 1>();
    accumulators_fence(dp());
    warp_arrive(shared_.values_empty);
    differentiate();
    if (sums_wanted(item)) bias_add();
    dkeys_issue(ring_.slot, all > 1);
    cute::warpgroup_wait<0>();
    accumulators_fence(dv_);
    accumulators_fence(dk_);
    shared_.tile_empty[ring_.slot].arrive();
    ring_.next();
  }

  /// The sums of a slice: dK, dV, dbias.
  __device__ __forceinline__ void write_partial(const KeyItem& item) {
    const int quad = lane_ & 3;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = bias_sum(r);
      const int row = row_ + 8 * r;
      if (row >= item.rows) continue;
      float* const to = item.partial +
                        static_cast<std::int64_t>(row) * p_.items.kv_heads * p_.items.partial_width;
#pragma unroll
      for (int i = 0; i < C::kScore / 2; i += 4) {
        *reinterpret_cast<float2*>(to + 2 * i + 2 * quad) =
            float2{dk_[i + 2 * r], dk_[i + 2 * r + 1]};
      }
#pragma unroll
      for (int i = 0; i < C::kValue / 2; i += 4) {
        *reinterpret_cast<float2*>(to + C::kScore + 2 * i + 2 * quad) =
            float2{dv_[i + 2 * r], dv_[i + 2 * r + 1]};
      }
      if (quad == 0) to[C::kScore + C::kValue] = sum;
    }
  }

  __device__ __forceinline__ float bias_sum(int r) {
    const float2 sums = shared_.sums[threadIdx.x - 128];
    float sum = r == 0 ? sums.x : sums.y;
    sum += __shfl_xor_sync(~0u, sum, 1);
    return sum + __shfl_xor_sync(~0u, sum, 2);
  }

  __device__ __forceinline__ void write(const KeyItem& item) {
    const bool groups = item.kind == KeyKind::groups;
    const KeyGrads& to = groups ? p_.groups : p_.exact;
    const GradRows& key = C::kRope > 0 ? to.nope : to.rope;
    const int quad = lane_ & 3;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row_ + 8 * r;
      const bool real = row < item.rows;
      const std::int64_t at = item.key_row + row;
      if (key.data != nullptr) {
        row_write<0, C::kNope>(dk_, r, p_.scale, real,
                               key.data + at * key.row_stride + item.kv * key.head_stride, quad);
      }
      if (to.value.data != nullptr) {
        row_write<0, C::kValue>(
            dv_, r, 1.0f, real,
            to.value.data + at * to.value.row_stride + item.kv * to.value.head_stride, quad);
      }
      if constexpr (C::kRope > 0) {
        if (real) {
          float* const partial =
              p_.rope_partials + (item.kv * p_.keys + item.key_index + row) * C::kRope + 2 * quad;
#pragma unroll
          for (int i = C::kNope / 2; i < C::kScore / 2; i += 4) {
            *reinterpret_cast<float2*>(partial + 2 * i - C::kNope) =
                float2{dk_[i + 2 * r], dk_[i + 2 * r + 1]};
          }
        }
      }
      const float sum = bias_sum(r);
      if (sums_wanted(item) && real && quad == 0) {
        if constexpr (C::kRope > 0) {
          p_.bias_partials[item.kv * p_.keys + item.key_index + row] = sum;
        } else {
          p_.dbias[at * p_.bias_heads + item.kv] = sum;
        }
      }
    }
  }

  const KeysParams& p_;
  KeysShared<C>& shared_;
  int lane_, row_;
  std::uint32_t key_, value_, query_, dout_;  // shared memory, in units of 16 bytes
  RingPhase<C::kStages> ring_;
  float s_[kScores], dp_[kTight ? 1 : kScores];
  float dk_[C::kScore / 2], dv_[C::kValue / 2];
  std::uint32_t probabilities_[kScores / 2], dscores_[kTight ? 1 : kScores / 2];
};

}  // namespace lca::cuda
