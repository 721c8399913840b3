#pragma once
/// Scratch memory: planned first, then carved.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace lca {

/// Every carved piece starts on its own cache line.
constexpr std::size_t kAlignment = 64;

constexpr std::size_t align_up(std::size_t bytes, std::size_t unit = kAlignment) {
  return (bytes + unit - 1) / unit * unit;
}

struct FreeDeleter {
  void operator()(void* memory) const { std::free(memory); }
};
using AlignedBytes = std::unique_ptr<std::byte[], FreeDeleter>;

/// Uninitialised bytes aligned to a cache line (to a huge page where large); throws std::bad_alloc.
AlignedBytes aligned_bytes(std::size_t bytes);

/// Frees what `session_bytes` returned.
struct SessionBytesDeleter {
  void* begin = nullptr;   ///< of what was allocated or mapped
  std::size_t mapped = 0;  ///< bytes that were mapped; 0: allocated
  void operator()(std::byte* memory) const;
};
using SessionBytes = std::unique_ptr<std::byte[], SessionBytesDeleter>;

/// The same for the memory of one session, which comes and goes: where it is large it is mapped by
/// itself, so that it leaves the process when it is freed, instead of a hole in the heap, and what
/// is never written takes no memory. Where it is small, the next piece of its size fits into the
/// hole that it leaves: a hole of std::aligned_alloc is too small for that.
SessionBytes session_bytes(std::size_t bytes);

/// Throws std::bad_alloc where `bytes` more cannot be allocated at the moment: for calls into
/// libraries that crash when their own allocation fails.
void memory_room_require(std::size_t bytes);

/// One block of scratch memory, kept from call to call and grown when a plan needs more.
class Workspace {
 public:
  /// At least `bytes`, contents undefined; invalidates what an earlier call returned.
  std::byte* prepare(std::size_t bytes);
  std::size_t bytes() const { return bytes_; }
  /// Fills the block with NaN patterns, so that a test notices reads of what was never written.
  void poison();

 private:
  AlignedBytes memory_;
  std::size_t bytes_ = 0;
};

/// Returns pieces of a block one after another; with a null block it only counts bytes, so that the
/// same code plans and carves.
class Carver {
 public:
  explicit Carver(std::byte* block = nullptr) : block_(block) {}

  template <typename T>
  T* take(std::int64_t count) {
    std::byte* piece = block_ == nullptr ? nullptr : block_ + used_;
    used_ += align_up(static_cast<std::size_t>(count) * sizeof(T));
    return reinterpret_cast<T*>(piece);
  }

  std::size_t used() const { return used_; }

 private:
  std::byte* block_;
  std::size_t used_ = 0;
};

}  // namespace lca
