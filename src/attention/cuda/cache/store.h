#pragma once
/// The caches of all layers and sequences of a model on one GPU. Addresses never change, so that
/// captured graphs and tensor maps stay valid; memory is taken as sequences need it and given back
/// when they close.
///
/// A sequence has three kinds of memory, each numbered on its own:
///   window  sink, ring of exact tokens, recent queries and their summaries, of all layers but
///           dense ones: one block of fixed size;
///   pages   of representatives, shared by sequences and marks by counting holders. A page holds
///           the same 64 representatives in all layers that condense;
///   slot    the table of its pages, and all tokens of dense layers, which get memory as they come.
/// CacheSequence (sequence.h) puts them together.

#include <lca/cache.h>

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "attention/cuda/cache/exact_blocks.h"
#include "attention/cuda/cache/store_sizes.h"
#include "attention/cuda/views.h"
#include "core/cuda/memory.h"
#include "core/cuda/transfer.h"

namespace lca::cuda {

/// Where a sequence is.
struct CachePlace {
  int slot = 0;
  int window = 0;
};

/// One sequence of a decode step, as a device table has it: a step gathers its SessionViews from
/// these (CacheStore::views_gather). Length −1: a row without a sequence.
struct alignas(16) StepRow {
  std::int32_t slot = 0;
  std::int32_t window = 0;
  std::int32_t length = -1;
  std::int32_t unused = 0;
};

/// One layer's caches as the calls see them. Strides count values.
struct LayerCache {
  GroupPool pool;   ///< row = page · kPageRows + …, pages as in the tables
  ExactPool exact;  ///< rows of all windows and layers; not where `dense`
  RotationView rotation;
  bool dense = false;                ///< exact tokens are numbered by slot, else by window
  bf16* semantic = nullptr;          ///< of window (slot) 0: [exact_each][KV][d_semantic]
  bf16* positional = nullptr;        ///< [exact_each][KV][d_positional]
  std::int64_t semantic_stride = 0;  ///< from one window (slot) to the next
  std::int64_t positional_stride = 0;
  const std::int32_t* pages = nullptr;  ///< [slots][pages_each]
  float* summary = nullptr;             ///< of window 0: [summary_rows][KV·summary_width]
  std::int64_t summary_stride = 0;
  bf16* recent_nope = nullptr;  ///< MLA, of window 0: [recent][H][d_n]: query t at row t % recent
  bf16* recent_rope = nullptr;  ///< [recent][H][d_r]
  std::int64_t nope_stride = 0, rope_stride = 0;
  int pages_each = 0;
  std::int64_t exact_each = 0;  ///< rows of one window (slot): sink, then ring
  std::int64_t ring = 0;
  /// Rows of raw queries: n_q, one more than a next chunk needs, so that a step that is rolled
  /// back destroys none of those. 0 where nothing is condensed.
  std::int64_t recent = 0;
  std::int64_t summary_rows = 0;    ///< n_q, or 0
  std::int64_t summary_values = 0;  ///< of one query: KV·summary_width

  bf16* semantic_of(CachePlace at) const { return semantic + number(at) * semantic_stride; }
  bf16* positional_of(CachePlace at) const { return positional + number(at) * positional_stride; }
  const std::int32_t* pages_of(CachePlace at) const {
    return pages + std::int64_t{at.slot} * pages_each;
  }
  float* summary_of(CachePlace at) const { return summary + at.window * summary_stride; }
  bf16* recent_nope_of(CachePlace at) const { return recent_nope + at.window * nope_stride; }
  bf16* recent_rope_of(CachePlace at) const { return recent_rope + at.window * rope_stride; }
  std::int64_t number(CachePlace at) const { return dense ? at.slot : at.window; }
};

/// Hands out windows, slots and pages. All layers have one shape; settings may differ. For one
/// thread at a time, on one stream: memory is given back only when that stream has come to rest.
class CacheStore {
 public:
  CacheStore(const Device& device, std::span<const LayerSpec> layers, GroupType type,
             const StoreLimits& limits, cudaStream_t stream);
  ~CacheStore();
  CacheStore(const CacheStore&) = delete;
  CacheStore& operator=(const CacheStore&) = delete;

  /// What one sequence of `length` tokens takes, marks aside.
  static StoreBytes sequence_bytes(std::span<const LayerSpec> layers, GroupType type,
                                   std::int64_t length);

  int layers() const { return static_cast<int>(specs_.size()); }
  const std::vector<LayerSpec>& specs() const { return specs_; }
  const LayerSpec& spec(int layer) const { return specs_[static_cast<std::size_t>(layer)]; }
  const LayerCache& layer(int index) const { return layers_[static_cast<std::size_t>(index)]; }
  /// The first layer with the same spec: layers of one kind share plans.
  int kind(int layer) const { return kinds_[static_cast<std::size_t>(layer)]; }
  GroupType type() const { return type_; }
  const StoreLimits& limits() const { return limits_; }
  const Queue& queue() const { return queue_; }
  /// A number no other store of the process has had.
  std::uint64_t id() const { return id_; }

