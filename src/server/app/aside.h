#pragma once
/// Work that would keep all connections waiting: threads beside the one that serves them.

#include "server/host/task_queue.h"
#include "server/http/writer.h"

#include <atomic>
#include <cstddef>
#include <functional>

namespace lca::server {

class Aside {
 public:
  /// Refused are works beyond `most_works` at a time, waiting ones included, and bytes beyond
  /// `most_bytes` of the bodies they need, unless there are no others.
  Aside(int threads, std::size_t most_works, std::size_t most_bytes)
      : most_works_(most_works), most_bytes_(most_bytes), queue_(threads) {}
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

  /// A place among the works, while it lives. Throws ApiException (429) where all are taken. What
  /// has a place in a host's queue needs none here.
  class Place {
   public:
    Place(Aside& aside, std::size_t bytes);
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

   private:
    Aside& aside_;
    std::size_t bytes_;
  };

  /// Runs `work` on one of the threads and throws what it throws. False: the client left before it
  /// began, and it will not begin. `work` may refer to the coroutine: it does not run after this.
  asio::awaitable<bool> run(const std::function<void()>& work, ResponseWriter& writer);

  /// Works that have not begun never will; who waits for them waits on.
  void drop() { queue_.drop(); }
  /// The same, and waits for those that have begun.
  void stop() { queue_.stop(); }

 private:
  const std::size_t most_works_, most_bytes_;
  std::atomic<std::size_t> works_{0}, bytes_{0};
  TaskQueue queue_;
};

}  // namespace lca::server
