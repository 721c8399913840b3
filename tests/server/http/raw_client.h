#pragma once
/// A client of plain sockets, so that tests decide what goes into which packet, and a server with
/// routes to test against.

#include "server/http/mailbox.h"
#include "server/http/server.h"

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

namespace lca::server::test {

using namespace std::chrono_literals;

struct RawReply {
  int status = 0;  ///< 0: the connection ended or time ran out before a whole reply
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;
  bool whole = false;  ///< the body came to its end
};

class RawClient {
 public:
  explicit RawClient(std::uint16_t port, int receive_buffer = 0);
  ~RawClient();
  RawClient(RawClient&& other) noexcept;
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  /// False: the server closed.
  bool send(std::string_view bytes);
  /// The next reply. `head_only`: it has no body, whatever its headers say.
  RawReply reply(bool head_only = false, std::chrono::milliseconds patience = 10s);
  /// The next bytes, at least one; empty at end-of-file or when time is out.
  std::string bytes(std::chrono::milliseconds patience = 10s);
  /// True: end-of-file or a reset arrived within that time, after whatever else arrived.
  bool closed_within(std::chrono::milliseconds patience);
  void half_close();
  void close();
  void reset();  ///< closes with RST

  /// Request, then reply.
  RawReply ask(std::string_view request) {
    send(request);
    return reply();
  }

 private:
  bool fill(std::chrono::steady_clock::time_point deadline);
  int socket_ = -1;
  bool eof_ = false;
  std::string in_;
};

/// "METHOD PATH HTTP/1.1" with a Host of loopback and further headers, each with its line's end.
std::string request_text(std::string_view method, std::string_view target,
                         std::string_view headers = "", std::string_view body = "");

/// Descriptors of this process that are open.
std::size_t descriptors_open();

/// Waits until the condition holds; false when it does not within that time.
template <typename Condition>
bool holds_within(std::chrono::milliseconds patience, const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

/// Runs a server whose routes are:
///   /echo     method, path, query and body, a line each
///   /wait     answers when `release` is called; counts those that wait and those whose client left
///   /events   five events; /ticks: one every 20 ms until the client is gone
///   /flood    writes 64 KiB pieces until the client is gone
///   /idle     begins a stream and waits like /wait
///   /throws, /breaks (in the middle of a stream), /silent, /crlf (a header with a line break)
///   anything else: 404
class TestServer {
 public:
  explicit TestServer(ServerOptions options = {});
  ~TestServer();

  std::uint16_t port() const { return server_->port(); }
  Server& server() { return *server_; }
  void release();  ///< ends all that wait, and what comes later
  /// True: `run` returned within that time.
  bool ended_within(std::chrono::milliseconds patience);

  std::atomic<int> waiting{0}, left{0}, handled{0};
  std::atomic<long long> flooded{0};
  std::atomic<std::chrono::steady_clock::duration::rep> left_at{0};

 private:
  asio::awaitable<void> answer(HttpRequest request, ResponseWriter& writer);
  asio::awaitable<void> wait_for_release(ResponseWriter& writer);

  std::atomic<bool> released_{false}, ended_{false};
  std::mutex mutex_;
  std::vector<std::weak_ptr<Mailbox<int>>> boxes_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

}  // namespace lca::server::test