  /// Enqueues the SessionViews of a step: views [layers][batch] from a device table [batch]. The
  /// launch depends on addresses and `batch` alone, so that a captured one stays valid.
  void views_gather(const StepRow* table, int batch, SessionView* views, const Queue& queue) const;

  // --- what CacheSequence is made of -----------------------------------------------------------

  /// A free window with memory for `tokens` tokens, contents undefined. Throws Error (out of
  /// memory), as everything below that needs memory does; then nothing has changed.
  int window_open(std::int64_t tokens);
  void window_require(int window, std::int64_t tokens);
  void window_close(int window) noexcept;
  /// Enqueues a copy of all that a window of `tokens` tokens holds.
  void window_copy(int from, int to, std::int64_t tokens);

  int slot_open();
  void slot_close(int slot) noexcept;
  /// Memory for so many tokens of dense layers.
  void dense_require(int slot, std::int64_t tokens);
  /// Enqueues a copy of the first tokens of dense layers.
  void dense_copy(int from, int to, std::int64_t tokens);

  /// Throws Error (out of memory) where so many more pages cannot fit.
  void pages_expect(std::int64_t count);
  /// A free page with one holder.
  std::int32_t page_take();
  void page_hold(std::int32_t page) { ++page_holders_[static_cast<std::size_t>(page)]; }
  void page_drop(std::int32_t page) noexcept;
  bool page_shared(std::int32_t page) const {
    return page_holders_[static_cast<std::size_t>(page)] > 1;
  }
  void page_copy(std::int32_t from, std::int32_t to);
  /// Enqueues entries [first, first + pages.size()) of a slot's table.
  void table_write(int slot, std::int64_t first, std::span<const std::int32_t> pages);
  /// A page number as tables have it.
  std::int32_t table_entry(std::int32_t page) const;

  /// Representatives of a prefix of `length` tokens: the fewest of any layer that condenses; 0
  /// where none does.
  std::int64_t groups_fewest(std::int64_t length) const;
  /// Whether some layer condenses a group between two lengths.
  bool groups_grow(std::int64_t before, std::int64_t after) const;
  /// Pages a sequence of `length` tokens needs.
  std::int64_t pages_for(std::int64_t length) const;

  // --- memory ----------------------------------------------------------------------------------

  int windows_open() const { return windows_.taken() - static_cast<int>(warm_windows_.size()); }
  int slots_open() const { return slots_.taken(); }
  int pages_held() const { return pages_.taken(); }
  /// Memory the store holds now: whole granules, those kept for the next window included.
  StoreBytes backed() const;
  /// Gives back what is kept for the next window. Waits for the stream.
  void trim() noexcept;

 private:
  /// Numbers from 0 on; the lowest free one is taken next, so that what is in use stays together.
  class Numbers {
   public:
    explicit Numbers(int most = 0) : most_(most) {}
    /// Throws Error (out of memory) where all are taken.
    int take(const char* what);
    void give(int number);
    int taken() const { return next_ - static_cast<int>(free_.size()); }
    int most() const { return most_; }

   private:
    int most_;
    int next_ = 0;
    std::set<int> free_;
  };
  /// An array of equal blocks, each with memory or without.
  struct Blocks {
    BackedMemory memory;
    std::size_t each = 0;  // bytes

    std::size_t begin(int number) const { return static_cast<std::size_t>(number) * each; }
  };

  void layers_lay();
  void pages_lay();
  void windows_lay();
  void slots_lay();
  void blocks_hold(std::span<Blocks* const> all, int number);
  void blocks_drop(std::span<Blocks* const> all, int number) noexcept;
  std::size_t blocks_missing(std::span<Blocks* const> all, int number) const;
  void blocks_copy(std::span<Blocks* const> all, int from, int to);
  void room_check(std::size_t needed);
  template <typename Hold>
  void with_room(std::size_t needed, const Hold& hold);
  const cudaStream_t* poison() const { return limits_.poison ? &queue_.stream : nullptr; }
  void window_release(int window) noexcept;
  void rest() const noexcept;

  const Device& device_;
  std::vector<LayerSpec> specs_;
  std::vector<int> kinds_;
  GroupType type_;
  StoreLimits limits_;
  StoreSizes sizes_;
  Queue queue_;
  std::uint64_t id_;
  std::vector<LayerCache> layers_;
  std::vector<int> condensing_;  // layers
  std::vector<Layout> layouts_;  // theirs, each once
  int pages_each_ = 0;

  ExactBlocks window_rows_;                          // by window
  Blocks summary_, recent_nope_, recent_rope_;       // by window
  Blocks group_semantic_, group_positional_;         // by page
  Blocks semantic_scale_, positional_scale_, bias_;  // by page
  Blocks tables_;                                    // by slot
  ExactBlocks dense_rows_;                           // by slot
  std::vector<Blocks*> query_blocks_, page_blocks_, table_blocks_;
  Buffer layers_on_device_;  // LayerCache [layers]
  Buffer rotation_steps_;

  Numbers windows_, slots_, pages_;
  std::vector<int> warm_windows_;  // closed, memory kept
  std::vector<int> page_holders_;
};

}  // namespace lca::cuda
