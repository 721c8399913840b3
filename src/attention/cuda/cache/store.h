#pragma once
/// The caches of all layers and sequences of a model on one GPU, in one allocation: addresses never
/// change, so that captured graphs and tensor maps stay valid.

#include <lca/cache.h>

#include <cstdint>
#include <span>
#include <vector>

#include "attention/cuda/views.h"
#include "core/cuda/memory.h"
#include "core/cuda/transfer.h"

namespace lca::cuda {

/// What a store must hold at most.
struct StoreLimits {
  int layers = 1;
  int slots = 1;             ///< sequences at a time
  std::int64_t longest = 1;  ///< tokens of one sequence
  /// Pages of representatives that all slots share; 0: as many as `slots` sequences of `longest`
  /// tokens need.
  std::int64_t pages = 0;
};

/// Bytes of a store, by what they hold.
struct StoreBytes {
  std::size_t groups = 0;   ///< representatives, in pages
  std::size_t exact = 0;    ///< sinks and windows
  std::size_t queries = 0;  ///< recent queries, raw and reduced
  std::size_t tables = 0;   ///< page tables and sequences
  std::size_t total() const { return groups + exact + queries + tables; }
};

/// One layer's caches as the calls see them. Slot i is sequence i.
struct LayerCache {
  GroupPool pool;
  ExactPool exact;
  RotationView rotation;                ///< with entry positions
  SessionView* sessions = nullptr;      ///< [slots]; length −1: the slot is free
  const std::int32_t* pages = nullptr;  ///< [slots][pages_each]
  float* summary = nullptr;             ///< [slots][summary_rows][KV·summary_width]
  bf16* recent_nope = nullptr;          ///< MLA [slots][recent][H][d_n]: query t at row t % recent
  bf16* recent_rope = nullptr;          ///< [slots][recent][H][d_r]
  int slots = 0;
  int pages_each = 0;
  std::int64_t exact_each = 0;  ///< rows of `exact` of one slot: sink, then ring
  std::int64_t ring = 0;
  std::int64_t recent = 0;  ///< raw queries kept; 0 where nothing is condensed
  std::int64_t summary_rows = 0;
  std::int64_t summary_values = 0;  ///< of one query: KV·summary_width

  bf16* semantic_of(const AttentionShape& shape, int slot) const {
    return exact.semantic + slot * exact_each * shape.kv_heads * shape.d_semantic();
  }
  bf16* positional_of(const AttentionShape& shape, int slot) const {
    return exact.positional + slot * exact_each * shape.kv_heads * shape.d_positional();
  }
  const std::int32_t* pages_of(int slot) const { return pages + std::int64_t{slot} * pages_each; }
  float* summary_of(int slot) const { return summary + slot * summary_rows * summary_values; }
  bf16* recent_nope_of(const AttentionShape& shape, int slot) const {
    return recent_nope + slot * recent * shape.heads * shape.d_nope;
  }
  bf16* recent_rope_of(const AttentionShape& shape, int slot) const {
    return recent_rope + slot * recent * shape.heads * shape.d_rope;
  }
};

/// Owns the memory, hands out slots and pages. All layers have one spec, and a page number means
/// the same rows in every layer, so that one table serves all of them. For one thread at a time.
class CacheStore {
 public:
  CacheStore(const Device& device, const LayerSpec& spec, GroupType type, const StoreLimits& limits,
             cudaStream_t stream, bool poison = false);

  /// What the constructor will allocate.
  static StoreBytes bytes(const LayerSpec& spec, GroupType type, const StoreLimits& limits);

  const LayerSpec& spec() const { return spec_; }
  const StoreLimits& limits() const { return limits_; }
  const LayerCache& layer(int index) const { return layers_[static_cast<std::size_t>(index)]; }

  /// The lowest free slot, empty from now on; throws Error (out of memory) where all are taken.
  int open();
  /// Gives a slot and its pages back.
  void close(int slot);
  bool is_open(int slot) const;

  /// Tokens of a sequence, as the host counts them. The GPU counts for itself: the caller that
  /// enqueues a chunk or replays steps reports them here once all layers have them.
  std::int64_t length(int slot) const;
  void advance(int slot, std::int64_t tokens);
  /// All layers of a slot hold `length` tokens, which were written from outside.
  void set_length(int slot, std::int64_t length);

  /// Assigns pages for every representative up to lengths[i] tokens of slots[i], ahead of the calls
  /// that write them; enqueues the change of the tables. Throws Error (out of memory), and assigns
  /// nothing, where too few are free.
  void reserve(std::span<const int> slots, std::span<const std::int64_t> lengths);
  std::int64_t pages_free() const { return static_cast<std::int64_t>(free_pages_.size()); }

 private:
  struct Slot {
    bool open = false;
    std::int64_t length = 0;
    std::vector<std::int32_t> pages;
  };
  Slot& slot_at(int slot);
  const Slot& slot_at(int slot) const;
  std::int64_t pages_missing(int slot, std::int64_t length) const;
  void lengths_write(int slot, std::int64_t length);

  const Device& device_;
  LayerSpec spec_;
  StoreLimits limits_;
  Buffer memory_;
  std::vector<LayerCache> layers_;
  SessionView* views_ = nullptr;  // [layers][slots]
  std::int32_t* tables_ = nullptr;
  std::vector<Slot> slots_;
  std::vector<std::int32_t> free_pages_;  // taken from the back
  Queue queue_;
};

/// Sets the length of `slot` in `layers` consecutive arrays of `slots` sessions.
void lengths_set(SessionView* sessions, int layers, int slots, int slot, std::int32_t length,
                 const Queue& queue);

}  // namespace lca::cuda
