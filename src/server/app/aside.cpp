#include "server/app/aside.h"

#include "server/app/on_gone.h"
#include "server/http/mailbox.h"
#include "server/types.h"

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

namespace lca::server {
namespace {

constexpr int kAsideRetry = 2;

/// Whose turn it is: the work's, or that of the coroutine it refers to.
class AsideWork {
 public:
  /// For the thread: false where the work was dropped.
  bool begin() { return change(Stage::running); }
  void end() {
    stage_ = Stage::over;
    stage_.notify_all();
  }
  /// For the coroutine: true where the work will not begin.
  bool drop() { return change(Stage::dropped); }
  /// Returns once the work runs no more.
  void leave() {
    if (drop()) return;
    stage_.wait(Stage::running);
  }

 private:
  enum class Stage : std::uint8_t { waiting, running, over, dropped };

  bool change(Stage to) {
    Stage from = Stage::waiting;
    return stage_.compare_exchange_strong(from, to);
  }

  std::atomic<Stage> stage_{Stage::waiting};
};

/// Whatever ends a coroutine, its work does not outlive it. Waits only where the coroutine did not:
/// without memory, or where all connections are broken off.
class AsideLeave {
 public:
  explicit AsideLeave(AsideWork& work) : work_(work) {}
  ~AsideLeave() { work_.leave(); }
  AsideLeave(const AsideLeave&) = delete;
  AsideLeave& operator=(const AsideLeave&) = delete;

 private:
  AsideWork& work_;
};

}  // namespace

Aside::Place::Place(Aside& aside, std::size_t bytes) : aside_(aside), bytes_(bytes) {
  const std::size_t works = aside_.works_.fetch_add(1);
  const std::size_t before = aside_.bytes_.fetch_add(bytes_);
  const bool large = bytes_ > 0 && before > 0 && before + bytes_ > aside_.most_bytes_;
  if (works < aside_.most_works_ && !large) return;
  --aside_.works_;
  aside_.bytes_ -= bytes_;
  ApiError error;
  error.status = 429;
  error.message = large ? "too many large requests are waiting; try again in 2 s"
                        : "too many requests are waiting; try again in 2 s";
  error.retry_after = kAsideRetry;
  throw ApiException(std::move(error));
}

Aside::Place::~Place() {
  --aside_.works_;
  aside_.bytes_ -= bytes_;
}

asio::awaitable<bool> Aside::run(const std::function<void()>& work, ResponseWriter& writer) {
  const auto inbox = Mailbox<std::exception_ptr>::make(writer.executor());
  const auto claim = std::make_shared<AsideWork>();
  const AsideLeave leave(*claim);
  queue_.post([claim, box = inbox.box(), &work] {
    if (!claim->begin()) return;
    std::exception_ptr failure;
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
    claim->end();                   // from here on `work` may be gone
    box->push(std::move(failure));  // this thread keeps nothing of it
  });
  const OnGone leaving(writer, [claim, box = inbox.box()] {
    if (claim->drop()) box->close();
  });
  // Without end: the work refers to this coroutine, and was begun or will be.
  std::optional<std::exception_ptr> made;
  while (!made && !inbox.box()->closed()) made = co_await inbox.pop(std::chrono::hours(1));
  if (!made) co_return false;
  if (*made) std::rethrow_exception(*made);
  co_return true;
}

}  // namespace lca::server
