/// Prefill on Hopper: one online softmax over window, sink and representatives.
///
/// Shapes     a tile is 64·C queries of one head (C consumer warp groups), a block 128 keys.
///            Score width 128+64, 64+32 (MLA), 128, 64 (GQA); value width 128, 64, 128, 64.
/// Moving     a producer warp group: one thread fills rings of K and V blocks by TMA: no-position
/// and RoPE parts
///            are boxes of their own tensors side by side in one stage, so the RoPE key that all
///            heads of MLA share is never copied per head. Consumers multiply with wgmma from
///            shared memory; probabilities stay in registers. While one warp group exponentiates,
///            another multiplies (ping-pong), and QKᵀ of block n is issued before PV of block n−1.
/// Memory     128+64/128, C = 2: Q 48 KiB, 2 stages × (K 48 + V 32) KiB = 208 KiB of 227.
/// Work       a persistent grid takes (head, tile) items, heaviest first, from a counter. The block
///            list of a tile is virtual: local blocks from the diagonal down to the left window
///            edge, sink blocks, representatives from the last to the first. Only coordinates and
///            masks differ; dense and window are other lists. Every row meets its own token in the
///            first block, so no row begins empty. With entry positions the tile's queries are
///            rotated in shared memory between the local blocks and the rest.
/// Bounds     DeepSeek-V2-Lite, g 16, w 1024, 128K: 6.8 TFLOP of visible pairs, 8.7 ms at the
///            measured 782 TFLOP/s; 2.9 GB of q, k, v, out, 0.7 ms.

#include <lca/error.h>

#include <cuda.h>

#include <algorithm>
#include <vector>

#include "attention/cuda/prefill/prefill.h"
#include "attention/cuda/prefill/prefill_tiles.cuh"
#include "attention/cuda/prefill/run_table.cuh"
#include "attention/cuda/rotate.cuh"
#include "core/cuda/hopper.cuh"
#include "core/cuda/numbers.h"
#include "core/cuda/tensor_map.h"

