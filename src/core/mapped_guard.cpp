#include "core/mapped_guard.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <utility>

namespace lca {

namespace detail {
std::atomic<int> mapped_lost{0};
}

/// One range. Slots are taken and given back while other threads' faults search the table, so a
/// reader may see one half changed: `end` is written last when a range comes, first when it goes,
/// and read before and after `begin`.
struct MappedSlot {
  std::atomic<bool> taken{false};
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};
  std::atomic<bool> lost{false};

  /// The end of the range if `address` lies in it, else 0.
  std::uintptr_t end_behind(std::uintptr_t address) const {
    const std::uintptr_t before = end.load();
    if (address >= before || address < begin.load() || end.load() != before) return 0;
    return before;
  }

  void mark_lost() {
    if (!lost.exchange(true)) detail::mapped_lost.fetch_add(1);
  }
};

namespace {

static_assert(std::atomic<std::uintptr_t>::is_always_lock_free);
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

/// The table grows by whole blocks, which are never freed: a handler may be looking at them.
struct SlotBlock {
  std::array<MappedSlot, 64> slots;
  std::atomic<SlotBlock*> next{nullptr};
};
SlotBlock first_block;

MappedSlot* slot_find(std::uintptr_t address) {
  for (SlotBlock* block = &first_block; block != nullptr; block = block->next.load()) {
    for (MappedSlot& slot : block->slots) {
      if (slot.end_behind(address) != 0) return &slot;
    }
  }
  return nullptr;
}

MappedSlot* slot_take() {
  for (SlotBlock* block = &first_block;;) {
    for (MappedSlot& slot : block->slots) {
      if (!slot.taken.load(std::memory_order_relaxed) && !slot.taken.exchange(true)) return &slot;
    }
    SlotBlock* next = block->next.load();
    if (next == nullptr) {
      auto* fresh = new SlotBlock;
      if (block->next.compare_exchange_strong(next, fresh)) {
        next = fresh;
      } else {
        delete fresh;  // somebody else was faster, and `next` is theirs
      }
    }
    block = next;
  }
}

// --- the signal handler: system calls and lock-free atomics only ---------------------------------

struct sigaction previous_action;  // written once, before the handler can run
std::uintptr_t page_bytes = 0;

/// Zeros from the page at `address` to the end of its range; false where that failed, or it is in
/// none.
bool range_fill(std::uintptr_t address) {
  MappedSlot* slot = slot_find(address);
  if (slot == nullptr) return false;
  const std::uintptr_t end = slot->end_behind(address);
  if (end == 0) return false;
  // Marked before anyone can read a zero.
  slot->mark_lost();
  const std::uintptr_t first = address / page_bytes * page_bytes;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
#if defined(SYS_mmap)
  // The bare system call: what a sanitizer puts around mmap does not belong into a handler, and
  // takes it for a write to pages that others are reading.
  return ::syscall(SYS_mmap, first, end - first, PROT_READ, kFlags, -1, 0) != -1;
#else
  return ::mmap(reinterpret_cast<void*>(first), end - first, PROT_READ, kFlags, -1, 0) !=
         MAP_FAILED;
#endif
}

/// Does what would have been done without us.
void signal_pass_on(int signal, siginfo_t* info, void* context) {
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(signal, info, context);
    return;
  }
  const bool sent = info->si_code <= 0;  // by a process, rather than raised by a read
  if (previous_action.sa_handler == SIG_IGN && sent) return;
  if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(signal);
    return;
  }
  // Back to the default: a read is tried again and raises the signal again, one that was sent is
  // sent again; it waits until this handler returns.
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  ::sigemptyset(&usual.sa_mask);
  ::sigaction(signal, &usual, nullptr);
  if (sent) ::raise(signal);
}

void bus_error_handle(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const bool beyond_end = info->si_code == BUS_ADRERR;
  if (!beyond_end || !range_fill(reinterpret_cast<std::uintptr_t>(info->si_addr))) {
    signal_pass_on(signal, info, context);
  }
  errno = error;
}

void handler_install() {
  static const bool installed = [] {
    page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    ::sigaction(SIGBUS, nullptr, &previous_action);
    struct sigaction action {};
    action.sa_sigaction = bus_error_handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    ::sigemptyset(&action.sa_mask);
    return ::sigaction(SIGBUS, &action, nullptr) == 0;
  }();
  static_cast<void>(installed);
}

}  // namespace

MappedGuard::MappedGuard(std::span<const std::byte> mapped) {
  if (mapped.empty()) return;
  handler_install();
  slot_ = slot_take();
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped.data());
  slot_->lost.store(false);
  slot_->begin.store(begin);
  slot_->end.store((begin + mapped.size() + page_bytes - 1) / page_bytes * page_bytes);
}

MappedGuard::~MappedGuard() {
  if (slot_ == nullptr) return;
  slot_->end.store(0);
  slot_->begin.store(0);
  if (slot_->lost.exchange(false)) detail::mapped_lost.fetch_sub(1);
  slot_->taken.store(false);
}

MappedGuard::MappedGuard(MappedGuard&& other) noexcept : slot_(std::exchange(other.slot_, {})) {}

MappedGuard& MappedGuard::operator=(MappedGuard&& other) noexcept {
  std::swap(slot_, other.slot_);
  return *this;
}

bool mapped_contains(const void* address) {
  return slot_find(reinterpret_cast<std::uintptr_t>(address)) != nullptr;
}

bool MappedGuard::intact() const { return slot_ == nullptr || !slot_->lost.load(); }

}  // namespace lca
