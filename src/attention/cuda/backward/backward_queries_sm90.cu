/// Gradients of queries on Hopper.
///
/// Shapes     a tile of 128 queries of one head stays, blocks of `Keys` keys pass by: the forward
///            pass's virtual list (prefill_tiles.cuh), sink and representatives before the window.
/// Products   S = Q·Kᵀ and dP = dO·Vᵀ from shared memory, then dQ += dS·K with dS from registers.
///            [S(n+1), dQ(n), dP(n+1)] are issued together: exponentials of n + 1 run under the
///            latter two.
/// Positions  with entry positions the tile has its queries in both forms. What sink and
///            representatives gave is rotated back in the accumulators before the window begins.
/// Sums       over blocks in one thread, in the order of the list.
/// Memory     128+64/128, 80 keys: Q 48, far form 16, dO 32 KiB, 2 stages × (K 30 + V 20) KiB =
///            196 KiB of 227. Registers: dQ 96 + S 40 + dP 40 + dS 20 of 240.
/// Bounds     DeepSeek-V2-Lite, g 16, w 1024, 64K: 3.2 G pairs × 1024 FLOP = 3.3 TFLOP, 4.2 ms at
///            782 TFLOP/s.

#include <lca/error.h>

#include <algorithm>

#include "attention/cuda/backward/backward_hopper.cuh"
#include "attention/cuda/prefill/prefill_tiles.cuh"
#include "attention/cuda/rotate.cuh"

