/// Gradients of keys, values and biases on Hopper.
///
/// Shapes     a block of 128 keys of one KV head stays, tiles of `Tile` queries of the heads it
///            serves pass by. Score width 128+64 (MLA), 128, 64 (GQA); value width 128, 128, 64.
/// Products   transposed, keys as rows: Sᵀ = K·Qᵀ and dPᵀ = V·dOᵀ from shared memory, then
///            dV += Pᵀ·dO and dK += dSᵀ·Q with Pᵀ and dSᵀ from registers. A key's row never leaves
///            its thread group: nothing is exchanged, and gradients are written once.
/// Order      of a tile: [Sᵀ(n+1), dK(n)] are issued together, exponentials of n + 1 run under
///            dK(n); then [dPᵀ, dV], and dSᵀ is made under dV. Sᵀ and dPᵀ never live at the same
///            time: P waits as bf16.
/// Sums       over heads and tiles in one thread, heads ascending, tiles of a head descending. A
///            column of keys that is too long for one item is cut into slices of that sequence,
///            whose sums in float32 are added slice 0 first (backward_prepare.cu).
/// Memory     128+64/128: K 48, V 32 KiB, 3 stages × (Q 24 + dO 16.5 KiB) = 202 KiB of 227.
///            Registers: dK 96 + dV 64 + Sᵀ or dPᵀ 32 + P 16 + dS 16 of 240.
/// Bounds     DeepSeek-V2-Lite, g 16, w 1024, 64K: 3.2 G pairs × 1280 FLOP = 4.1 TFLOP, 5.2 ms at
///            782 TFLOP/s.

#include <lca/error.h>

#include <algorithm>

#include "attention/cuda/backward/backward_hopper.cuh"
#include "attention/cuda/backward/backward_tiles.cuh"

