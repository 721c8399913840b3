#include "support/allocation_count.h"

#include "support/sanitized.h"

#include <atomic>
#include <cerrno>
#include <cstddef>

namespace lca::test {
namespace {

std::atomic<std::int64_t> taken{0};
std::atomic<std::int64_t> in_use{0};
std::atomic<std::int64_t> left{-1};  // allocations until one fails; below 0: none does

}  // namespace

std::int64_t allocations() { return taken; }
std::int64_t allocated_bytes() { return in_use; }
void allocation_fail_after(std::int64_t count) { left = count; }
bool allocation_failed() { return left == 0; }

}  // namespace lca::test

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__clang__)

#include <malloc.h>

// These definitions replace the C library's, whose functions are also available under these other
// names; operator new calls malloc.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void __libc_free(void*);
}

namespace lca::test {
namespace {

/// Whether this allocation is the one that fails; those after it fail too.
bool fails() {
  std::int64_t now = left.load(std::memory_order_relaxed);
  if (now < 0) return false;
  while (now > 0 && !left.compare_exchange_weak(now, now - 1)) {
  }
  return now <= 0;
}

void* counted(void* block) {
  if (block == nullptr) return block;
  taken.fetch_add(1, std::memory_order_relaxed);
  in_use.fetch_add(static_cast<std::int64_t>(::malloc_usable_size(block)),
                   std::memory_order_relaxed);
  return block;
}

void given_back(void* block) {
  if (block == nullptr) return;
  in_use.fetch_sub(static_cast<std::int64_t>(::malloc_usable_size(block)),
                   std::memory_order_relaxed);
}

}  // namespace

bool allocations_are_counted() { return true; }

}  // namespace lca::test

extern "C" {

void* malloc(std::size_t bytes) {
  return lca::test::fails() ? nullptr : lca::test::counted(__libc_malloc(bytes));
}

void* calloc(std::size_t count, std::size_t bytes) {
  return lca::test::fails() ? nullptr : lca::test::counted(__libc_calloc(count, bytes));
}

void* realloc(void* block, std::size_t bytes) {
  if (lca::test::fails()) return nullptr;
  const std::size_t before = block == nullptr ? 0 : ::malloc_usable_size(block);
  void* moved = __libc_realloc(block, bytes);
  if (moved == nullptr && bytes != 0) return nullptr;  // the old block stays
  lca::test::in_use.fetch_sub(static_cast<std::int64_t>(before), std::memory_order_relaxed);
  return lca::test::counted(moved);
}

void* memalign(std::size_t unit, std::size_t bytes) {
  return lca::test::fails() ? nullptr : lca::test::counted(__libc_memalign(unit, bytes));
}

void* aligned_alloc(std::size_t unit, std::size_t bytes) {
  return lca::test::fails() ? nullptr : lca::test::counted(__libc_memalign(unit, bytes));
}

int posix_memalign(void** block, std::size_t unit, std::size_t bytes) {
  void* taken = lca::test::fails() ? nullptr : lca::test::counted(__libc_memalign(unit, bytes));
  if (taken == nullptr) return ENOMEM;
  *block = taken;
  return 0;
}

void free(void* block) {
  lca::test::given_back(block);
  __libc_free(block);
}

}  // extern "C"

#else

namespace lca::test {
bool allocations_are_counted() { return false; }
}  // namespace lca::test

#endif