namespace lca::cuda {
namespace {

constexpr int kConsumers = 2;  // warp groups that multiply
static_assert(kQueries == 64 * kConsumers);
constexpr int kThreads = 128 * (kConsumers + 1);
// What the producer gives up is what the consumers take: 168 registers each at the start.
constexpr int kProducerRegisters = 24;
constexpr int kConsumerRegisters = 240;

template <int Nope, int Rope, int Value, int Keys, int Stages, bool Entry = false>
struct Config {
  using WithEntry = Config<Nope, Rope, Value, Keys, Stages, true>;
  static constexpr bool kEntry = Entry;  ///< positions are those of entries
  static constexpr int kNope = Nope, kRope = Rope, kValue = Value;
  static constexpr int kKeys = Keys, kStages = Stages;
  static constexpr int kQueryBytes = kQueries * (Nope + Rope) * 2;
  static constexpr int kKeyBytes = Keys * (Nope + Rope) * 2;
  static constexpr int kValueBytes = Keys * Value * 2;
  static_assert(Nope % 64 == 0 && (Rope == 0 || Rope == 64 || Rope == 32) && Value % 64 == 0);
  // The first block must hold each row's own token.
  static_assert(Keys >= kQueries && Keys % 16 == 0);
};

constexpr int kInlineRuns = 16;  // more lie in device memory

struct Params {
  Layout32 layout;
  const RunWork* table;
  int runs, items;
  Heads heads;
  float scale_log2, inverse_scale;
  const float* bias;
  int bias_heads;   // KV heads of `bias`
  float bias_log2;  // the same for all representatives, in powers of two
  int* counter;
  bf16* out;
  float* lse;
  RotationView rotation;
  RunWork inline_runs[kInlineRuns];
};

struct Maps {
  CUtensorMap q_nope, q_rope, k_nope, k_rope, value, group_nope, group_rope, group_value;
};

template <typename C>
struct Shared {
  alignas(1024) unsigned char query[C::kQueryBytes];
  alignas(1024) unsigned char key[C::kStages][C::kKeyBytes];
  alignas(1024) unsigned char value[C::kStages][C::kValueBytes];
  alignas(16) float bias[C::kStages][C::kKeys];
  QueryTile tiles[2];
  LoadBarrier query_full, key_full[C::kStages], value_full[C::kStages];
  Barrier query_empty, key_empty[C::kStages], value_empty[C::kStages];
  Barrier tile_full[2], tile_empty[2];
};

/// Position in a ring: slot and phase.
template <int Slots>
struct Phase {
  int slot = 0;
  std::uint32_t phase = 0;
  __device__ __forceinline__ void next() {
    if (++slot == Slots) {
      slot = 0;
      phase ^= 1;
    }
  }
};

// --- producer ----------------------------------------------------------------------------------

constexpr auto kStream = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
constexpr auto kKeep = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST);

/// Loads one tile of `Rows` rows: panels of 64 no-position columns, then the RoPE columns.
template <int Rows, int Nope, int Rope>
__device__ __forceinline__ void rows_load(const CUtensorMap& nope, const CUtensorMap& rope,
                                          LoadBarrier& full, unsigned char* to, int head,
                                          int rope_head, int row, std::uint64_t hint) {
#pragma unroll
  for (int c = 0; c < Nope; c += 64) {
    cute::SM90_TMA_LOAD_3D::copy(&nope, reinterpret_cast<std::uint64_t*>(&full), hint,
                                 to + c * Rows * 2, c, head, row);
  }
  if constexpr (Rope > 0) {
    cute::SM90_TMA_LOAD_3D::copy(&rope, reinterpret_cast<std::uint64_t*>(&full), hint,
                                 to + Nope * Rows * 2, 0, rope_head, row);
  }
}

/// Takes items from the counter, one ahead of the consumers.
template <typename C>
__device__ __forceinline__ void schedule(const Params& p, Shared<C>& shared) {
  const RunWork* runs = p.table != nullptr ? p.table : p.inline_runs;
  int run = 0;
  int item = blockIdx.x;
  for (std::uint32_t k = 0;; ++k) {
    const int next = item < p.items ? gridDim.x + atomicAdd(p.counter, 1) : item;
    QueryTile& tile = shared.tiles[k & 1];
    shared.tile_empty[k & 1].wait((k >> 1 & 1) ^ 1);
    if (item < p.items) {
      while (run + 1 < p.runs && item >= runs[run + 1].first_item) ++run;
      tile_fill<C::kKeys, C::kEntry>(p.layout, p.heads, runs[run], item, tile);
    } else {
      tile.rows = 0;
    }
    shared.tile_full[k & 1].arrive();
    if (item >= p.items) return;
    item = next;
  }
}

/// Fills the rings of keys and values.
template <typename C>
__device__ __forceinline__ void load(const Maps& maps, Shared<C>& shared) {
  constexpr int kKeys = C::kKeys;
  Phase<C::kStages> key, value;
  for (std::uint32_t k = 0;; ++k) {
    shared.tile_full[k & 1].wait(k >> 1 & 1);
    const QueryTile& tile = shared.tiles[k & 1];
    if (tile.rows == 0) return;
    const int blocks = tile.blocks();
    const int kv = tile.kv;
    for (int n = 0; n <= blocks; ++n) {
      if (n < blocks) {
        const Block block = tile_block<kKeys>(tile, n);
        const bool groups = block.kind == BlockKind::groups;
        shared.key_empty[key.slot].wait(key.phase ^ 1);
        shared.key_full[key.slot].arrive_and_expect_tx(C::kKeyBytes);
        rows_load<kKeys, C::kNope, C::kRope>(
            groups ? maps.group_nope : maps.k_nope, groups ? maps.group_rope : maps.k_rope,
            shared.key_full[key.slot], shared.key[key.slot], kv, 0, block_row(tile, block), kKeep);
        key.next();
      }
      if (n == 0) {
        shared.query_empty.wait((k & 1) ^ 1);
        shared.query_full.arrive_and_expect_tx(C::kQueryBytes);
        rows_load<kQueries, C::kNope, C::kRope>(maps.q_nope, maps.q_rope, shared.query_full,
                                                shared.query, tile.head, tile.head,
                                                static_cast<int>(tile.query_row), kStream);
      } else {  // values are needed one block later than keys
        const Block block = tile_block<kKeys>(tile, n - 1);
        shared.value_empty[value.slot].wait(value.phase ^ 1);
        shared.value_full[value.slot].arrive_and_expect_tx(C::kValueBytes);
        rows_load<kKeys, C::kValue, 0>(
            block.kind == BlockKind::groups ? maps.group_value : maps.value, maps.value,
            shared.value_full[value.slot], shared.value[value.slot], kv, 0, block_row(tile, block),
            kKeep);
        value.next();
      }
    }
    shared.tile_empty[k & 1].arrive();
  }
}

/// Loads the biases of a block of representatives beside its keys: a warp with plain loads, since
/// they lie [row][KV head].
template <typename C>
__device__ __forceinline__ void load_bias(const Params& p, Shared<C>& shared) {
  const int lane = threadIdx.x & 31;
  Phase<C::kStages> key;
  for (std::uint32_t k = 0;; ++k) {
    shared.tile_full[k & 1].wait(k >> 1 & 1);
    const QueryTile& tile = shared.tiles[k & 1];
    if (tile.rows == 0) return;
    const int blocks = tile.blocks();
    for (int n = 0; n < blocks; ++n) {
      const Block block = tile_block<C::kKeys>(tile, n);
      const bool groups = block.kind == BlockKind::groups;
      float values[(C::kKeys + 31) / 32];
      if (groups) {  // loaded before their stage is free
        const float* bias = p.bias + tile.group_row * p.bias_heads + tile.kv % p.bias_heads;
#pragma unroll
        for (int c = 0; c < C::kKeys; c += 32) {
          const std::int64_t at =
              min(block.base + c + lane, tile.groups - 1);  // the rest is masked
          values[c / 32] = __ldg(bias + at * p.bias_heads);
        }
      }
      shared.key_empty[key.slot].wait(key.phase ^ 1);
      if (groups) {
#pragma unroll
        for (int c = 0; c < C::kKeys; c += 32) {
          if (c + lane < C::kKeys) shared.bias[key.slot][c + lane] = values[c / 32];
        }
        __syncwarp();
      }
      if (lane == 0) shared.key_full[key.slot].arrive();
      key.next();
    }
    __syncwarp();
    if (lane == 0) shared.tile_empty[k & 1].arrive();
  }
}

// --- consumers ---------------------------------------------------------------------------------

/// Accumulator i of a thread: row lane/4 (+ 8 where i & 2), column 8·(i/4) + 2·(lane%4) + (i & 1).
template <typename C>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const Params& params, Shared<C>& shared, int group)
      : p_(params), shared_(shared), group_(group), lane_(threadIdx.x & 31) {
    const int warp = threadIdx.x / 32 & 3;
    row_ = group * 64 + warp * 16 + lane_ / 4;
    query_ = cute::cast_smem_ptr_to_uint(shared.query) / 16;
    keys_ = cute::cast_smem_ptr_to_uint(shared.key) / 16;
    values_ = cute::cast_smem_ptr_to_uint(shared.value) / 16;
  }

  __device__ __forceinline__ void run() {
    if (group_ == kConsumers - 1) turn_pass();  // the first warp group may begin
    for (std::uint32_t k = 0;; ++k) {
      shared_.tile_full[k & 1].wait(k >> 1 & 1);
      const QueryTile& tile = shared_.tiles[k & 1];
      if (tile.rows == 0) return;
      attend(tile, k);
      write(tile);
      __syncwarp();
      warp_release(shared_.tile_empty[k & 1]);
    }
  }

 private:
  static constexpr int kKeys = C::kKeys;
  static constexpr int kScores = kKeys / 2;       // accumulators of QKᵀ
  static constexpr int kOutputs = C::kValue / 2;  // and of PV

  /// One lane speaks for a warp whose lanes have all come this far: they have waited for the same
  /// products, or met in __syncwarp.
  __device__ __forceinline__ void warp_release(Barrier& barrier) {
    if (lane_ == 0) barrier.arrive();
  }
  __device__ __forceinline__ void turn_take() { NamedBarrier::sync(256, group_); }
  __device__ __forceinline__ void turn_pass() {
    NamedBarrier::arrive(256, group_ + 1 == kConsumers ? 0 : group_ + 1);
  }

  __device__ __forceinline__ void scores_issue() {
    const std::uint32_t k = keys_ + key_.slot * (C::kKeyBytes / 16);
    accumulators_fence(s_);
    cute::warpgroup_arrive();
#pragma unroll
    for (int c = 0; c < C::kNope; c += 16) {
      const int panel = c / 64 * 64, inside = (c & 63) * 2;
      product_shared<kKeys>(
          s_, descriptor<128>(query_, panel * kQueries * 2 + inside) + group_ * (64 * 128 / 16),
          descriptor<128>(k, panel * kKeys * 2 + inside), c > 0);
    }
#pragma unroll
    for (int c = 0; c < C::kRope; c += 16) {
      constexpr int kRow = C::kRope == 32 ? 64 : 128;
      product_shared<kKeys>(
          s_, descriptor<kRow>(query_, C::kNope * kQueries * 2 + c * 2) + group_ * (64 * kRow / 16),
          descriptor<kRow>(k, C::kNope * kKeys * 2 + c * 2), true);
    }
    cute::warpgroup_commit_batch();
    accumulators_fence(s_);
  }

  __device__ __forceinline__ void outputs_issue(bool add) {
    const std::uint32_t v = values_ + value_.slot * (C::kValueBytes / 16);
    accumulators_fence(o_);
    cute::warpgroup_arrive();
#pragma unroll
    for (int n = 0; n < kKeys; n += 16) {
      product_registers<C::kValue>(o_, &probabilities_[n / 4],
                                   descriptor<128>(v, n * 128, kKeys * 128), n > 0 || add);
    }
    cute::warpgroup_commit_batch();
    accumulators_fence(o_);
  }

  /// The queries as sink and representatives see them, over those that the window saw: once a tile,
  /// each warp its 16 rows. All products with the queries have ended.
  __device__ __forceinline__ void queries_rotate(const QueryTile& tile) {
    NamedBarrier::sync(128, kConsumers + group_);  // those of the other warps too
    const int first = row_ - lane_ / 4;
    const int position = min(tile.first + first + (lane_ & 15), tile.last);
    const int difference = -p_.layout.position_shift(position + 1);
    unsigned char* const rows = shared_.query + (C::kRope > 0 ? C::kNope * kQueries * 2 : 0);
    rows_rotate(p_.rotation, difference, lane_, [&](int row, int channel) {
      // As TMA swizzles: the 16-byte chunks of a row are permuted by the row.
      constexpr int kRow = C::kRope == 32 ? 64 : 128;
      row += first;
      const int chunk = (channel * 2 & kRow - 1) / 16 ^ (kRow == 64 ? row / 2 & 3 : row & 7);
      const int panel = channel * 2 / kRow * (kQueries * kRow);
      return reinterpret_cast<bf16*>(rows + panel + row * kRow + chunk * 16 + (channel & 7) * 2);
    });
    async_proxy_fence();
    NamedBarrier::sync(128, kConsumers + group_);
  }

  /// Waits for the values of block n − 1 or the last, and clears rows that hold no data.
  __device__ __forceinline__ void values_wait(const QueryTile& tile, int n) {
    shared_.value_full[value_.slot].wait(value_.phase);
    const int2 owned = block_owned<kKeys>(tile, tile_block<kKeys>(tile, n));
    if (owned.x == 0 && owned.y == kKeys) return;
    for (int i = threadIdx.x & 127; i < kKeys * C::kValue / 8; i += 128) {
      const int row = i / 8 % kKeys;  // swizzling moves bytes within a row only
      if (row >= owned.x && row < owned.y) continue;
      reinterpret_cast<uint4*>(shared_.value[value_.slot])[i] = uint4{0, 0, 0, 0};
    }
    async_proxy_fence();
    NamedBarrier::sync(128, kConsumers + group_);
  }

  __device__ __forceinline__ void scores_bias() {
    const float* bias = shared_.bias[key_.slot] + 2 * (lane_ & 3);
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      const float2 b = *reinterpret_cast<const float2*>(bias + 2 * i);
      s_[i] = fmaf(b.x, p_.inverse_scale, s_[i]);
      s_[i + 1] = fmaf(b.y, p_.inverse_scale, s_[i + 1]);
      s_[i + 2] = fmaf(b.x, p_.inverse_scale, s_[i + 2]);
      s_[i + 3] = fmaf(b.y, p_.inverse_scale, s_[i + 3]);
    }
  }

  __device__ __forceinline__ void scores_mask(const QueryTile& tile, const Block& block) {
    const int column = block.base + 2 * (lane_ & 3);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Span span = row_span<C::kEntry>(rows_[r], tile, block.kind);
      const unsigned from_low = column - span.low;
      const auto sunk = [&](int c) {
        return static_cast<unsigned>(column + c) < static_cast<unsigned>(span.sink);
      };
      if (block.base < span.sink) {  // seldom: the tile in which the window leaves the sink
        scores_drop(r, [&](int c) { return from_low + c >= span.count && !sunk(c); });
      } else {
        scores_drop(r, [&](int c) { return from_low + c >= span.count; });
      }
    }
  }

  template <typename Unseen>
  __device__ __forceinline__ void scores_drop(int r, Unseen unseen) {
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (unseen(2 * i + j)) s_[i + j + 2 * r] = -INFINITY;
      }
    }
  }

  /// Scores to probabilities; returns whether the output must be rescaled by `rescale_`.
  __device__ __forceinline__ bool softmax(const QueryTile& tile, int n) {
    const Block block = tile_block<kKeys>(tile, n);
    if (block.kind == BlockKind::groups && p_.bias != nullptr) {
      scores_bias();
      __syncwarp();
    }
    if (n > 0) warp_release(shared_.key_empty[key_.slot]);  // keys and biases are read
    if (block_needs_mask<kKeys>(tile, block)) scores_mask(tile, block);
    const float shift = block.kind == BlockKind::groups ? p_.bias_log2 : 0.0f;
    bool moved = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = s_[2 * r];
#pragma unroll
      for (int i = 0; i < kScores; i += 4) {
        top = fmaxf(top, fmaxf(s_[i + 2 * r], s_[i + 2 * r + 1]));
      }
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      top = fmaf(top, p_.scale_log2, shift);
      const bool larger = top > top_[r] + kLazyRescale;
      rescale_[r] = larger ? exp2_fast(top_[r] - top) : 1.0f;
      if (larger) top_[r] = top;
      moved |= larger;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = 0;
      const float minus_top = shift - top_[r];
#pragma unroll
      for (int i = 0; i < kScores; i += 4) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float& x = s_[i + 2 * r + j];
          x = exp2_fast(fmaf(x, p_.scale_log2, minus_top));
          sum += x;
        }
      }
      sum_[r] = sum_[r] * rescale_[r] + sum;
    }
    return __any_sync(~0u, moved);
  }

  __device__ __forceinline__ void probabilities_pack() {
#pragma unroll
    for (int i = 0; i < kScores; i += 2) probabilities_[i / 2] = pack_bf16(s_[i], s_[i + 1]);
  }

  __device__ __forceinline__ void attend(const QueryTile& tile, std::uint32_t k) {
    const int blocks = tile.blocks();
    shared_.query_full.wait(k & 1);
    shared_.key_full[key_.slot].wait(key_.phase);
    scores_issue();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows_[r] = row_of(p_.layout, tile, row_ + 8 * r);
      top_[r] = -INFINITY;
      sum_[r] = 0;
    }
    cute::warpgroup_wait<0>();
    accumulators_fence(s_);
    warp_release(shared_.key_empty[key_.slot]);
    if (blocks == 1) warp_release(shared_.query_empty);
    softmax(tile, 0);  // local: no bias to read
    key_.next();
    probabilities_pack();

    for (int n = 1; n < blocks; ++n) {
      if constexpr (C::kEntry) {
        if (n == tile.local_blocks) queries_rotate(tile);
      }
      shared_.key_full[key_.slot].wait(key_.phase);
      turn_take();
      scores_issue();
      values_wait(tile, n - 1);
      outputs_issue(n > 1);
      turn_pass();
      cute::warpgroup_wait<1>();
      accumulators_fence(s_);
      if (n + 1 == blocks) warp_release(shared_.query_empty);
      const bool moved = softmax(tile, n);
      key_.next();
      cute::warpgroup_wait<0>();
      accumulators_fence(o_);
      warp_release(shared_.value_empty[value_.slot]);
      value_.next();
      if (moved) {
#pragma unroll
        for (int i = 0; i < kOutputs; ++i) o_[i] *= rescale_[i >> 1 & 1];
      }
      probabilities_pack();
    }
    values_wait(tile, blocks - 1);
    outputs_issue(blocks > 1);
    cute::warpgroup_wait<0>();
    accumulators_fence(o_);
    warp_release(shared_.value_empty[value_.slot]);
    value_.next();
  }

  __device__ __forceinline__ void write(const QueryTile& tile) {
    const int quad = lane_ & 3;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = sum_[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const float inverse = __fdividef(1.0f, sum);
      const int row = row_ + 8 * r;
      const bool real = row < tile.rows;
      const std::int64_t at = (tile.query_row + row) * p_.heads.all + tile.head;
      if (real && quad == 0 && p_.lse != nullptr) {
        p_.lse[at] = (top_[r] + __log2f(sum)) * kLn2;
      }
      bf16* out = p_.out + at * C::kValue;
#pragma unroll
      for (int i = 0; i < kOutputs; i += 16) {  // four column chunks of 8
        std::uint32_t chunk[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          chunk[c] =
              pack_bf16(o_[i + 4 * c + 2 * r] * inverse, o_[i + 4 * c + 2 * r + 1] * inverse);
        }
        quad_transpose(chunk, quad);
        if (real) {
          *reinterpret_cast<uint4*>(out + 2 * i + 8 * quad) =
              uint4{chunk[0], chunk[1], chunk[2], chunk[3]};
        }
      }
    }
  }

  const Params& p_;
  Shared<C>& shared_;
  int group_, lane_, row_;
  std::uint32_t query_, keys_, values_;  // shared memory, in units of 16 bytes
  Phase<C::kStages> key_, value_;
  Row rows_[2];
  float top_[2], sum_[2], rescale_[2];
  float s_[kScores];
  float o_[kOutputs];
  std::uint32_t probabilities_[kScores / 2];
};