namespace lca::cuda {
namespace {

template <int Nope, int Rope, int Value, int Tile, int Stages, bool Tight>
struct KeysConfig {
  /// Too few registers for P and dSᵀ at the same time: dSᵀ takes the place of P after dV.
  static constexpr bool kTight = Tight;
  static constexpr int kNope = Nope, kRope = Rope, kScore = Nope + Rope, kValue = Value;
  static constexpr int kTile = Tile, kStages = Stages;
  static constexpr int kKeyBytes = kKeyBlock * kScore * 2, kValueBytes = kKeyBlock * Value * 2;
  static constexpr int kQueryBytes = Tile * kScore * 2, kDoutBytes = Tile * Value * 2;
  static_assert(Nope % 64 == 0 && Rope % 64 == 0 && Value % 64 == 0);
  static_assert(kStatAlign % Tile == 0);
};

struct KeysParams {
  KeyItems items;
  int* counter;
  const float *lse, *delta;
  std::int64_t stat_rows;
  float scale, scale_log2;
  const float* bias;
  int bias_heads;
  float bias_all;  // in powers of two
  KeyGrads exact, groups;
  float *rope_partials, *bias_partials;  // MLA
  std::int64_t keys;
  float* dbias;  // GQA's; MLA's says only whether it is wanted
};

struct KeysMaps {
  CUtensorMap q_nope, q_rope, far, dout;
  CUtensorMap k_nope, k_rope, value, group_nope, group_rope, group_value;
};

/// What consumers must know of a tile, beside it.
struct TileNote {
  std::int32_t position;  // of its first query
  std::int32_t rows;      // queries that exist
  std::int32_t masked;    // whether some key is not seen by some query
};

template <typename C>
struct KeysShared {
  alignas(1024) unsigned char key[C::kKeyBytes];
  alignas(1024) unsigned char value[C::kValueBytes];
  alignas(1024) unsigned char query[C::kStages][C::kQueryBytes];
  alignas(1024) unsigned char dout[C::kStages][C::kDoutBytes];
  alignas(128) float lse[C::kStages][C::kTile];
  alignas(128) float delta[C::kStages][C::kTile];
  float bias[kKeyBlock];                  // in powers of two
  float2 sums[128 * kBackwardConsumers];  // dbias: each thread its two rows
  TileNote notes[C::kStages];
  KeyItem items[2];
  LoadBarrier keys_full, values_full, tile_full[C::kStages];
  Barrier keys_empty, values_empty, tile_empty[C::kStages];
  Barrier item_full[2], item_empty[2];
};

// --- producer ------------------------------------------------------------------------------------

template <typename C>
__device__ __forceinline__ void keys_schedule(const KeysParams& p, KeysShared<C>& shared) {
  int run = 0;
  int index = blockIdx.x;
  for (std::uint32_t k = 0;; ++k) {
    const bool real = index < p.items.items;
    const int next = real ? gridDim.x + atomicAdd(p.counter, 1) : index;
    KeyItem& item = shared.items[k & 1];
    shared.item_empty[k & 1].wait((k >> 1 & 1) ^ 1);
    if (real) {
      item_fill<C::kTile>(p.items, index, run, item);
    } else {
      item.rows = 0;
    }
    shared.item_full[k & 1].arrive();
    if (!real) return;
    index = next;
  }
}

template <typename C>
__device__ __forceinline__ void keys_load(const KeysParams& p, const KeysMaps& maps,
                                          KeysShared<C>& shared) {
  constexpr int kTile = C::kTile;
  RingPhase<C::kStages> ring;
  for (std::uint32_t k = 0;; ++k) {
    shared.item_full[k & 1].wait(k >> 1 & 1);
    const KeyItem& item = shared.items[k & 1];
    if (item.rows == 0) return;
    const bool groups = item.kind == KeyKind::groups;
    const bool far = item.kind != KeyKind::local;
    shared.keys_empty.wait((k & 1) ^ 1);
    shared.keys_full.arrive_and_expect_tx(C::kKeyBytes);
    panels_load<kKeyBlock, C::kNope>(groups ? maps.group_nope : maps.k_nope, shared.keys_full,
                                     shared.key, item.kv, item.key_row);
    if constexpr (C::kRope > 0) {
      panels_load<kKeyBlock, C::kRope>(groups ? maps.group_rope : maps.k_rope, shared.keys_full,
                                       shared.key + kKeyBlock * C::kNope * 2, 0, item.key_row);
    }
    // Values are needed after the first tile, and free later than the keys.
    const auto values_load = [&] {
      shared.values_empty.wait((k & 1) ^ 1);
      shared.values_full.arrive_and_expect_tx(C::kValueBytes);
      panels_load<kKeyBlock, C::kValue>(groups ? maps.group_value : maps.value, shared.values_full,
                                        shared.value, item.kv, item.key_row);
    };
    if (item.step_begin == item.step_end) values_load();
    const CUtensorMap& nope = C::kRope == 0 && far ? maps.far : maps.q_nope;
    const CUtensorMap& rope = far ? maps.far : maps.q_rope;
    int h = item.head + item.step_begin / item.tile_count;
    int t = item.tile_first + item.tile_count - 1 - item.step_begin % item.tile_count;
    for (int n = item.step_begin; n < item.step_end; ++n) {
      const std::int64_t stats = h * p.stat_rows + item.stat_row + t * kTile;
      const int row = item.query_row + t * kTile;
      LoadBarrier& full = shared.tile_full[ring.slot];
      shared.tile_empty[ring.slot].wait(ring.phase ^ 1);
      const int position = t * kTile;
      shared.notes[ring.slot] = {position, min(kTile, item.count - position),
                                 position < item.all_begin || position + kTile > item.all_end};
      full.arrive_and_expect_tx(C::kQueryBytes + C::kDoutBytes + 2 * kTile * 4);
      panels_load<kTile, C::kNope>(nope, full, shared.query[ring.slot], h, row);
      panels_load<kTile, C::kRope>(rope, full, shared.query[ring.slot] + kTile * C::kNope * 2, h,
                                   row);
      cute::SM90_BULK_COPY_G2S::copy(p.lse + stats, reinterpret_cast<std::uint64_t*>(&full),
                                     shared.lse[ring.slot], kTile * 4);
      panels_load<kTile, C::kValue>(maps.dout, full, shared.dout[ring.slot], h, row);
      cute::SM90_BULK_COPY_G2S::copy(p.delta + stats, reinterpret_cast<std::uint64_t*>(&full),
                                     shared.delta[ring.slot], kTile * 4);
      ring.next();
      if (n == item.step_begin) values_load();
      if (--t < item.tile_first) {
        t += item.tile_count;
        ++h;
      }
    }
    shared.item_empty[k & 1].arrive();
  }
}

// --- consumers -----------------------------------------------------------------------------------

/// Accumulator i of a thread: row lane/4 (+ 8 where i & 2), column 8·(i/4) + 2·(lane%4) + (i & 1).
template <typename C>
class KeysConsumer {
 public:
  __device__ __forceinline__ KeysConsumer(const KeysParams& params, KeysShared<C>& shared,
                                          int group)
      : p_(params), shared_(shared), group_(group), lane_(threadIdx.x & 31) {
    row_ = group * 64 + (threadIdx.x / 32 & 3) * 16 + lane_ / 4;
    key_ = cute::cast_smem_ptr_to_uint(shared.key) / 16 + group * (64 * 128 / 16);
    value_ = cute::cast_smem_ptr_to_uint(shared.value) / 16 + group * (64 * 128 / 16);
    query_ = cute::cast_smem_ptr_to_uint(shared.query) / 16;
    dout_ = cute::cast_smem_ptr_to_uint(shared.dout) / 16;
  }

