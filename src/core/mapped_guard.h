#pragma once
/// Keeps the process alive when a file shrinks while it is mapped. Reading a page behind the file's
/// new end raises SIGBUS; the handler puts zeros in its place and remembers that the range is lost,
/// and whoever uses the results of reading asks before handing them out.
///
/// A file that is deleted or replaced (renamed over) stays mapped as it was. One that is
/// overwritten in place without changing its length cannot be told from the original without
/// reading it all again: that is not noticed.

#include <atomic>
#include <cstddef>
#include <span>

namespace lca {

struct MappedSlot;  // of the table the signal handler searches

/// A mapped range under guard. The first one installs the handler; faults elsewhere go to whatever
/// handled them before.
class MappedGuard {
 public:
  MappedGuard() = default;
  explicit MappedGuard(std::span<const std::byte> mapped);
  ~MappedGuard();
  MappedGuard(MappedGuard&&) noexcept;
  MappedGuard& operator=(MappedGuard&&) noexcept;

  /// Whether every page that was read was still there.
  bool intact() const;

 private:
  MappedSlot* slot_ = nullptr;
};

namespace detail {
extern std::atomic<int> mapped_lost;  // ranges under guard that lost a page
}

/// Whether no range under guard lost a page: one load, to be asked often.
inline bool mapped_all_intact() { return detail::mapped_lost.load(std::memory_order_acquire) == 0; }

/// Whether `address` lies in a range under guard: a page of a mapped file.
bool mapped_contains(const void* address);

}  // namespace lca
