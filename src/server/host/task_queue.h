#pragma once
/// Threads that run what is handed to them, now or later.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace lca::server {

/// Tasks begin in the order of their times. What a task throws is lost: it must catch by itself.
class TaskQueue {
 public:
  using Clock = std::chrono::steady_clock;

  explicit TaskQueue(int threads) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
    }
  }
  ~TaskQueue() { stop(); }
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  /// Drops the tasks that have not begun and those that are posted from now on.
  void drop() {
    decltype(tasks_) left;  // what they hold goes without the lock
    const std::lock_guard lock(mutex_);
    dropping_ = true;
    left.swap(tasks_);
  }
  /// The same, and waits for those that have begun. No task may call it.
  void stop() {
    drop();
    for (std::jthread& thread : threads_) thread.request_stop();
    threads_.clear();
  }

  void post(std::function<void()> task, Clock::duration delay = {}) {
    {
      const std::lock_guard lock(mutex_);
      if (dropping_) return;
      tasks_.emplace(std::pair(Clock::now() + delay, next_++), std::move(task));
    }
    wake_.notify_one();
  }

 private:
  void work(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      if (tasks_.empty()) {
        wake_.wait(lock, stop, [this] { return !tasks_.empty(); });
        continue;
      }
      const auto when = tasks_.begin()->first.first;
      if (when > Clock::now()) {
        const std::uint64_t known = next_;
        wake_.wait_until(lock, stop, when, [&] { return next_ != known; });
        continue;
      }
      std::function<void()> task = std::move(tasks_.begin()->second);
      tasks_.erase(tasks_.begin());
      lock.unlock();
      try {
        task();
      } catch (...) {
      }
      task = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::map<std::pair<Clock::time_point, std::uint64_t>, std::function<void()>> tasks_;
  std::uint64_t next_ = 0;
  bool dropping_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace lca::server