namespace lca::cuda {
namespace {

/// A block of keys is held until dQ has read it, which is under way while S of the next block is:
/// a third stage hides its load. Values are read once.
template <int Nope, int Rope, int Value, int Keys, int ValueStages, bool Tight, bool Entry = false>
struct QueriesConfig {
  static constexpr bool kEntry = Entry;
  /// Too few registers for S, dP and dS at the same time: dP is issued after the exponentials,
  /// and P waits as bf16.
  static constexpr bool kTight = Tight;
  static constexpr int kNope = Nope, kRope = Rope, kScore = Nope + Rope, kValue = Value;
  static constexpr int kKeys = Keys, kKeyStages = 3, kValueStages = ValueStages;
  static constexpr int kRotated = Rope > 0 ? Rope : Nope;  // columns that have two forms
  static constexpr int kQueryBytes = kQueries * kScore * 2, kDoutBytes = kQueries * Value * 2;
  static constexpr int kFarBytes = Entry ? kQueries * kRotated * 2 : 0;
  static constexpr int kKeyBytes = Keys * kScore * 2, kValueBytes = Keys * Value * 2;
  static_assert(Nope % 64 == 0 && Rope % 64 == 0 && Value % 64 == 0 && Keys % 16 == 0);
};

struct QueriesParams {
  Layout32 layout;
  const BackwardRun* runs;
  int run_count, items;
  Heads heads;
  int* counter;
  const float *lse, *delta;
  std::int64_t stat_rows;
  float scale, scale_log2;
  const float* bias;
  int bias_heads;
  float bias_all;  // in powers of two
  RotationView rotation;
  GradRows q_nope, q_rope;
};

struct QueriesMaps {
  CUtensorMap q_nope, q_rope, far, dout;
  CUtensorMap k_nope, k_rope, value, group_nope, group_rope, group_value;
};

struct QueryWork : QueryTile {
  std::int64_t stat_row;  // of its first query
};

/// What consumers must know of a block of keys, beside it.
struct BlockNote {
  std::int32_t kind;    // BlockKind
  std::int32_t base;    // position, or representative, of its first key
  std::int32_t masked;  // whether some query does not see some key
  std::int32_t owned;   // rows that are the document's: the first, and 65536 · the end
};

template <typename C>
struct QueriesShared {
  alignas(1024) unsigned char query[C::kQueryBytes];
  alignas(1024) unsigned char dout[C::kDoutBytes];
  alignas(1024) unsigned char far[C::kEntry ? C::kFarBytes : 16];
  alignas(1024) unsigned char key[C::kKeyStages][C::kKeyBytes];
  alignas(1024) unsigned char value[C::kValueStages][C::kValueBytes];
  alignas(16) float bias[C::kKeyStages][C::kKeys];
  alignas(16) BlockNote notes[C::kKeyStages];
  QueryWork tiles[2];
  LoadBarrier query_full, dout_full, key_full[C::kKeyStages], value_full[C::kValueStages];
  Barrier query_empty, dout_empty, key_empty[C::kKeyStages], value_empty[C::kValueStages];
  Barrier tile_full[2], tile_empty[2];
};

/// Block n of a tile: those that the far form sees come first.
template <int kKeys>
__device__ __forceinline__ Block work_block(const QueryTile& tile, int n) {
  const int far = tile.sink_blocks + tile.group_blocks;
  return tile_block<kKeys>(tile, n < far ? tile.local_blocks + n : n - far);
}

// --- producer ------------------------------------------------------------------------------------

template <typename C>
__device__ __forceinline__ void queries_schedule(const QueriesParams& p, QueriesShared<C>& shared) {
  int at = 0;
  int item = blockIdx.x;
  for (std::uint32_t k = 0;; ++k) {
    const bool real = item < p.items;
    const int next = real ? gridDim.x + atomicAdd(p.counter, 1) : item;
    QueryWork& tile = shared.tiles[k & 1];
    shared.tile_empty[k & 1].wait((k >> 1 & 1) ^ 1);
    if (real) {
      while (at + 1 < p.run_count && item >= p.runs[at + 1].first_tile_item) ++at;
      const BackwardRun& doc = p.runs[at];
      const RunWork run{doc.query_row, doc.exact_row, doc.group_row,      0, doc.count, 0,
                        doc.groups,    doc.tiles,     doc.first_tile_item};
      // The sink in blocks of its own, with any kind of positions: masks are simpler.
      tile_fill<C::kKeys, true>(p.layout, p.heads, run, item, tile);
      tile.stat_row = doc.stat_row + tile.first;
    } else {
      tile.rows = 0;
    }
    shared.tile_full[k & 1].arrive();
    if (!real) return;
    item = next;
  }
}

template <typename C>
__device__ __forceinline__ void queries_load(const QueriesMaps& maps, QueriesShared<C>& shared) {
  constexpr int kKeys = C::kKeys;
  RingPhase<C::kKeyStages> keys;
  RingPhase<C::kValueStages> values;
  for (std::uint32_t k = 0;; ++k) {
    shared.tile_full[k & 1].wait(k >> 1 & 1);
    const QueryWork& tile = shared.tiles[k & 1];
    if (tile.rows == 0) return;
    const int row = static_cast<int>(tile.query_row);
    shared.query_empty.wait((k & 1) ^ 1);
    LoadBarrier& full = shared.query_full;
    full.arrive_and_expect_tx(C::kQueryBytes + C::kFarBytes);
    panels_load<kQueries, C::kNope>(maps.q_nope, full, shared.query, tile.head, row);
    panels_load<kQueries, C::kRope>(maps.q_rope, full, shared.query + kQueries * C::kNope * 2,
                                    tile.head, row);
    if constexpr (C::kEntry) {
      panels_load<kQueries, C::kRotated>(maps.far, full, shared.far, tile.head, row);
    }
    const int blocks = tile.blocks();
    for (int n = 0; n < blocks; ++n) {
      const Block block = work_block<kKeys>(tile, n);
      const bool groups = block.kind == BlockKind::groups;
      const int key_row = block_row(tile, block);
      LoadBarrier& key = shared.key_full[keys.slot];
      LoadBarrier& value = shared.value_full[values.slot];
      shared.key_empty[keys.slot].wait(keys.phase ^ 1);
      const int2 owned = block_owned<kKeys>(tile, block);
      shared.notes[keys.slot] = {static_cast<int>(block.kind), block.base,
                                 block_needs_mask<kKeys>(tile, block), owned.x | owned.y << 16};
      key.arrive_and_expect_tx(C::kKeyBytes);
      panels_load<kKeys, C::kNope>(groups ? maps.group_nope : maps.k_nope, key,
                                   shared.key[keys.slot], tile.kv, key_row);
      panels_load<kKeys, C::kRope>(groups ? maps.group_rope : maps.k_rope, key,
                                   shared.key[keys.slot] + kKeys * C::kNope * 2, 0, key_row);
      if (n == 0) {  // needed after the first keys, and free later than the queries
        shared.dout_empty.wait((k & 1) ^ 1);
        shared.dout_full.arrive_and_expect_tx(C::kDoutBytes);
        panels_load<kQueries, C::kValue>(maps.dout, shared.dout_full, shared.dout, tile.head, row);
      }
      shared.value_empty[values.slot].wait(values.phase ^ 1);
      value.arrive_and_expect_tx(C::kValueBytes);
      panels_load<kKeys, C::kValue>(groups ? maps.group_value : maps.value, value,
                                    shared.value[values.slot], tile.kv, key_row);
      keys.next();
      values.next();
    }
    shared.tile_empty[k & 1].arrive();
  }
}

/// Biases of a block of representatives beside its keys, in powers of two.
template <typename C>
__device__ __forceinline__ void queries_load_bias(const QueriesParams& p,
                                                  QueriesShared<C>& shared) {
  const int lane = threadIdx.x & 31;
  RingPhase<C::kKeyStages> ring;
  for (std::uint32_t k = 0;; ++k) {
    shared.tile_full[k & 1].wait(k >> 1 & 1);
    const QueryWork& tile = shared.tiles[k & 1];
    if (tile.rows == 0) return;
    const int blocks = tile.blocks();
    for (int n = 0; n < blocks; ++n) {
      const Block block = work_block<C::kKeys>(tile, n);
      shared.key_empty[ring.slot].wait(ring.phase ^ 1);
      if (block.kind == BlockKind::groups) {
        const float* bias = p.bias + tile.group_row * p.bias_heads + tile.kv % p.bias_heads;
        for (int c = lane; c < C::kKeys; c += 32) {
          const std::int64_t at = min(block.base + c, tile.groups - 1);  // the rest is masked
          shared.bias[ring.slot][c] = __ldg(bias + at * p.bias_heads) * kLog2e;
        }
        __syncwarp();
      }
      if (lane == 0) shared.key_full[ring.slot].arrive();
      ring.next();
    }
    __syncwarp();
    if (lane == 0) shared.tile_empty[k & 1].arrive();
  }
}

// --- consumers -----------------------------------------------------------------------------------

/// Accumulator i of a thread: row lane/4 (+ 8 where i & 2), column 8·(i/4) + 2·(lane%4) + (i & 1).
template <typename C>
class QueriesConsumer {
 public:
  __device__ __forceinline__ QueriesConsumer(const QueriesParams& params, QueriesShared<C>& shared,
                                             int group)
      : p_(params), shared_(shared), group_(group), lane_(threadIdx.x & 31) {
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
      shared_.tile_full[k & 1].wait(k >> 1 & 1);
      const QueryWork& tile = shared_.tiles[k & 1];
      if (tile.rows == 0) return;
      multiply(tile, k);
      write(tile);
      __syncwarp();
      warp_release(shared_.tile_empty[k & 1]);
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

  __device__ __forceinline__ void warp_release(Barrier& barrier) {
    if (lane_ == 0) barrier.arrive();
  }

  __device__ __forceinline__ BlockNote note() const { return shared_.notes[keys_ring_.slot]; }

  /// Waits for the next block's keys and clears rows that are not the document's, of its values
  /// too. Returns whether the block is seen by the far form of queries.
  __device__ __forceinline__ bool keys_wait() {
    shared_.key_full[keys_ring_.slot].wait(keys_ring_.phase);
    const BlockNote block = note();
    const bool far = block.kind != static_cast<int>(BlockKind::local);
    if (block.owned == kKeys << 16) return far;
    const int2 owned{block.owned & 0xffff, block.owned >> 16};
    shared_.value_full[values_ring_.slot].wait(values_ring_.phase);
    rows_clear<kKeys, C::kScore>(shared_.key[keys_ring_.slot], owned.x, owned.y);
    rows_clear<kKeys, C::kValue>(shared_.value[values_ring_.slot], owned.x, owned.y);
    async_proxy_fence();
    NamedBarrier::sync(128, kBackwardConsumers + group_);
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
    if (blocks == 1) warp_release(shared_.query_empty);
    exponentiate(tile);
    if constexpr (C::kTight) dprobabilities_issue();
    int before = 0;
    for (int n = 0; n + 1 < blocks; ++n) {
      cute::warpgroup_wait<0>();  // dP(n), and dQ(n − 1)
      accumulators_fence(dp());
      accumulators_fence(dq_);
      if (n > 0) warp_release(shared_.key_empty[before]);
      before = keys_ring_.slot;
      warp_release(shared_.value_empty[values_ring_.slot]);
      if (C::kEntry && n > 0 && n == far) rotate_back(tile);
      differentiate();
      keys_ring_.next();
      values_ring_.next();
      scores_issue(keys_wait());
      dqueries_issue(before, n > 0);
      if constexpr (!C::kTight) dprobabilities_issue();
      cute::warpgroup_wait<C::kTight ? 1 : 2>();
      accumulators_fence(s_);
      if (n + 2 == blocks) warp_release(shared_.query_empty);  // the next tile's may come
      exponentiate(tile);
      if constexpr (C::kTight) dprobabilities_issue();
    }
    cute::warpgroup_wait<0>();
    accumulators_fence(dp());
    accumulators_fence(dq_);
    warp_release(shared_.dout_empty);
    if (blocks > 1) warp_release(shared_.key_empty[before]);
    warp_release(shared_.value_empty[values_ring_.slot]);
    if (C::kEntry && blocks > 1 && blocks - 1 == far) rotate_back(tile);
    differentiate();
    dqueries_issue(keys_ring_.slot, blocks > 1);
    cute::warpgroup_wait<0>();
    accumulators_fence(dq_);
    warp_release(shared_.key_empty[keys_ring_.slot]);
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
  int group_, lane_, row_;
  std::uint32_t query_, far_, dout_, key_, value_;  // shared memory, in units of 16 bytes
  RingPhase<C::kKeyStages> keys_ring_;
  RingPhase<C::kValueStages> values_ring_;
  float lse_[2], delta_[2];
  float s_[kScores], dp_[C::kTight ? 1 : kScores], dq_[C::kScore / 2];
  std::uint32_t dscores_[kScores / 2], probabilities_[C::kTight ? kScores / 2 : 1];
};

template <typename C>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    queries_kernel(const __grid_constant__ QueriesParams params,
                   const __grid_constant__ QueriesMaps maps) {
  extern __shared__ unsigned char memory[];
  const std::uint32_t misaligned = cute::cast_smem_ptr_to_uint(memory) & 1023;
  auto& shared = *reinterpret_cast<QueriesShared<C>*>(memory + (1024 - misaligned & 1023));
  const bool biased = params.bias != nullptr;
  if (threadIdx.x == 0) {
    constexpr int kWarps = 4 * kBackwardConsumers;
    shared.query_full.init(1);
    shared.query_empty.init(kWarps);
    shared.dout_full.init(1);
    shared.dout_empty.init(kWarps);
    for (int i = 0; i < C::kKeyStages; ++i) {
      shared.key_full[i].init(biased ? 2 : 1);
      shared.key_empty[i].init(kWarps);
    }
    for (int i = 0; i < C::kValueStages; ++i) {
      shared.value_full[i].init(1);
      shared.value_empty[i].init(kWarps);
    }
    for (int i = 0; i < 2; ++i) {
      shared.tile_full[i].init(1);
      shared.tile_empty[i].init(kWarps + (biased ? 2 : 1));
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    cutlass::arch::warpgroup_reg_dealloc<kBackwardProducerRegisters>();
    if (threadIdx.x == 0) {
      queries_load<C>(maps, shared);
    } else if (threadIdx.x == 32) {
      queries_schedule<C>(params, shared);
    } else if (threadIdx.x / 32 == 2 && biased) {
      queries_load_bias<C>(params, shared);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<kBackwardConsumerRegisters>();
    QueriesConsumer<C>(params, shared, __shfl_sync(~0u, threadIdx.x / 128, 0) - 1).run();
  }
}

// --- host ----------------------------------------------------------------------------------------

/// Heads whose keys and values stay in the L2 cache together.
int heads_together(const Prefill& problem, std::int64_t groups, int width) {
  constexpr double kResident = 24e6;
  const int step = problem.form == Form::gqa ? problem.heads / problem.kv_heads : 1;
  const double bytes = 2.0 * width * static_cast<double>(std::max<std::int64_t>(groups, 1024));
  const int fitting = std::max(1, static_cast<int>(kResident / bytes));
  return std::min(problem.heads, fitting * step);
}

template <typename C>
void queries_launch(const PrefillBackward& problem, const BackwardPlan& plan,
                    const BackwardSpace& space, const Queue& queue) {
  const Prefill& forward = problem.forward;
  const bool gqa = forward.form == Form::gqa;
  const int kv_heads = key_heads(forward);
  QueriesParams params{};
  params.layout = layout32(forward.layout);
  params.runs = space.runs;
  params.run_count = static_cast<int>(plan.runs.size());
  params.items = static_cast<int>(plan.tile_items);
  params.heads = {forward.heads, forward.heads / kv_heads,
                  heads_together(forward, plan.runs.front().groups, C::kNope + C::kValue)};
  params.counter = space.counters + 1;
  params.lse = space.lse;
  params.delta = space.delta;
  params.stat_rows = plan.stat_rows;
  params.scale = forward.scale;
  params.scale_log2 = forward.scale * kLog2e;
  params.bias = forward.bias;
  params.bias_heads = gqa ? kv_heads : 1;
  params.bias_all = forward.bias == nullptr ? forward.bias_all * kLog2e : 0;
  params.rotation = forward.rotation;
  params.q_nope = problem.q_nope;
  params.q_rope = problem.q_rope;

  // GQA's key is one part: the kernel knows it as the part without position.
  const HeadRows& q = gqa ? forward.q_rope : forward.q_nope;
  const KeyRows& groups = plan.groups > 0 ? forward.groups : forward.exact;
  QueriesMaps maps{};
  maps.q_nope = tensor_map(q, forward.heads, forward.query_rows, kQueries);
  maps.dout = tensor_map(problem.dout, forward.heads, forward.query_rows, kQueries);
  maps.k_nope = tensor_map(gqa ? forward.exact.rope : forward.exact.nope, kv_heads,
                           forward.exact.rows, C::kKeys);
  maps.value = tensor_map(forward.exact.value, kv_heads, forward.exact.rows, C::kKeys);
  maps.group_nope = tensor_map(gqa ? groups.rope : groups.nope, kv_heads, groups.rows, C::kKeys);
  maps.group_value = tensor_map(groups.value, kv_heads, groups.rows, C::kKeys);
  if constexpr (C::kEntry) {
    maps.far = tensor_map(head_rows(space.far, forward.heads, forward.q_rope.width), forward.heads,
                          forward.query_rows, kQueries);
  }
  if constexpr (C::kRope > 0) {
    maps.q_rope = tensor_map(forward.q_rope, forward.heads, forward.query_rows, kQueries);
    maps.k_rope = tensor_map(forward.exact.rope, 1, forward.exact.rows, C::kKeys);
    maps.group_rope = tensor_map(groups.rope, 1, groups.rows, C::kKeys);
  }

  constexpr std::size_t kBytes = sizeof(QueriesShared<C>) + 1024;
  static_assert(kBytes <= 227 * 1024);
  queue.device->shared_allow(reinterpret_cast<const void*>(queries_kernel<C>), kBytes);
  const int blocks = std::min<int>(params.items, queue.device->multiprocessors);
  queries_kernel<C><<<blocks, kBackwardThreads, kBytes, queue.stream>>>(params, maps);
  check(cudaGetLastError(), "launching the gradients of queries");
}

// Entry positions take shared memory for the second form: MLA's blocks are shorter there.
template <bool Entry>
using QueriesMla = QueriesConfig<128, 64, 128, Entry ? 64 : 80, Entry ? 3 : 2, !Entry, Entry>;
template <bool Entry>
using QueriesGqa128 = QueriesConfig<128, 0, 128, 96, 2, false, Entry>;
template <bool Entry>
using QueriesGqa64 = QueriesConfig<64, 0, 64, 128, 3, false, Entry>;

template <bool Entry>
void queries_launch_form(const PrefillBackward& problem, const BackwardPlan& plan,
                         const BackwardSpace& space, const Queue& queue) {
#ifdef LCA_VARIANTS
  if (const char* v = getenv("VARIANT"); v != nullptr && !Entry) {
    const bool wide = problem.forward.q_rope.width == 128;
    if (problem.forward.form == Form::mla) {
      if (*v == '1')
        return queries_launch<QueriesConfig<128, 64, 128, 64, 3, true>>(problem, plan, space,
                                                                        queue);
    } else if (wide) {
      if (*v == '1')
        return queries_launch<QueriesConfig<128, 0, 128, 96, 2, true>>(problem, plan, space, queue);
    } else {
      if (*v == '1')
        return queries_launch<QueriesConfig<64, 0, 64, 128, 3, true>>(problem, plan, space, queue);
      if (*v == '2')
        return queries_launch<QueriesConfig<64, 0, 64, 96, 3, false>>(problem, plan, space, queue);
    }
  }
#endif
  if (problem.forward.form == Form::mla) {
    queries_launch<QueriesMla<Entry>>(problem, plan, space, queue);
  } else if (problem.forward.q_rope.width == 128) {
    queries_launch<QueriesGqa128<Entry>>(problem, plan, space, queue);
  } else {
    queries_launch<QueriesGqa64<Entry>>(problem, plan, space, queue);
  }
}

}  // namespace

void backward_queries_sm90(const PrefillBackward& problem, const BackwardPlan& plan,
                           const BackwardSpace& space, const Queue& queue) {
  problem.forward.rotation.steps == nullptr
      ? queries_launch_form<false>(problem, plan, space, queue)
      : queries_launch_form<true>(problem, plan, space, queue);
}

}  // namespace lca::cuda
