// Writing: whole replies, and streams with a bound on what waits for the client.

#include "server/http/connection.h"

#include "core/error.h"

#include <boost/asio/buffer.hpp>

#include <algorithm>
#include <utility>

namespace lca::server {
namespace {

using WriteError = boost::system::error_code;

}  // namespace

void Connection::header(std::string name, std::string value) {
  header_check(name, value);
  if (reply_.started) fail_internal("a header after the reply was begun");
  reply_.headers.emplace_back(std::move(name), std::move(value));
}

void Connection::idle_comment(std::function<std::string()> text) {
  reply_.comment = std::move(text);
}

void Connection::on_gone(std::function<void()> call) {
  if (gone_) {
    call();
  } else {
    reply_.on_gone = std::move(call);
  }
}

asio::awaitable<void> Connection::send(int status, std::string content_type, std::string body) {
  if (reply_.started) fail_internal("a request was answered twice");
  if (!content_type.empty()) header("Content-Type", std::move(content_type));
  keep_alive_ = keep_alive_ && !core_->draining;
  const ResponseShape shape{minor_version_, keep_alive_, body.size()};
  std::string bytes = response_head(status, reply_.headers, shape);
  reply_.started = true;
  reply_.status = status;
  if (!reply_.head_only) bytes += body;
  std::string().swap(body);
  co_await write_all(bytes);
}

asio::awaitable<void> Connection::begin_stream(int status, std::string content_type) {
  if (reply_.started) fail_internal("a request was answered twice");
  reply_.events = content_type.starts_with("text/event-stream");
  header("Content-Type", std::move(content_type));
  header("Cache-Control", "no-store");
  header("X-Accel-Buffering", "no");  // nginx would hold events back
  reply_.chunked = minor_version_ > 0;
  keep_alive_ = keep_alive_ && reply_.chunked && !core_->draining;
  const ResponseShape shape{minor_version_, keep_alive_, std::nullopt};
  reply_.pending = response_head(status, reply_.headers, shape);
  reply_.started = true;
  reply_.status = status;
  reply_.streaming = true;
  asio::co_spawn(executor_, pump(shared_from_this()), asio::detached);
  co_return;
}

void Connection::stream_append(std::string_view data) {
  if (reply_.chunked) {
    chunk_append(reply_.pending, data);
  } else {
    reply_.pending += data;
  }
}

asio::awaitable<bool> Connection::write(std::string data) {
  if (!reply_.streaming || reply_.ending) fail_internal("no stream was begun, or it has ended");
  if (gone_) co_return false;
  if (!reply_.head_only) stream_append(data);
  output_timer_.cancel();
  while (reply_.pending.size() > core_->options.stream_bound && !gone_) {
    room_timer_.expires_at(Clock::time_point::max());
    WriteError error;
    co_await room_timer_.async_wait(asio::redirect_error(asio::use_awaitable, error));
  }
  co_return !gone_;
}

asio::awaitable<void> Connection::end_stream() {
  if (!reply_.streaming) fail_internal("no stream was begun");
  if (!reply_.ending) {
    reply_.ending = true;
    if (reply_.chunked && !reply_.head_only && !gone_) reply_.pending += chunk_end;
    output_timer_.cancel();
  }
  while (!reply_.pump_done) {
    room_timer_.expires_at(Clock::time_point::max());
    WriteError error;
    co_await room_timer_.async_wait(asio::redirect_error(asio::use_awaitable, error));
  }
}

std::string Connection::comment_text() const {
  std::string text;
  try {
    if (reply_.comment) text = reply_.comment();
  } catch (const std::exception&) {  // a comment is not worth a reply
    text.clear();
  }
  if (text.empty()) text = "waiting";
  std::ranges::replace(text, '\n', ' ');
  std::ranges::replace(text, '\r', ' ');
  return ": " + text + "\n\n";
}

/// Hands a stream to the socket: whatever gathered while the last write went on goes out as one.
asio::awaitable<void> Connection::pump([[maybe_unused]] std::shared_ptr<Connection> self) {
  try {
    auto idle_since = Clock::now();
    while (!gone_) {
      if (reply_.pending.empty()) {
        if (reply_.ending) break;
        const bool comments = reply_.events && !reply_.head_only;
        const auto due = idle_since + core_->options.comment_every;
        if (comments && Clock::now() >= due) {
          stream_append(comment_text());
          continue;
        }
        output_timer_.expires_at(comments ? due : Clock::time_point::max());
        WriteError error;
        co_await output_timer_.async_wait(asio::redirect_error(asio::use_awaitable, error));
        continue;
      }
      const std::string bytes = std::exchange(reply_.pending, {});
      room_timer_.cancel();
      const bool written = co_await write_all(bytes);
      if (!written) break;
      idle_since = Clock::now();
    }
  } catch (const std::exception&) {  // no memory: the handler waits for the end all the same
    broken_ = true;
    client_gone();
  }
  reply_.pump_done = true;
  room_timer_.cancel();
}

/// False: the client is gone or took nothing for too long.
asio::awaitable<bool> Connection::write_all(std::string_view data) {
  WriteError error;
  while (!data.empty() && !broken_) {
    const std::size_t count = socket_.write_some(asio::buffer(data.data(), data.size()), error);
    data.remove_prefix(count);
    record_.bytes_out += count;
    replied_ = replied_ || count > 0;
    if (!error) continue;
    if (error != asio::error::would_block && error != asio::error::try_again) break;
    error.clear();
    write_timer_.expires_after(core_->options.write_timeout);
    auto self = shared_from_this();
    write_timer_.async_wait([self](WriteError cancelled) {
      if (cancelled) return;
      self->broken_ = true;
      WriteError ignored;
      self->socket_.cancel(ignored);
    });
    co_await socket_.async_wait(asio::socket_base::wait_write,
                                asio::redirect_error(asio::use_awaitable, error));
    write_timer_.cancel();
    if (error) break;
  }
  if (!error && !broken_) co_return true;
  broken_ = true;
  client_gone();
  co_return false;
}

}  // namespace lca::server
