#pragma once
/// One client's connection: a coroutine that reads requests and calls the handler, and while that
/// runs a watch on the socket and, for streams, a coroutine that writes.
///
/// All of it runs on the connection's strand. Timers stand for condition variables: a waiting
/// coroutine waits for its timer, whoever changes what it waits for cancels the timer.

#include "server/http/asio.h"
#include "server/http/response.h"
#include "server/http/server.h"

#include <boost/asio/ip/tcp.hpp>

#include <atomic>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace lca::server {

class Connection;

/// What all connections share.
struct ServerCore {
  explicit ServerCore(ServerOptions given, Handler answer);

  void connection_enter(const std::shared_ptr<Connection>& connection);
  void connection_leave(Connection* connection);
  std::size_t connection_count() const;
  /// Those that draining waits for: who came before it began.
  std::size_t connections_awaited() const;
  std::vector<std::shared_ptr<Connection>> connections() const;
  void record(const RequestRecord& record);

  ServerOptions options;
  Handler handler;
  std::atomic<bool> draining{false};
  std::atomic<std::size_t> reading_bytes{0};  ///< of bodies that are not complete
  std::function<void()> on_empty;             ///< draining, and the last awaited connection left

  metrics::Gauge* open_gauge = nullptr;
  metrics::Counter* refused_counter = nullptr;
  metrics::Counter* gone_counter = nullptr;
  metrics::Histogram* seconds = nullptr;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<Connection*, std::weak_ptr<Connection>> open_;
  std::size_t awaited_ = 0;  ///< of `open_`
};

class Connection final : public ResponseWriter, public std::enable_shared_from_this<Connection> {
 public:
  using Socket = asio::ip::tcp::socket;
  using Clock = std::chrono::steady_clock;

  Connection(std::shared_ptr<ServerCore> core, Socket socket);

  /// Serves until the connection ends. `self` keeps it alive.
  asio::awaitable<void> serve(std::shared_ptr<Connection> self);
  /// Answers 503 and closes: there are too many connections.
  asio::awaitable<void> turn_away(std::shared_ptr<Connection> self);

  /// It came while the server was draining: it is told so, and not waited for.
  bool late() const { return late_; }
  /// Draining began: ends an idle connection. On the executor.
  void drain_begin();
  /// Ends it whatever it does. On the executor.
  void break_off();

  void header(std::string name, std::string value) override;
  asio::awaitable<void> send(int status, std::string content_type, std::string body) override;
  asio::awaitable<void> begin_stream(int status, std::string content_type) override;
  asio::awaitable<bool> write(std::string data) override;
  void idle_comment(std::function<std::string()> text) override;
  asio::awaitable<void> end_stream() override;
  bool gone() const override { return gone_; }
  void on_gone(std::function<void()> call) override;
  bool started() const override { return reply_.started; }
  asio::any_io_executor executor() override { return executor_; }

 private:
  /// The state of one reply.
  struct Reply {
    bool started = false, streaming = false, ending = false, pump_done = false;
    bool chunked = false, head_only = false, events = false;
    int status = 0;
    HeaderList headers;
    std::string pending;  // of a stream: not yet handed to the socket
    std::function<std::string()> comment;
    std::function<void()> on_gone;
  };

  asio::awaitable<bool> request_await();
  asio::awaitable<bool> request_serve();
  asio::awaitable<bool> request_read(RequestReader& reader);
  asio::awaitable<void> request_handle(HttpRequest request);
  asio::awaitable<void> give_up(RequestReader& reader, int status, std::string message);
  void request_known(const HttpRequest& request);
  void request_record();
  asio::awaitable<void> refuse(const Refusal& refusal);
  asio::awaitable<void> send_error(int status, std::string message);
  asio::awaitable<void> linger();
  void close();

  void reader_arm();
  void reader_ready(boost::system::error_code error);
  void hangup_watch();
  asio::awaitable<bool> input_wait(Clock::time_point deadline);
  void client_gone();

  asio::awaitable<bool> write_all(std::string_view data);
  asio::awaitable<void> pump(std::shared_ptr<Connection> self);
  void stream_append(std::string_view data);
  std::string comment_text() const;

  std::shared_ptr<ServerCore> core_;
  Socket socket_;
  asio::any_io_executor executor_;
  asio::steady_timer input_timer_;   // wakes the reading coroutine
  asio::steady_timer output_timer_;  // wakes the pump
  asio::steady_timer room_timer_;    // wakes the handler that waits for room or for the pump's end
  asio::steady_timer write_timer_;   // ends a write that makes no progress
  asio::steady_timer hangup_timer_;

  const bool late_;
  GateAddress address_;
  std::string peer_;
  std::string in_;         // read, not yet consumed
  bool reading_ = false;   // a wait for input is pending
  bool input_ = false;     // input arrived since it was last looked at
  bool eof_ = false;       // nothing more will be read
  bool handling_ = false;  // a handler runs
  bool gone_ = false;
  bool broken_ = false;  // writing failed
  bool keep_alive_ = false;
  bool replied_ = false;  // something was written that the client should get to read
  int minor_version_ = 1;

  Reply reply_;
  HttpRequest about_;  // without its body: what errors need of it
  RequestRecord record_;
  Clock::time_point began_;
};

}  // namespace lca::server
