#include "core/pages.h"

#include "core/mapped_guard.h"

#include <sys/mman.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <cstdint>

namespace lca {

void pages_release(const std::byte* data, std::size_t bytes) {
#ifdef MADV_DONTNEED
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t first = (address + page - 1) / page * page;
  const std::uintptr_t end = (address + bytes) / page * page;
  // Elsewhere (a file that was read) the pages would come back as zeros.
  if (first >= end || !mapped_contains(data)) return;
  auto* pages = const_cast<std::byte*>(data) + (first - address);
  static_cast<void>(::madvise(pages, end - first, MADV_DONTNEED));  // a hint: it may be ignored
#endif
}

void heap_trim() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

}  // namespace lca
