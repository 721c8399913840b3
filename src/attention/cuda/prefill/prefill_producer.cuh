#pragma once
/// Hopper's prefill kernel (prefill_sm90.cu): its widths, its shared memory, and the producer warp
/// group that fills it.

#include <cuda.h>

#include <cstdint>

#include "attention/cuda/prefill/prefill_tiles.cuh"
#include "attention/cuda/prefill/run_table.cuh"
#include "core/cuda/hopper.cuh"

namespace lca::cuda::prefilling {

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

}  // namespace lca::cuda::prefilling
