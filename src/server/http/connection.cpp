#include "server/http/connection.h"

#include "core/error.h"

#include <boost/asio/buffer.hpp>

#include <poll.h>

#include <algorithm>
#include <array>
#include <exception>

namespace lca::server {
namespace {

using ConnectionError = boost::system::error_code;

constexpr std::chrono::milliseconds hangup_every{100};

/// Takes a connection off the list whatever ends its coroutine.
struct ConnectionLeave {
  ServerCore* core;
  Connection* connection;
  ConnectionLeave(ServerCore* of, Connection* which) : core(of), connection(which) {}
  ConnectionLeave(const ConnectionLeave&) = delete;
  ConnectionLeave& operator=(const ConnectionLeave&) = delete;
  ~ConnectionLeave() { core->connection_leave(connection); }
};

/// Counts a body's memory while it is read.
class ReadingBytes {
 public:
  explicit ReadingBytes(ServerCore& core) : core_(core) {}
  ReadingBytes(const ReadingBytes&) = delete;
  ReadingBytes& operator=(const ReadingBytes&) = delete;
  ~ReadingBytes() { core_.reading_bytes -= held_; }

  /// False: all bodies together take too much.
  bool set(std::size_t held) {
    core_.reading_bytes += held - held_;  // wraps around where it is less
    held_ = held;
    return core_.reading_bytes <= core_.options.max_reading_bytes;
  }