  __device__ __forceinline__ void run() {
    for (std::uint32_t k = 0;; ++k) {
      shared_.item_full[k & 1].wait(k >> 1 & 1);
      const KeyItem& item = shared_.items[k & 1];
      if (item.rows == 0) return;
      multiply(item, k);
      if (item.partial == nullptr) {
        write(item);
      } else {
        write_partial(item);
      }
      __syncwarp();
      warp_release(shared_.item_empty[k & 1]);
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

  __device__ __forceinline__ void warp_release(Barrier& barrier) {
    if (lane_ == 0) barrier.arrive();
  }

  /// Waits for a tile, and clears queries after the document's end: even a probability of zero does
  /// not cancel a NaN. Both warp groups clear, each before its own products.
  __device__ __forceinline__ void tile_wait() {
    shared_.tile_full[ring_.slot].wait(ring_.phase);
    const int left = shared_.notes[ring_.slot].rows;
    if (left == kTile) return;
    rows_clear<kTile, C::kScore>(shared_.query[ring_.slot], 0, left);
    rows_clear<kTile, C::kValue>(shared_.dout[ring_.slot], 0, left);
    async_proxy_fence();
    NamedBarrier::sync(128, kBackwardConsumers + group_);
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
    for (int r = 0; r < 2; ++r) {  // a quad's lanes write the same
      float bias = 0;
      if (item.kind == KeyKind::groups) {
        bias = p_.bias_all;
        if (p_.bias != nullptr) {
          const std::int64_t at = item.key_row + min(row_ + 8 * r, item.rows - 1);
          bias = __ldg(p_.bias + at * p_.bias_heads + item.kv % p_.bias_heads) * kLog2e;
        }
      }
      shared_.bias[row_ + 8 * r] = bias;
    }
    shared_.sums[threadIdx.x - 128] = {0, 0};
    __syncwarp();
    const int all = item.step_end - item.step_begin;
    shared_.keys_full.wait(k & 1);
    if (all == 0) {  // a slice of fewer tiles than slices
      warp_release(shared_.keys_empty);
      shared_.values_full.wait(k & 1);
      warp_release(shared_.values_empty);
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
    if (all == 1) warp_release(shared_.keys_empty);
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
      if (n + 2 == all) warp_release(shared_.keys_empty);  // the next item's may come
      exponentiate(item);
      cute::warpgroup_wait<0>();
      accumulators_fence(dk_);
      if constexpr (!kTight) accumulators_fence(dv_);
      warp_release(shared_.tile_empty[slot]);
      if (kTight) probabilities_pack();
    }
    dprobabilities_issue();
    dvalues_issue(all > 1);
    cute::warpgroup_wait<kTight ? 0 : 1>();
    accumulators_fence(dp());
    warp_release(shared_.values_empty);
    differentiate();
    if (sums_wanted(item)) bias_add();
    dkeys_issue(ring_.slot, all > 1);
    cute::warpgroup_wait<0>();
    accumulators_fence(dv_);
    accumulators_fence(dk_);
    warp_release(shared_.tile_empty[ring_.slot]);
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
  int group_, lane_, row_;
  std::uint32_t key_, value_, query_, dout_;  // shared memory, in units of 16 bytes
  RingPhase<C::kStages> ring_;
  float s_[kScores], dp_[kTight ? 1 : kScores];
  float dk_[C::kScore / 2], dv_[C::kValue / 2];
  std::uint32_t probabilities_[kScores / 2], dscores_[kTight ? 1 : kScores / 2];
};

template <typename C>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    keys_kernel(const __grid_constant__ KeysParams params, const __grid_constant__ KeysMaps maps) {
  extern __shared__ unsigned char memory[];
  const std::uint32_t misaligned = cute::cast_smem_ptr_to_uint(memory) & 1023;
  auto& shared = *reinterpret_cast<KeysShared<C>*>(memory + (1024 - misaligned & 1023));
  if (threadIdx.x == 0) {
    constexpr int kWarps = 4 * kBackwardConsumers;
    shared.keys_full.init(1);
    shared.keys_empty.init(kWarps);
    shared.values_full.init(1);
    shared.values_empty.init(kWarps);
    for (int i = 0; i < C::kStages; ++i) {
      shared.tile_full[i].init(1);
      shared.tile_empty[i].init(kWarps);
    }
    for (int i = 0; i < 2; ++i) {
      shared.item_full[i].init(1);
      shared.item_empty[i].init(kWarps + 1);
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    cutlass::arch::warpgroup_reg_dealloc<kBackwardProducerRegisters>();
    if (threadIdx.x == 0) {
      keys_load<C>(params, maps, shared);
    } else if (threadIdx.x == 32) {
      keys_schedule<C>(params, shared);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<kBackwardConsumerRegisters>();
    KeysConsumer<C>(params, shared, __shfl_sync(~0u, threadIdx.x / 128, 0) - 1).run();
  }
}

// --- host ----------------------------------------------------------------------------------------

template <typename C>
void keys_launch(const PrefillBackward& problem, const BackwardPlan& plan,
                 const BackwardSpace& space, const Queue& queue) {
  const Prefill& forward = problem.forward;
  const bool gqa = forward.form == Form::gqa;
  const int kv_heads = key_heads(forward);
  KeysParams params{};
  params.items = {layout32(forward.layout),
                  space.runs,
                  static_cast<int>(plan.runs.size()),
                  static_cast<int>(plan.far_items),
                  static_cast<int>(plan.far_items + plan.local_items),
                  kv_heads,
                  forward.heads / kv_heads,
                  space.far_slices,
                  space.local_slices,
                  C::kScore + C::kValue + kSlicePad};
  params.counter = space.counters;
  params.lse = space.lse;
  params.delta = space.delta;
  params.stat_rows = plan.stat_rows;
  params.scale = forward.scale;
  params.scale_log2 = forward.scale * kLog2e;
  params.bias = forward.bias;
  params.bias_heads = gqa ? kv_heads : 1;
  params.bias_all = forward.bias_all * kLog2e;
  params.exact = problem.exact;
  params.groups = problem.groups;
  params.rope_partials = space.rope_partials;
  params.bias_partials = space.bias_partials;
  params.keys = plan.keys;
  params.dbias = problem.dbias;

  // GQA's key is one part: the kernel knows it as the part without position.
  const HeadRows& q = gqa ? forward.q_rope : forward.q_nope;
  const KeyRows& groups = plan.groups > 0 ? forward.groups : forward.exact;
  const HeadRows far = space.far != nullptr
                           ? head_rows(space.far, forward.heads, forward.q_rope.width)
                           : forward.q_rope;
  KeysMaps maps{};
  maps.q_nope = tensor_map(q, forward.heads, forward.query_rows, C::kTile);
  maps.far = tensor_map(far, forward.heads, forward.query_rows, C::kTile);
  maps.dout = tensor_map(problem.dout, forward.heads, forward.query_rows, C::kTile);
  maps.k_nope = tensor_map(gqa ? forward.exact.rope : forward.exact.nope, kv_heads,
                           forward.exact.rows, kKeyBlock);
  maps.value = tensor_map(forward.exact.value, kv_heads, forward.exact.rows, kKeyBlock);
  maps.group_nope = tensor_map(gqa ? groups.rope : groups.nope, kv_heads, groups.rows, kKeyBlock);
  maps.group_value = tensor_map(groups.value, kv_heads, groups.rows, kKeyBlock);
  if constexpr (C::kRope > 0) {
    maps.q_rope = tensor_map(forward.q_rope, forward.heads, forward.query_rows, C::kTile);
    maps.k_rope = tensor_map(forward.exact.rope, 1, forward.exact.rows, kKeyBlock);
    maps.group_rope = tensor_map(groups.rope, 1, groups.rows, kKeyBlock);
  }

  constexpr std::size_t kBytes = sizeof(KeysShared<C>) + 1024;
  static_assert(kBytes <= 227 * 1024);
  queue.device->shared_allow(reinterpret_cast<const void*>(keys_kernel<C>), kBytes);
  const int blocks = std::min<int>(params.items.items, queue.device->multiprocessors);
  keys_kernel<C><<<blocks, kBackwardThreads, kBytes, queue.stream>>>(params, maps);
  check(cudaGetLastError(), "launching the gradients of keys");
}

using KeysMla = KeysConfig<128, 64, 128, 64, 3, true>;
using KeysGqa128 = KeysConfig<128, 0, 128, 64, 4, false>;
using KeysGqa64 = KeysConfig<64, 0, 64, 128, 4, false>;

}  // namespace

void backward_keys_sm90(const PrefillBackward& problem, const BackwardPlan& plan,
                        const BackwardSpace& space, const Queue& queue) {
#ifdef LCA_VARIANTS
  if (const char* v = getenv("KEYS"); v != nullptr && problem.forward.form == Form::gqa) {
    const bool wide = problem.forward.q_rope.width == 128;
    if (*v == '1' && wide)
      return keys_launch<KeysConfig<128, 0, 128, 96, 3, true>>(problem, plan, space, queue);
    if (*v == '2' && wide)
      return keys_launch<KeysConfig<128, 0, 128, 64, 4, true>>(problem, plan, space, queue);
    if (*v == '1' && !wide)
      return keys_launch<KeysConfig<64, 0, 64, 64, 6, false>>(problem, plan, space, queue);
    if (*v == '2' && !wide)
      return keys_launch<KeysConfig<64, 0, 64, 128, 4, true>>(problem, plan, space, queue);
  }
#endif
  if (problem.forward.form == Form::mla) {
    keys_launch<KeysMla>(problem, plan, space, queue);
  } else if (problem.forward.q_rope.width == 128) {
    keys_launch<KeysGqa128>(problem, plan, space, queue);
  } else {
    keys_launch<KeysGqa64>(problem, plan, space, queue);
  }
}

}  // namespace lca::cuda
