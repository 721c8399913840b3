#include "core/threads.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace lca {

struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable done;
  std::vector<std::thread> workers;

  // One job at a time. `job` counts jobs so that a sleeping worker knows a new one from the last.
  std::atomic<std::uint64_t> job{0};
  std::atomic<int> running{0};
  std::atomic<std::int64_t> next{0};
  std::int64_t count = 0;
  Call call = nullptr;
  void* self = nullptr;
  bool stop = false;
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

  void worker_loop(int worker) {
    // A decode step is a handful of short jobs in a row: look for the next one a little while
    // before going to sleep, which costs more than the job.
    constexpr int kPolls = 2000;
    std::uint64_t seen = 0;
    for (;;) {
      for (int poll = 0; poll < kPolls && job.load(std::memory_order_acquire) == seen; ++poll) {
        std::this_thread::yield();
      }
      {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return stop || job.load(std::memory_order_relaxed) != seen; });
        if (stop) return;
        seen = job.load(std::memory_order_relaxed);
      }
      work(worker);
      if (running.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        const std::lock_guard lock(mutex);
        done.notify_one();
      }
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  for (int worker = 1; worker < threads; ++worker) {
    state_->workers.emplace_back([state = state_.get(), worker] { state->worker_loop(worker); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
    state_->job.fetch_add(1, std::memory_order_release);
  }
  state_->wake.notify_all();
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
  {
    const std::lock_guard lock(state.mutex);
    state.count = count;
    state.call = call;
    state.self = self;
    state.error = nullptr;
    state.next.store(0, std::memory_order_relaxed);
    state.running.store(static_cast<int>(state.workers.size()), std::memory_order_relaxed);
    state.job.fetch_add(1, std::memory_order_release);
  }
  state.wake.notify_all();
  state.work(0);
  std::exception_ptr error;
  {
    std::unique_lock lock(state.mutex);
    state.done.wait(lock, [&] { return state.running.load(std::memory_order_acquire) == 0; });
    error = std::exchange(state.error, nullptr);
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace lca
