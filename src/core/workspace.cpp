#include "core/workspace.h"

#include <cstdint>
#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace lca {

AlignedBytes aligned_bytes(std::size_t bytes) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const std::size_t unit = bytes >= 2 * kHugePage ? kHugePage : kAlignment;
  if (bytes > SIZE_MAX - unit) throw std::bad_alloc();
  const std::size_t size = align_up(bytes == 0 ? 1 : bytes, unit);
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(unit, size));
  if (memory == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  // Panels of keys are read in large strides: larger pages mean fewer address translations.
  if (unit == kHugePage) madvise(memory, size, MADV_HUGEPAGE);
#endif
  return AlignedBytes(memory);
}

void SessionBytesDeleter::operator()(std::byte*) const {
#if defined(__linux__)
  if (mapped > 0) {
    ::munmap(begin, mapped);
    return;
  }
#endif
  std::free(begin);
}

SessionBytes session_bytes(std::size_t bytes) {
  constexpr std::size_t kLeast = std::size_t{128} << 10;  // from here on it is mapped
  if (bytes < kLeast) {
    // aligned_alloc asks the heap for more than it keeps, and gives both ends back: what is freed
    // later is smaller than what the next call asks for (seen with glibc 2.36). So it is aligned
    // here, and all of it is kept.
    void* begin = std::malloc(bytes + kAlignment);
    if (begin == nullptr) throw std::bad_alloc();
    const std::size_t over = reinterpret_cast<std::uintptr_t>(begin) % kAlignment;
    return SessionBytes(static_cast<std::byte*>(begin) + (kAlignment - over),
                        SessionBytesDeleter{begin, 0});
  }
#if defined(__linux__)
  constexpr std::size_t kPage = 4096;
  constexpr std::size_t kMost = std::size_t{4} << 20;  // from here on huge pages are worth more
  if (bytes < kMost) {
    const std::size_t size = align_up(bytes, kPage);
    void* memory =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    // The number of mappings has a limit: beyond it the heap has to do.
    if (memory != MAP_FAILED) {
      return SessionBytes(static_cast<std::byte*>(memory), SessionBytesDeleter{memory, size});
    }
  }
#endif
  std::byte* memory = aligned_bytes(bytes).release();
  return SessionBytes(memory, SessionBytesDeleter{memory, 0});
}

void memory_room_require(std::size_t bytes) {
#if defined(__linux__)
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  ::munmap(memory, bytes);
#else
  aligned_bytes(bytes);
#endif
}

std::byte* Workspace::prepare(std::size_t bytes) {
  if (bytes > bytes_) {
    memory_.reset();
    bytes_ = 0;
    memory_ = aligned_bytes(bytes);
    bytes_ = bytes;
  }
  return memory_.get();
}

void Workspace::poison() {
  if (bytes_ > 0) std::memset(memory_.get(), 0xff, bytes_);
}

}  // namespace lca