 private:
  ServerCore& core_;
  std::size_t held_ = 0;
};

}  // namespace

Connection::Connection(std::shared_ptr<ServerCore> core, Socket socket)
    : core_(std::move(core)),
      socket_(std::move(socket)),
      executor_(socket_.get_executor()),
      input_timer_(executor_),
      output_timer_(executor_),
      room_timer_(executor_),
      write_timer_(executor_),
      hangup_timer_(executor_),
      late_(core_->draining) {
  ConnectionError error;
  socket_.non_blocking(true, error);
  socket_.set_option(asio::ip::tcp::no_delay(true), error);
  socket_.set_option(asio::socket_base::keep_alive(true), error);
  address_.bound = core_->options.host;
  const auto local = socket_.local_endpoint(error);
  if (!error) address_.local = local.address().to_string();
  const auto remote = socket_.remote_endpoint(error);
  if (!error) peer_ = remote.address().to_string();
}

// --- the connection's life ----------------------------------------------------------------------

asio::awaitable<void> Connection::serve(std::shared_ptr<Connection> self) {
  const ConnectionLeave leave(core_.get(), self.get());
  for (;;) {
    const bool begun = co_await request_await();
    if (!begun) break;
    const bool again = co_await request_serve();
    if (!again) break;
    replied_ = false;  // the client has read it, or asked for more without
  }
  if (replied_ && !broken_ && !eof_) co_await linger();
  close();
}

asio::awaitable<void> Connection::turn_away(std::shared_ptr<Connection> self) {
  const ConnectionLeave leave(core_.get(), self.get());
  keep_alive_ = false;
  reply_.headers.emplace_back("Retry-After", "1");
  co_await send_error(503, "too many connections; try again");
  if (!broken_) co_await linger();
  close();
}

void Connection::drain_begin() {
  input_ = true;
  input_timer_.cancel();
}

void Connection::break_off() {
  eof_ = true;
  broken_ = true;
  client_gone();
  close();
  drain_begin();
}

void Connection::close() {
  ConnectionError error;
  socket_.close(error);
  hangup_timer_.cancel();
  write_timer_.cancel();
}

/// Lets the client read the last reply: closing with unread input would reset the connection.
asio::awaitable<void> Connection::linger() {
  ConnectionError error;
  socket_.shutdown(asio::socket_base::shutdown_send, error);
  const auto deadline = Clock::now() + core_->options.linger;
  bool more = !error;
  while (more && !eof_) {
    in_.clear();
    more = co_await input_wait(deadline);
  }
}

// --- reading ------------------------------------------------------------------------------------

/// Waits for input without holding a buffer: memory of idle connections is what counts.
void Connection::reader_arm() {
  if (reading_ || eof_) return;
  if (handling_ && in_.size() >= core_->options.read_ahead) return hangup_watch();
  reading_ = true;
  auto self = shared_from_this();
  socket_.async_wait(asio::socket_base::wait_read,
                     [self](ConnectionError error) { self->reader_ready(error); });
}

void Connection::reader_ready(ConnectionError error) {
  thread_local std::array<char, 64 << 10> bytes;
  reading_ = false;
  std::size_t room = bytes.size();
  if (handling_) {
    const std::size_t bound = core_->options.read_ahead;
    room = std::min(room, bound - std::min(bound, in_.size()));
  }
  if (!error && room > 0) {
    const std::size_t count = socket_.read_some(asio::buffer(bytes.data(), room), error);
    if (error == asio::error::would_block || error == asio::error::try_again) error.clear();
    try {
      in_.append(bytes.data(), count);
    } catch (const std::bad_alloc&) {
      eof_ = true;
    }
  }
  eof_ = eof_ || error;
  input_ = true;
  input_timer_.cancel();
  if (!handling_) return;
  if (eof_) return client_gone();
  reader_arm();
}

/// Where further requests fill the buffer, end-of-file stands behind bytes that are not read; the
/// kernel knows of it all the same.
void Connection::hangup_watch() {
  hangup_timer_.expires_after(hangup_every);
  auto self = shared_from_this();
  hangup_timer_.async_wait([self](ConnectionError error) {
    if (error || !self->handling_ || !self->socket_.is_open()) return;
    pollfd poll_for{self->socket_.native_handle(), POLLRDHUP, 0};
    if (::poll(&poll_for, 1, 0) > 0 && (poll_for.revents & (POLLRDHUP | POLLHUP | POLLERR))) {
      return self->client_gone();
    }
    self->hangup_watch();
  });
}

/// False: the deadline passed. True: input came, or its end, or draining began.
asio::awaitable<bool> Connection::input_wait(Clock::time_point deadline) {
  reader_arm();
  while (!input_) {
    if (Clock::now() >= deadline) co_return false;
    input_timer_.expires_at(deadline);
    ConnectionError error;
    co_await input_timer_.async_wait(asio::redirect_error(asio::use_awaitable, error));
  }
  input_ = false;
  co_return true;
}

void Connection::client_gone() {
  if (gone_) return;
  gone_ = true;
  if (core_->gone_counter && handling_) core_->gone_counter->add();
  if (reply_.streaming) {
    reply_.pending.clear();
    ConnectionError error;
    socket_.cancel(error);  // a write that nobody takes
  }
  room_timer_.cancel();
  output_timer_.cancel();
  const std::function<void()> call = std::exchange(reply_.on_gone, nullptr);
  try {
    if (call) call();
  } catch (const std::exception&) {  // its own failure; the connection ends anyway
    broken_ = true;
  }
}

// --- requests -----------------------------------------------------------------------------------

/// True: a byte of the next request is there.
asio::awaitable<bool> Connection::request_await() {
  const auto deadline = Clock::now() + core_->options.idle_timeout;
  if (in_.empty()) std::string().swap(in_);
  for (;;) {
    // Blank lines before a request are passed over (RFC 9112, 2.2).
    in_.erase(0, std::min(in_.find_first_not_of("\r\n"), in_.size()));
    if (!in_.empty()) co_return true;
    if (eof_ || (core_->draining && !late_)) co_return false;
    const bool more = co_await input_wait(deadline);
    if (!more) co_return false;
  }
}

/// Reads one request and answers it. True: another one may follow.
asio::awaitable<bool> Connection::request_serve() {
  began_ = Clock::now();
  reply_ = Reply{};
  about_ = HttpRequest{};
  record_ = RequestRecord{};
  record_.peer = peer_;
  auto reader = std::make_unique<RequestReader>(core_->options.limits);
  keep_alive_ = false;
  const bool whole = co_await request_read(*reader);
  if (whole) {
    keep_alive_ = reader->keep_alive();
    HttpRequest request = std::move(reader->request());
    reader.reset();
    co_await request_handle(std::move(request));
  }
  if (reply_.started || !record_.method.empty()) request_record();
  const bool again = keep_alive_ && reply_.started && !gone_ && !broken_;
  reply_ = Reply{};
  co_return again;
}

/// True: the request is complete and may pass. False: it was answered, or the client left.
asio::awaitable<bool> Connection::request_read(RequestReader& reader) {
  auto deadline = began_ + core_->options.header_timeout;
  bool checked = false;
  ReadingBytes reading(*core_);
  for (;;) {
    input_ = false;
    const std::size_t used = reader.feed(in_);
    in_.erase(0, used);
    record_.bytes_in += used;
    if (!checked && reader.state() >= RequestReader::State::body) {
      request_known(reader.request());
      minor_version_ = reader.minor_version();
    }
    if (reader.state() == RequestReader::State::failed) {
      co_await send_error(reader.status(), reader.problem());
      co_return false;
    }
    const bool done = reader.state() == RequestReader::State::done;
    if (core_->draining) {
      reply_.headers.emplace_back("Retry-After", "1");
      co_await give_up(reader, 503, "the server is shutting down");
      co_return false;
    }
    if (!checked && reader.state() != RequestReader::State::headers) {
      checked = true;
      const std::optional<Refusal> refusal =
          gate_check(reader.request(), minor_version_, core_->options.gate, address_);
      if (refusal) {
        keep_alive_ = done && reader.keep_alive();
        co_await refuse(*refusal);
        co_return false;
      }
      deadline = Clock::now() + core_->options.body_timeout;
      if (!done && reader.expects_continue()) {
        const bool written = co_await write_all("HTTP/1.1 100 Continue\r\n\r\n");
        if (!written) co_return false;
      }
    }
    if (!reading.set(reader.body_held())) {
      reply_.headers.emplace_back("Retry-After", "1");
      co_await send_error(429, "the bodies that are being read take too much memory; try again");
      co_return false;
    }
    if (done) co_return true;
    if (used > 0 && !in_.empty()) continue;  // the body, behind its headers
    if (eof_) {
      gone_ = true;
      co_return false;
    }
    const bool more = co_await input_wait(deadline);
    if (!more) {
      co_await give_up(reader, 408,
                       checked ? "the request's body did not arrive in time"
                               : "the request's headers did not arrive in time");
      co_return false;
    }
  }
}

/// Answers a request that is not read to its end, of which errors need what is known.
asio::awaitable<void> Connection::give_up(RequestReader& reader, int status, std::string message) {
  reader.fail(status, std::move(message));
  request_known(reader.request());
  co_await send_error(reader.status(), reader.problem());
}

asio::awaitable<void> Connection::request_handle(HttpRequest request) {
  handling_ = true;
  reader_arm();
  if (request.method == "HEAD") request.method = "GET";  // the reply's body is left out
  const std::string methods =
      request.method == "OPTIONS" ? gate_methods(core_->options.gate, request.path) : "";
  std::string failure;
  try {
    if (!methods.empty()) {
      reply_.headers.emplace_back("Allow", methods);
      co_await send(204, "", "");
    } else {
      co_await core_->handler(std::move(request), *this);
    }
    if (!reply_.started && !gone_) failure = "the request was not answered";
  } catch (const std::exception&) {
    failure = "an internal error";  // its text may quote the request
  }
  if (!failure.empty() && reply_.streaming) {  // an end would look like a complete reply
    broken_ = true;
    gone_ = true;
    reply_.pending.clear();
    close();
  }
  if (reply_.streaming) {
    co_await end_stream();
  } else if (!failure.empty() && !reply_.started) {
    reply_.headers.clear();
    co_await send_error(500, failure);
  }
  handling_ = false;
  reply_.on_gone = nullptr;
  hangup_timer_.cancel();
}

void Connection::request_known(const HttpRequest& request) {
  about_ = {request.method, request.path, request.query, request.headers, {}};
  record_.method = request.method;
  record_.path = request.path;
  reply_.head_only = request.method == "HEAD";
}

void Connection::request_record() {
  record_.status = reply_.started ? reply_.status : 499;
  record_.gone = gone_ || broken_;
  record_.seconds = std::chrono::duration<double>(Clock::now() - began_).count();
  core_->record(record_);
}

asio::awaitable<void> Connection::refuse(const Refusal& refusal) {
  if (!refusal.allow.empty()) reply_.headers.emplace_back("Allow", refusal.allow);
  if (refusal.ask_for_key) reply_.headers.emplace_back("WWW-Authenticate", "Bearer");
  co_await send_error(refusal.status, refusal.message);
}

asio::awaitable<void> Connection::send_error(int status, std::string message) {
  std::string type = "application/json";
  std::string body;
  if (core_->options.error_render) {
    std::tie(type, body) = core_->options.error_render(about_, status, message);
  } else {
    body = error_body(status, message);
  }
  co_await send(status, std::move(type), std::move(body));
}

}  // namespace lca::server
