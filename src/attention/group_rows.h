#pragma once
/// The representatives of one layer and one sequence, in pages that sequences share.
///
/// A representative never changes once it is written, so a fork takes a reference to every page
/// instead of a copy. A page is filled by the holder that reaches its next free slot first; another
/// holder that ends inside the page continues in a page of its own. Pages end at multiples of 64,
/// later of 192 representatives: the kernels' blocks then lie inside one page, but for the one
/// block in which a fork begins.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/workspace.h"

namespace lca {

/// Bytes of one representative's parts.
struct GroupRowBytes {
  std::int64_t semantic = 0;    ///< KV · d_semantic values
  std::int64_t positional = 0;  ///< KV · d_positional values
  std::int64_t bias = 0;        ///< KV floats with mass `score`, else 0
  std::int64_t scales = 0;      ///< floats of rows of 8 bits, else 0

  std::int64_t total() const { return semantic + positional + bias + scales; }
};

/// Not thread-safe by itself; holders that share pages may work in different threads.
class GroupRows {
 public:
  explicit GroupRows(const GroupRowBytes& bytes = {}) : bytes_(bytes) {}

  std::int64_t rows() const { return rows_; }
  const GroupRowBytes& row_bytes() const { return bytes_; }
  /// Addresses of representative j's parts.
  std::byte* semantic(std::int64_t j) { return at(j, &Page::semantic, bytes_.semantic); }
  std::byte* positional(std::int64_t j) { return at(j, &Page::positional, bytes_.positional); }
  float* bias(std::int64_t j) { return reinterpret_cast<float*>(at(j, &Page::bias, bytes_.bias)); }
  float* scales(std::int64_t j) {
    return reinterpret_cast<float*>(at(j, &Page::scales, bytes_.scales));
  }
  const std::byte* semantic(std::int64_t j) const {
    return const_cast<GroupRows*>(this)->semantic(j);
  }
  const std::byte* positional(std::int64_t j) const {
    return const_cast<GroupRows*>(this)->positional(j);
  }
  const float* bias(std::int64_t j) const { return const_cast<GroupRows*>(this)->bias(j); }
  const float* scales(std::int64_t j) const { return const_cast<GroupRows*>(this)->scales(j); }
  /// How many representatives from j on lie one after another in memory.
  std::int64_t contiguous(std::int64_t j) const;
  /// All of that at once: the page is looked up once.
  struct Run {
    const std::byte* semantic;
    const std::byte* positional;
    const float* bias;
    const float* scales;
    std::int64_t count;
  };
  Run run(std::int64_t j) const;

  /// Adds `count` uninitialised representatives; unchanged where memory runs out.
  void grow(std::int64_t count);
  /// Takes back what `grow` added since there were `rows`; no other holder may share those.
  void take_back(std::int64_t rows) noexcept;
  /// Another holder of the first `rows` representatives.
  GroupRows share(std::int64_t rows) const;

  /// Bytes of the representatives, and of those in pages that others hold too.
  std::size_t bytes() const { return static_cast<std::size_t>(rows_ * bytes_.total()); }
  std::size_t shared_bytes() const;
  std::size_t capacity_bytes() const;
  /// Fills slots that no holder has written with NaN patterns.
  void poison_spare();

 private:
  struct Page {
    SessionBytes memory;
    std::int64_t capacity = 0;
    std::atomic<std::int64_t> used{0};  // slots claimed by any holder
    std::byte* semantic = nullptr;
    std::byte* positional = nullptr;
    std::byte* bias = nullptr;
    std::byte* scales = nullptr;
  };
  /// A page as this holder sees it: slot 0 is representative `first`, and `rows` slots are its own.
  struct Part {
    std::shared_ptr<Page> page;
    std::int64_t first = 0;
    std::int64_t rows = 0;
  };

  const Part& part_of(std::int64_t j) const;
  std::byte* at(std::int64_t j, std::byte* Page::*memory, std::int64_t width) {
    const Part& part = part_of(j);
    return part.page.get()->*memory + (j - part.first) * width;
  }
  std::shared_ptr<Page> page_make() const;

  GroupRowBytes bytes_;
  std::vector<Part> parts_;
  std::int64_t rows_ = 0;
};

}  // namespace lca
