#pragma once
/// Rows of equal width that grow at the end and fall off at the front.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>

#include "core/workspace.h"

namespace lca {

/// A queue of byte rows in one contiguous piece of memory. Dropping rows from the front only moves
/// a mark; the rows move once in a while, when the end of the memory is reached.
class RowBuffer {
 public:
  explicit RowBuffer(std::int64_t row_bytes = 0) : row_bytes_(row_bytes) {}

  std::int64_t rows() const { return rows_; }
  std::int64_t row_bytes() const { return row_bytes_; }
  std::size_t bytes() const { return static_cast<std::size_t>(rows_ * row_bytes_); }
  std::size_t capacity_bytes() const { return static_cast<std::size_t>(capacity_ * row_bytes_); }
  std::byte* row(std::int64_t i) { return memory_.get() + (begin_ + i) * row_bytes_; }
  const std::byte* row(std::int64_t i) const { return memory_.get() + (begin_ + i) * row_bytes_; }

  /// Adds `count` uninitialised rows and returns the first.
  std::byte* grow(std::int64_t count) {
    if (begin_ + rows_ + count > capacity_) make_room(count);
    rows_ += count;
    return row(rows_ - count);
  }

  /// The same in an empty buffer, with room for the next runs.
  std::byte* grow_with_spare(std::int64_t count) {
    reallocate(count + std::min(count, kSpareRows));
    return grow(count);
  }

  void drop_front(std::int64_t count) noexcept {
    begin_ += count;
    rows_ -= count;
    if (rows_ == 0) begin_ = 0;
  }

  void drop_back(std::int64_t count) noexcept {
    rows_ -= count;
    if (rows_ == 0) begin_ = 0;
  }

  /// Frees memory where a long prompt left far more than is in use, unless the smaller piece cannot
  /// be allocated.
  void shrink() noexcept {
    if (capacity_ <= kSpareRows || capacity_ <= 4 * rows_) return;
    try {
      reallocate(2 * rows_);
    } catch (const std::bad_alloc&) {
      return;
    }
  }

  /// A copy without spare capacity.
  RowBuffer clone() const {
    RowBuffer copy(row_bytes_);
    if (rows_ > 0) std::memcpy(copy.grow(rows_), row(0), bytes());
    return copy;
  }

  /// Fills everything that is not a row with NaN patterns.
  void poison_spare() {
    if (capacity_ == 0) return;
    std::memset(memory_.get(), 0xff, static_cast<std::size_t>(begin_ * row_bytes_));
    std::memset(memory_.get() + (begin_ + rows_) * row_bytes_, 0xff,
                static_cast<std::size_t>((capacity_ - begin_ - rows_) * row_bytes_));
  }

 private:
  static constexpr std::int64_t kSpareRows = 64;
  static constexpr std::int64_t kSpareShare = 8;

  /// Spare rows beside so many: each row is copied some eight times on its way through a window,
  /// which is little beside computing it, and twice the window would be a lot of memory.
  static std::int64_t spare_rows(std::int64_t rows) {
    return std::min(rows, std::max(kSpareRows, rows / kSpareShare));
  }

  void make_room(std::int64_t count) {
    const std::int64_t needed = rows_ + count;
    if (needed <= capacity_ && begin_ >= spare_rows(rows_)) {
      std::memmove(memory_.get(), row(0), bytes());
      begin_ = 0;
    } else {
      // A large run is taken exactly.
      reallocate(std::max(needed, rows_ + spare_rows(rows_)));
    }
  }

  void reallocate(std::int64_t capacity) {
    SessionBytes memory = session_bytes(static_cast<std::size_t>(capacity * row_bytes_));
    if (rows_ > 0) std::memcpy(memory.get(), row(0), bytes());
    memory_ = std::move(memory);
    capacity_ = capacity;
    begin_ = 0;
  }

  SessionBytes memory_;
  std::int64_t row_bytes_;
  std::int64_t capacity_ = 0, begin_ = 0, rows_ = 0;
};

}  // namespace lca
