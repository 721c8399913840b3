#pragma once
/// The HTTP server: listens, reads requests, asks the gate, calls the handler.

#include "server/http/gate.h"
#include "server/http/request_reader.h"
#include "server/http/writer.h"
#include "server/metrics/registry.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace lca::server {

/// What a request was and what became of it; no body, no query, no header.
struct RequestRecord {
  std::string peer, method, path;
  int status = 0;  ///< 499: gone before a reply was begun
  std::size_t bytes_in = 0, bytes_out = 0;
  double seconds = 0;
  bool gone = false;  ///< the client left before the reply's end
};

struct ServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8080;  ///< 0: one that is free, see Server::port
  bool without_key = false;   ///< serve addresses beyond loopback though there is no key
  GateRules gate;
  ReadLimits limits;

  std::chrono::milliseconds header_timeout{10'000};  ///< from a request's first byte to its body
  std::chrono::milliseconds body_timeout{60'000};    ///< for all of the body
  std::chrono::milliseconds idle_timeout{75'000};    ///< between requests of a connection
  std::chrono::milliseconds write_timeout{30'000};   ///< without the client taking a byte
  std::chrono::milliseconds comment_every{4'000};    ///< in an idle stream of events
  std::chrono::milliseconds drain_timeout{30'000};   ///< for requests that run when draining begins
  std::chrono::milliseconds linger{1'000};           ///< for a client to read a refusal

  std::size_t max_connections = 4096;         ///< beyond: 503 and closed
  std::size_t stream_bound = 256 << 10;       ///< bytes of a stream that wait for the client
  std::size_t max_reading_bytes = 512 << 20;  ///< of bodies that are being read, together; 429
  std::size_t read_ahead = 64 << 10;          ///< bytes of further requests taken while one runs
  int io_threads = 1;
  bool signals = false;  ///< SIGTERM and SIGINT drain; the second one stops

  /// Content type and body of an error that the handler has no part in. Unset: JSON. `about` is
  /// what is known of the request, without its body.
  std::function<std::pair<std::string, std::string>(const HttpRequest& about, int status,
                                                    const std::string& message)>
      error_render;
  std::function<void(const RequestRecord&)> log;
  metrics::Registry* registry = nullptr;  ///< must outlive the server
};

class Server {
 public:
  /// Binds and listens. Throws lca::Error: bad_input for an address that must not or cannot be
  /// bound, busy where the port is taken.
  Server(ServerOptions options, Handler handler);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::uint16_t port() const;
  asio::any_io_executor executor();

  /// Serves until drained or stopped, on this thread and `io_threads` − 1 others.
  void run();

  /// Closes idle connections and lets running requests end; those that have not after drain_timeout
  /// are broken off. New requests get 503 meanwhile. Any thread, any number of times.
  void drain();
  bool draining() const;

  /// Breaks everything off. Any thread.
  void stop();

  /// Connections that are open now.
  std::size_t connections() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace lca::server
