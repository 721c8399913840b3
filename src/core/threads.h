#pragma once
/// A fixed pool of threads that runs numbered tasks.

#include <cstdint>
#include <memory>
#include <type_traits>

namespace lca {

/// Runs tasks 0 … count−1 on a fixed number of workers (the caller is worker 0). Free workers take
/// tasks in ascending order, so a task's result must not depend on its worker.
class ThreadPool {
 public:
  /// Where the system refuses some of the threads, the pool has fewer: `size` says how many.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;

  /// Calls body(task, worker) once per task and returns when all are done. The first exception a
  /// task throws is rethrown here; the remaining tasks are then skipped.
  template <typename Body>
  void run(std::int64_t count, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run_erased(
        count,
        [](void* self, std::int64_t task, int worker) {
          (*static_cast<Plain*>(self))(task, worker);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Call = void (*)(void* self, std::int64_t task, int worker);
  void run_erased(std::int64_t count, Call call, void* self);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lca
