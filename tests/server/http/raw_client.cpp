#include "server/http/raw_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace lca::server::test {
namespace {

using Clock = std::chrono::steady_clock;

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

}  // namespace

RawClient::RawClient(std::uint16_t port, int receive_buffer)
    : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
  if (receive_buffer > 0) {
    setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    close();
    throw std::runtime_error("cannot connect");
  }
}

RawClient::~RawClient() { close(); }

RawClient::RawClient(RawClient&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)), eof_(other.eof_), in_(std::move(other.in_)) {}

bool RawClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

bool RawClient::fill(Clock::time_point deadline) {
  if (eof_) return false;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  pollfd readable{socket_, POLLIN, 0};
  if (left < 0 || ::poll(&readable, 1, static_cast<int>(left)) <= 0) return false;
  char piece[16384];
  const ssize_t count = ::recv(socket_, piece, sizeof piece, 0);
  if (count <= 0) {
    eof_ = true;
    return false;
  }
  in_.append(piece, static_cast<std::size_t>(count));
  return true;
}

RawReply RawClient::reply(bool head_only, std::chrono::milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  RawReply out;
  std::size_t end = 0;
  while ((end = in_.find("\r\n\r\n")) == std::string::npos) {
    if (!fill(deadline)) return out;
  }
  const std::string head = in_.substr(0, end + 2);
  in_.erase(0, end + 4);
  out.status = std::atoi(head.c_str() + 9);
  for (std::size_t line = head.find("\r\n") + 2; line < head.size();) {
    const std::size_t stop = head.find("\r\n", line);
    const std::size_t colon = head.find(": ", line);
    out.headers[lower(head.substr(line, colon - line))] = head.substr(colon + 2, stop - colon - 2);
    line = stop + 2;
  }
  if (head_only || out.status == 204 || out.status == 100) {
    out.whole = true;
  } else if (out.headers.contains("content-length")) {
    const std::size_t length = std::stoul(out.headers["content-length"]);
    while (in_.size() < length && fill(deadline)) {
    }
    out.whole = in_.size() >= length;
    out.body = in_.substr(0, length);
    in_.erase(0, length);
  } else if (out.headers.contains("transfer-encoding")) {
    for (;;) {
      std::size_t line = 0;
      while ((line = in_.find("\r\n")) == std::string::npos) {
        if (!fill(deadline)) return out;
      }
      const std::size_t size = std::stoul(in_.substr(0, line), nullptr, 16);
      while (in_.size() < line + size + 4) {
        if (!fill(deadline)) return out;
      }
      out.body += in_.substr(line + 2, size);
      in_.erase(0, line + size + 4);
      if (size == 0) break;
    }
    out.whole = true;
  } else {
    while (fill(deadline)) {
    }
    out.body = std::exchange(in_, "");
    out.whole = eof_;
  }
  return out;
}

std::string RawClient::bytes(std::chrono::milliseconds patience) {
  if (in_.empty()) fill(Clock::now() + patience);
  return std::exchange(in_, "");
}

bool RawClient::closed_within(std::chrono::milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  while (fill(deadline)) {
  }
  return eof_;
}

void RawClient::half_close() { ::shutdown(socket_, SHUT_WR); }

void RawClient::close() {
  if (socket_ >= 0) ::close(std::exchange(socket_, -1));
}

void RawClient::reset() {
  const linger at_once{1, 0};
  setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  close();
}

std::string request_text(std::string_view method, std::string_view target, std::string_view headers,
                         std::string_view body) {
  std::string text =
      fmt::format("{} {} HTTP/1.1\r\nHost: 127.0.0.1\r\n{}", method, target, headers);
  if (!body.empty()) text += fmt::format("Content-Length: {}\r\n", body.size());
  return text + "\r\n" + std::string(body);
}

std::size_t descriptors_open() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

TestServer::TestServer(ServerOptions options) {
  options.port = 0;
  server_ = std::make_unique<Server>(std::move(options),
                                     [this](HttpRequest request, ResponseWriter& writer) {
                                       return answer(std::move(request), writer);
                                     });
  thread_ = std::thread([this] {
    server_->run();
    ended_ = true;
  });
}

TestServer::~TestServer() {
  server_->stop();
  thread_.join();
}

bool TestServer::ended_within(std::chrono::milliseconds patience) {
  return holds_within(patience, [this] { return ended_.load(); });
}

void TestServer::release() {
  released_ = true;
  const std::lock_guard lock(mutex_);
  for (const auto& weak : boxes_) {
    if (const auto box = weak.lock()) box->push(1);
  }
}

asio::awaitable<void> TestServer::wait_for_release(ResponseWriter& writer) {
  const auto inbox = Mailbox<int>::make(writer.executor());
  {
    const std::lock_guard lock(mutex_);
    boxes_.push_back(inbox.box());
  }
  writer.on_gone([this, box = inbox.box()] {
    left_at = Clock::now().time_since_epoch().count();
    ++left;
    box->close();
  });
  ++waiting;
  if (!released_) {
    const std::optional<int> item = co_await inbox.pop(60s);
    (void)item;
  }
  --waiting;
}

asio::awaitable<void> TestServer::answer(HttpRequest request, ResponseWriter& writer) {
  ++handled;
  const std::string type = "text/plain";
  if (request.path == "/echo") {
    std::string body =
        fmt::format("{}\n{}\n{}\n{}", request.method, request.path, request.query, request.body);
    co_await writer.send(200, type, std::move(body));
  } else if (request.path == "/wait") {
    co_await wait_for_release(writer);
    if (!writer.gone()) co_await writer.send(200, type, "released");
  } else if (request.path == "/idle") {
    writer.idle_comment([] { return std::string("reading\r\nprompt"); });
    co_await writer.begin_stream();
    co_await wait_for_release(writer);
    co_await writer.write("data: end\n\n");
  } else if (request.path == "/events") {
    co_await writer.begin_stream();
    for (int i = 0; i < 5; ++i) {
      std::string event = fmt::format("data: {}\n\n", i);
      co_await writer.write(std::move(event));
    }
  } else if (request.path == "/ticks" || request.path == "/flood") {
    co_await writer.begin_stream();
    ++waiting;
    asio::steady_timer timer(writer.executor());
    const bool flood = request.path == "/flood";
    std::string piece = flood ? std::string(64 << 10, 'x') : "data: tick\n\n";
    for (;;) {
      const bool taken = co_await writer.write(piece);
      if (!taken) break;
      if (flood) {
        flooded += static_cast<long long>(piece.size());
      } else {
        timer.expires_after(20ms);
        co_await timer.async_wait(asio::use_awaitable);
      }
    }
    --waiting;
    ++left;
  } else if (request.path == "/throws") {
    throw std::runtime_error("secret");
  } else if (request.path == "/breaks") {
    co_await writer.begin_stream();
    co_await writer.write("data: part\n\n");
    throw std::runtime_error("secret");
  } else if (request.path == "/crlf") {
    writer.header("X-Model", "a\r\nSet-Cookie: b");
    co_await writer.send(200, type, "not reached");
  } else if (request.path != "/silent") {
    co_await writer.send(404, type, "no such path");
  }
}

}  // namespace lca::server::test