template <typename C>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_kernel(const __grid_constant__ Params params, const __grid_constant__ Maps maps) {
  extern __shared__ unsigned char memory[];
  const std::uint32_t misaligned = cute::cast_smem_ptr_to_uint(memory) & 1023;
  auto& shared = *reinterpret_cast<Shared<C>*>(memory + (1024 - misaligned & 1023));
  if (threadIdx.x == 0) {
    constexpr int kWarps = 4 * kConsumers;
    const bool biased = params.bias != nullptr;
    shared.query_full.init(1);
    shared.query_empty.init(kWarps);
    for (int i = 0; i < C::kStages; ++i) {
      shared.key_full[i].init(biased ? 2 : 1);
      shared.value_full[i].init(1);
      shared.key_empty[i].init(kWarps);
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
    cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
    if (threadIdx.x == 0) {
      load<C>(maps, shared);
    } else if (threadIdx.x == 32) {
      schedule<C>(params, shared);
    } else if (threadIdx.x / 32 == 2 && params.bias != nullptr) {
      load_bias<C>(params, shared);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
    Consumer<C>(params, shared, __shfl_sync(~0u, threadIdx.x / 128, 0) - 1).run();
  }
}

// --- host --------------------------------------------------------------------------------------

[[noreturn]] void fail(const char* what) { throw Error(ErrorKind::internal, what); }

bool keys_fit(const KeyRows& keys) {
  return tensor_map_fits(keys.nope) && tensor_map_fits(keys.rope) && tensor_map_fits(keys.value);
}

/// Heads whose representatives stay in the L2 cache together.
int heads_at_once(const Prefill& problem, std::int64_t groups, int width) {
  constexpr double kResident = 24e6;
  const int shared = problem.heads / problem.kv_heads;
  const int step = problem.form == Form::gqa ? shared : 1;
  const double bytes = 2.0 * width * static_cast<double>(std::max<std::int64_t>(groups, 1024));
  const int fitting = std::max(1, static_cast<int>(kResident / bytes));
  return std::min(problem.heads, fitting * step);
}

template <typename C>
void launch_with(const Prefill& problem, std::span<const PrefillRun> runs, void* workspace,
                 const Queue& queue) {
  const bool gqa = problem.form == Form::gqa;
  const int kv_heads = gqa ? problem.kv_heads : problem.heads;
  Params params{};
  params.layout = layout32(problem.layout);
  params.scale_log2 = problem.scale * kLog2e;
  params.inverse_scale = 1.0f / problem.scale;
  params.bias = problem.bias;
  params.bias_log2 = problem.bias == nullptr ? problem.bias_all * kLog2e : 0;
  params.bias_heads = gqa ? problem.kv_heads : 1;
  params.counter = static_cast<int*>(workspace);
  params.out = problem.out;
  params.lse = problem.lse;
  params.rotation = problem.rotation;

  std::vector<RunWork> work;
  std::int64_t most_groups = 0;
  for (const PrefillRun& run : runs) {
    if (run.query_count == 0) continue;
    const std::int64_t groups = problem.layout.groups(run.query_first + run.query_count);
    most_groups = std::max(most_groups, groups);
    work.push_back({run.query_row, run.exact_row, run.group_row,
                    static_cast<std::int32_t>(run.query_first),
                    static_cast<std::int32_t>(run.query_count),
                    static_cast<std::int32_t>(run.exact_gone), static_cast<std::int32_t>(groups),
                    static_cast<std::int32_t>((run.query_count + kQueries - 1) / kQueries), 0});
  }
  if (work.empty()) return;
  // The longest first: what is left at the end is short.
  std::stable_sort(work.begin(), work.end(), [](const RunWork& a, const RunWork& b) {
    return a.query_first + a.query_count > b.query_first + b.query_count;
  });
  std::int64_t items = 0;
  for (RunWork& run : work) {
    run.first_item = static_cast<std::int32_t>(items);
    items += std::int64_t{run.tiles} * problem.heads;
  }
  if (items > INT32_MAX) fail("too many queries in one call; use smaller chunks");
  params.items = static_cast<int>(items);
  params.runs = static_cast<int>(work.size());
  params.heads = {problem.heads, problem.heads / kv_heads,
                  heads_at_once(problem, most_groups, C::kNope + C::kValue)};
  if (work.size() <= kInlineRuns) {
    std::copy(work.begin(), work.end(), params.inline_runs);
  } else {
    params.table = reinterpret_cast<RunWork*>(static_cast<char*>(workspace) + 256);
    run_table_write(std::span<const RunWork>(work), const_cast<RunWork*>(params.table), queue);
  }

  // GQA's key is one part: the kernel knows it as the part without position.
  const HeadRows& q = gqa ? problem.q_rope : problem.q_nope;
  const HeadRows& k = gqa ? problem.exact.rope : problem.exact.nope;
  const KeyRows& groups = most_groups > 0 ? problem.groups : problem.exact;
  Maps maps{};
  maps.q_nope = tensor_map(q, problem.heads, problem.query_rows, kQueries);
  maps.k_nope = tensor_map(k, kv_heads, problem.exact.rows, C::kKeys);
  maps.value = tensor_map(problem.exact.value, kv_heads, problem.exact.rows, C::kKeys);
  maps.group_nope = tensor_map(gqa ? groups.rope : groups.nope, kv_heads, groups.rows, C::kKeys);
  maps.group_value = tensor_map(groups.value, kv_heads, groups.rows, C::kKeys);
  if constexpr (C::kRope > 0) {
    maps.q_rope = tensor_map(problem.q_rope, problem.heads, problem.query_rows, kQueries);
    maps.k_rope = tensor_map(problem.exact.rope, 1, problem.exact.rows, C::kKeys);
    maps.group_rope = tensor_map(groups.rope, 1, groups.rows, C::kKeys);
  }

  constexpr std::size_t kBytes = sizeof(Shared<C>) + 1024;
  static_assert(kBytes <= 227 * 1024);
  queue.device->shared_allow(reinterpret_cast<const void*>(prefill_kernel<C>), kBytes);
  check(cudaMemsetAsync(params.counter, 0, sizeof(int), queue), "clearing the work counter");
  const int blocks = std::min<int>(params.items, queue.device->multiprocessors);
  prefill_kernel<C><<<blocks, kThreads, kBytes, queue.stream>>>(params, maps);
  check(cudaGetLastError(), "launching prefill");
}

template <typename C>
void launch(const Prefill& problem, std::span<const PrefillRun> runs, void* workspace,
            const Queue& queue) {
  problem.rotation.steps == nullptr
      ? launch_with<C>(problem, runs, workspace, queue)
      : launch_with<typename C::WithEntry>(problem, runs, workspace, queue);
}

// One instance for each pair of widths that models have. Narrow heads leave shared memory for
// longer blocks.
using V2Lite = Config<128, 64, 128, 128, 2>;
using MiniCpm3 = Config<64, 32, 64, 192, 3>;
using Gqa128 = Config<128, 0, 128, 176, 2>;
using Gqa64 = Config<64, 0, 64, 192, 3>;

}  // namespace

bool prefill_has_fast(const Prefill& problem) {
  if (!tensor_map_fits(problem.q_nope) || !tensor_map_fits(problem.q_rope) ||
      !keys_fit(problem.exact) || !keys_fit(problem.groups) ||
      reinterpret_cast<std::uintptr_t>(problem.out) % 16 != 0) {
    return false;
  }
  const int nope = problem.q_nope.width, rope = problem.q_rope.width;
  const int value = problem.exact.value.width;
  if (problem.form == Form::gqa) return rope == value && (rope == 128 || rope == 64);
  return (nope == 128 && rope == 64 && value == 128) || (nope == 64 && rope == 32 && value == 64);
}

void prefill_sm90(const Prefill& problem, std::span<const PrefillRun> runs, void* workspace,
                  const Queue& queue) {
  if (problem.form == Form::gqa) {
    problem.q_rope.width == 128 ? launch<Gqa128>(problem, runs, workspace, queue)
                                : launch<Gqa64>(problem, runs, workspace, queue);
  } else {
    problem.q_nope.width == 128 ? launch<V2Lite>(problem, runs, workspace, queue)
                                : launch<MiniCpm3>(problem, runs, workspace, queue);
  }
}

}  // namespace lca::cuda
