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

/// `push` may be called by any thread, also after the receiver left and its executor is gone; `pop`
/// by one coroutine that runs on the executor. Senders share the box; the one who receives holds
/// the Receiver.
template <typename T>
class Mailbox : public std::enable_shared_from_this<Mailbox<T>> {
 public:
  /// With it goes all that refers to the executor, whoever still holds the box.
  class Receiver {
   public:
    explicit Receiver(std::shared_ptr<Mailbox> box) : box_(std::move(box)) {}
    ~Receiver() { box_->leave(); }
    Receiver(const Receiver&) = delete;
    Receiver& operator=(const Receiver&) = delete;

    /// The next item; nothing where `patience` ran out or the box is closed and empty.
    asio::awaitable<std::optional<T>> pop(std::chrono::steady_clock::duration patience) const {
      return box_->pop(patience);
    }
    /// For those who send.
    const std::shared_ptr<Mailbox>& box() const { return box_; }

   private:
    std::shared_ptr<Mailbox> box_;
  };

  static Receiver make(asio::any_io_executor executor) {
    return Receiver(std::shared_ptr<Mailbox>(new Mailbox(std::move(executor))));
  }

  void push(T item) {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    items_.push_back(std::move(item));
    if (items_.size() == 1) wake();
  }

  /// What is there is still received; later items are dropped.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    wake();
  }

  bool closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }

 private:
  /// Where the receiver waits.
  struct Place {
    explicit Place(asio::any_io_executor on) : executor(std::move(on)), timer(executor) {}
    asio::any_io_executor executor;
    asio::steady_timer timer;  // touched on the executor alone
  };

  explicit Mailbox(asio::any_io_executor executor) : place_(std::in_place, std::move(executor)) {}

  asio::awaitable<std::optional<T>> pop(std::chrono::steady_clock::duration patience) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    const auto self = this->shared_from_this();
    for (;;) {
      std::optional<T> item = take();
      if (item || closed() || std::chrono::steady_clock::now() >= deadline) co_return item;
      // A push between take() and here posts its wake-up behind this coroutine on the same
      // executor.
      place_->timer.expires_at(deadline);
      boost::system::error_code error;
      co_await place_->timer.async_wait(asio::redirect_error(asio::use_awaitable, error));
    }
  }

  std::optional<T> take() {
    const std::lock_guard lock(mutex_);
    std::optional<T> item;
    if (!items_.empty()) {
      item = std::move(items_.front());
      items_.pop_front();
    }
    return item;
  }

  void leave() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    place_.reset();
  }

  /// Under the lock: the executor is there, or it is known to be gone.
  void wake() {
    if (!place_) return;
    asio::post(place_->executor, [self = this->shared_from_this()] {
      const std::lock_guard lock(self->mutex_);
      if (self->place_) self->place_->timer.cancel();
    });
  }

  mutable std::mutex mutex_;
  std::optional<Place> place_;  ///< none after the receiver left
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace lca::server
