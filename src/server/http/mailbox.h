#pragma once
/// Items from any thread to one coroutine.

#include "server/http/asio.h"

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace lca::server {

/// `push` may be called by any thread, also after the receiver left; `pop` by one coroutine that
/// runs on the executor. Shared by both sides.
template <typename T>
class Mailbox : public std::enable_shared_from_this<Mailbox<T>> {
 public:
  static std::shared_ptr<Mailbox> make(asio::any_io_executor executor) {
    return std::shared_ptr<Mailbox>(new Mailbox(std::move(executor)));
  }

  void push(T item) {
    bool wake = false;
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return;
      wake = items_.empty();
      items_.push_back(std::move(item));
    }
    if (wake) wake_receiver();
  }

  /// What is there is still received; later items are dropped.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    wake_receiver();
  }

  /// The next item; nothing where `patience` ran out or the box is closed and empty.
  asio::awaitable<std::optional<T>> pop(std::chrono::steady_clock::duration patience) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    const auto self = this->shared_from_this();
    for (;;) {
      std::optional<T> item = take();
      if (item || closed() || std::chrono::steady_clock::now() >= deadline) co_return item;
      // A push between take() and here posts its wake-up behind this coroutine on the same
      // executor.
      timer_.expires_at(deadline);
      boost::system::error_code error;
      co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, error));
    }
  }

  bool closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }

 private:
  explicit Mailbox(asio::any_io_executor executor)
      : executor_(std::move(executor)), timer_(executor_) {}

  std::optional<T> take() {
    const std::lock_guard lock(mutex_);
    std::optional<T> item;
    if (!items_.empty()) {
      item = std::move(items_.front());
      items_.pop_front();
    }
    return item;
  }

  void wake_receiver() {
    auto self = this->shared_from_this();
    asio::post(executor_, [self] { self->timer_.cancel(); });
  }

  asio::any_io_executor executor_;
  asio::steady_timer timer_;  // touched on the executor alone
  mutable std::mutex mutex_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace lca::server
