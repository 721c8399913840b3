#pragma once
/// What a Cache holds, for the methods and kernels that fill and read it.

#include <lca/cache.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "attention/group_rows.h"
#include "attention/layout.h"
#include "attention/row_buffer.h"
#include "attention/row_format.h"
#include "core/threads.h"

namespace lca {

/// The parts of rows (row_format.h), which grow and shrink together.
struct EntryRows {
  RowBuffer semantic = RowBuffer();
  RowBuffer positional = RowBuffer();
  RowBuffer scales = RowBuffer();  ///< no rows where the format has none

  std::array<RowBuffer*, 3> parts() { return {&semantic, &positional, &scales}; }
  std::array<const RowBuffer*, 3> parts() const { return {&semantic, &positional, &scales}; }
  std::int64_t rows() const { return semantic.rows(); }
  std::size_t bytes() const {
    std::size_t total = 0;
    for (const RowBuffer* part : parts()) total += part->bytes();
    return total;
  }
  std::size_t capacity_bytes() const {
    std::size_t total = 0;
    for (const RowBuffer* part : parts()) total += part->capacity_bytes();
    return total;
  }
  void drop_front(std::int64_t count) noexcept {
    for (RowBuffer* part : parts()) part->drop_front(std::min(count, part->rows()));
  }
  void drop_back(std::int64_t count) noexcept {
    for (RowBuffer* part : parts()) part->drop_back(std::min(count, part->rows()));
  }
  EntryRows clone() const { return {semantic.clone(), positional.clone(), scales.clone()}; }
};

/// Rows are numbered as the cache holds them: the sink first, then the window. Row u is position u
/// in the sink, and position u + dropped after it.
struct Cache::State {
  explicit State(const LayerSpec& layer);

  LayerSpec spec;
  Layout layout;
  RowFormat format;                           ///< of window and representatives; the sink is plain
  std::vector<std::uint64_t> rotation_steps;  ///< of spec.rotation; none with token positions
  std::int64_t length = 0;                    ///< n, tokens taken
  bool prompt_open = false;                   ///< `prompt` mode: more of the prompt is to come
  std::int64_t dropped = 0;                   ///< positions after the sink that are gone
  GroupRows groups;                           ///< representatives
  EntryRows sink;
  EntryRows window;
  RowBuffer queries;  ///< the last queries, [row][H][d_n + d_r] float32; empty but for method lca
  Archive* archive = nullptr;

  std::int64_t rows() const { return sink.rows() + window.rows(); }
  /// `count` rows from row `first` of `rows`, as they are stored.
  static CacheRows stored(const EntryRows& rows, std::int64_t first, std::int64_t count);
  /// `count` representatives from `first` on, which must be contiguous.
  CacheRows groups_stored(std::int64_t first, std::int64_t count) const;
  /// Plain rows as views.
  Entries view(const CacheRows& rows) const;
  /// Rows of either format as views: where they lie, or what rows of 8 bits stand for, in `values`.
  Entries values(const CacheRows& rows, std::vector<float>& values) const;
  /// Appends the tokens' entries, converting them to the cache's dtype.
  void append(ThreadPool& pool, const Entries& entries);
  /// Appends the queries of the last tokens and drops those that no group will need.
  void append_queries(const Queries& queries);
  /// Drops window rows until `total` positions after the sink are gone; inside a step that is not
  /// staged the rows stay until it is committed.
  void drop(std::int64_t total);

  /// All rows of tokens: the sink's, as many of the window, and last the queries. Rows of the sink
  /// begin at position 0, all others end at `length`.
  std::array<RowBuffer*, 7> buffers() {
    return {&sink.semantic,     &sink.positional, &sink.scales, &window.semantic,
            &window.positional, &window.scales,   &queries};
  }
  std::array<const RowBuffer*, 7> buffers() const {
    return {&sink.semantic,     &sink.positional, &sink.scales, &window.semantic,
            &window.positional, &window.scales,   &queries};
  }

  /// Begins a step: until `step_commit` nothing that `step_rollback` needs is dropped. A staged
  /// step works on copies of window and queries, so that rows may be dropped on the way: for a
  /// whole prompt in one step. Only a staged step may throw here, and then nothing has changed.
  void step_begin(bool staged);
  void step_commit() noexcept;
  /// The cache as it was when the step began. Does nothing outside a step.
  void step_rollback() noexcept;

  /// Queries that may still be needed: the next group leaves with a query to come, so at most
  /// n_q − 1 of those seen score it, even after the cache was cut back inside its window.
  std::int64_t queries_kept() const { return layout.summary_queries - 1; }
  /// Whether the last run is complete: taken, attended and released.
  bool settled() const { return !prompt_open && dropped == layout.dropped(length); }

 private:
  /// What a step must restore: numbers of rows, since inside a step rows only come at the end.
  struct Before {
    std::int64_t length, dropped, groups;
    bool prompt_open;
    std::array<std::int64_t, 7> rows;  // of `buffers`
  };
  /// Whether rows at the front must stay.
  bool holds_front() const { return before_ && !staged_; }

  /// Appends entries `first` and later as rows of 8 bits.
  void append_int8(ThreadPool& pool, const Entries& entries, std::int64_t first);

  std::optional<Before> before_;
  bool staged_ = false;
  EntryRows kept_window_;   // of a staged step
  RowBuffer kept_queries_;  // the same
};

/// Fills spare capacity with NaN, so that a test sees who reads it.
void cache_poison_spare(Cache& cache);

/// The same cache with rows of another type; rows of 8 bits stay as they are.
Cache cache_converted(const Cache& cache, DType dtype);

/// What a cache at a marked position holds beside representatives, as bytes; and that cache again,
/// with representatives of `whole`, which has come past the position. Throws Error on bytes that
/// are no such cache.
std::vector<std::byte> cache_mark_save(const Cache& cache);
Cache cache_mark_load(std::span<const std::byte> bytes, const Cache& whole);

/// Bytes that `Cache::save` would write.
std::size_t cache_stream_bytes(const Cache& cache);

/// Rewrites the checksum at the end of a saved stream, so that a fuzzer gets past it.
void cache_seal(std::vector<std::byte>& stream);

}  // namespace lca
