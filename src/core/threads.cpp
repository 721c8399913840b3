#include "core/threads.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#if defined(__GLIBC__)
#include <execinfo.h>
#endif

namespace lca {
namespace {

/// OpenMP's threads end by pthread_exit, for which glibc loads the unwinder, and ends the process
/// where there is no memory for that: so it is loaded while there is.
void unwinder_load() {
#if defined(__GLIBC__)
  void* frame = nullptr;
  ::backtrace(&frame, 1);
#endif
}

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Polls `ready` for a short time before the caller sleeps, which costs more than a short job:
/// first spinning, then yielding the core.
template <typename Ready>
bool poll(const Ready& ready) {
  constexpr int kSpins = 2000;
  constexpr int kYields = 1000;
  for (int i = 0; i < kSpins; ++i) {
    if (ready()) return true;
    relax();
  }
  for (int i = 0; i < kYields; ++i) {
    if (ready()) return true;
    std::this_thread::yield();
  }
  return false;
}

}  // namespace

struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable done;
  std::vector<std::thread> workers;

  // One job at a time. `job` counts jobs, so that a sleeping worker can tell a new one from the
  // last. A worker increments `inside` before it checks whether the job is still `open`; the caller
  // closes the job when no task is left and waits until `inside` is 0. A worker that wakes late
  // therefore delays nothing, and the fields below never change while a worker may read them. The
  // mutex is for sleeping threads only, which are counted first (`sleepers`, `waiting`): a job that
  // finds every worker awake takes no lock.
  std::atomic<std::uint64_t> job{0};
  std::atomic<bool> open{false};
  std::atomic<int> inside{0};
  std::atomic<int> sleepers{0};
  std::atomic<bool> waiting{false};
  std::atomic<bool> stop{false};
  std::atomic<std::int64_t> next{0};
  std::int64_t count = 0;
  Call call = nullptr;
  void* self = nullptr;
  std::exception_ptr error;

  void work(int worker) {
    for (;;) {
      const std::int64_t task = next.fetch_add(1, std::memory_order_relaxed);
      if (task >= count) return;
      try {
        call(self, task, worker);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        next.store(count, std::memory_order_relaxed);
      }
    }
  }

  /// Starts a new job: wakes all sleeping workers.
  void call_all() {
    job.fetch_add(1);
    if (sleepers.load() == 0) return;
    // A worker that is counted in `sleepers` holds the mutex until it waits.
    { const std::lock_guard lock(mutex); }
    wake.notify_all();
  }

  /// Waits until no worker is inside.
  void wait_for_all() {
    const auto left = [&] { return inside.load() == 0; };
    if (poll(left)) return;
    waiting.store(true);
    {
      std::unique_lock lock(mutex);
      done.wait(lock, left);
    }
    waiting.store(false);
  }

  void worker_loop(int worker) {
    std::uint64_t seen = 0;
    for (;;) {
      const auto called = [&] { return job.load() != seen; };
      if (!poll(called)) {
        sleepers.fetch_add(1);
        std::unique_lock lock(mutex);
        wake.wait(lock, called);
        sleepers.fetch_sub(1);
      }
      // In this order: once the job of a stop is counted as seen, `stop` reads true.
      seen = job.load();
      if (stop.load()) return;
      inside.fetch_add(1);
      if (open.load()) work(worker);
      if (inside.fetch_sub(1) == 1 && waiting.load()) {
        const std::lock_guard lock(mutex);
        done.notify_one();
      }
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  unwinder_load();
  try {
    state_->workers.reserve(static_cast<std::size_t>(std::max(0, threads - 1)));
    for (int worker = 1; worker < threads; ++worker) {
      state_->workers.emplace_back([state = state_.get(), worker] { state->worker_loop(worker); });
    }
  } catch (const std::system_error&) {
    // No memory for another stack, or too many threads: results do not depend on their number, so
    // those that started do the work.
  } catch (const std::bad_alloc&) {
  }
}

ThreadPool::~ThreadPool() {
  state_->stop.store(true);
  state_->call_all();
  for (std::thread& worker : state_->workers) worker.join();
}

int ThreadPool::size() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::run_erased(std::int64_t count, Call call, void* self) {
  if (count <= 0) return;
  if (count == 1 || state_->workers.empty()) {
    for (std::int64_t task = 0; task < count; ++task) call(self, task, 0);
    return;
  }
  State& state = *state_;
  state.count = count;
  state.call = call;
  state.self = self;
  state.error = nullptr;
  state.next.store(0, std::memory_order_relaxed);
  state.open.store(true);
  state.call_all();
  state.work(0);
  state.open.store(false);
  state.wait_for_all();
  const std::exception_ptr error = std::exchange(state.error, nullptr);
  if (error) std::rethrow_exception(error);
}

}  // namespace lca
