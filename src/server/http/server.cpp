#include "server/http/server.h"

#include "core/error.h"
#include "server/http/connection.h"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/strand.hpp>

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace lca::server {
namespace {

using asio::ip::tcp;
using ServerError = boost::system::error_code;

/// Connections that are being told that there are too many.
constexpr std::size_t turned_away_at_once = 64;
constexpr std::chrono::milliseconds descriptors_retry{50};
constexpr std::chrono::milliseconds break_off_grace{2'000};

/// Every connection takes a descriptor, and the usual soft limit is 1,024.
void descriptors_raise(std::size_t connections) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min<rlim_t>(limit.rlim_max, connections + turned_away_at_once + 512);
  if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

// --- what connections share ---------------------------------------------------------------------

ServerCore::ServerCore(ServerOptions given, Handler answer)
    : options(std::move(given)), handler(std::move(answer)) {
  if (!options.registry) return;
  open_gauge = &options.registry->gauge("lca_http_connections", "Open connections.");
  refused_counter = &options.registry->counter("lca_http_connections_refused_total",
                                               "Connections closed because there were too many.");
  gone_counter = &options.registry->counter("lca_http_clients_gone_total",
                                            "Clients that left before their reply's end.");
  seconds = &options.registry->histogram("lca_http_request_seconds",
                                         "Time from a request's first byte to its reply's last.",
                                         metrics::seconds_bounds());
}

void ServerCore::connection_enter(const std::shared_ptr<Connection>& connection) {
  const std::lock_guard lock(mutex_);
  open_.emplace(connection.get(), connection);
  if (!connection->late()) ++awaited_;
  if (open_gauge) open_gauge->set(static_cast<double>(open_.size()));
}

void ServerCore::connection_leave(Connection* connection) {
  bool last = false;
  {
    const std::lock_guard lock(mutex_);
    if (open_.erase(connection) == 0) return;
    if (open_gauge) open_gauge->set(static_cast<double>(open_.size()));
    last = !connection->late() && --awaited_ == 0;
  }
  if (last && draining && on_empty) on_empty();
}

std::size_t ServerCore::connection_count() const {
  const std::lock_guard lock(mutex_);
  return open_.size();
}

std::size_t ServerCore::connections_awaited() const {
  const std::lock_guard lock(mutex_);
  return awaited_;
}

std::vector<std::shared_ptr<Connection>> ServerCore::connections() const {
  std::vector<std::shared_ptr<Connection>> all;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, weak] : open_) {
    if (auto connection = weak.lock()) all.push_back(std::move(connection));
  }
  return all;
}

void ServerCore::record(const RequestRecord& record) {
  if (options.registry) {
    options.registry
        ->counter("lca_http_requests_total", "Requests by status.",
                  {{"status", std::to_string(record.status)}})
        .add();
    seconds->observe(record.seconds);
  }
  if (options.log) options.log(record);
}

// --- the server ---------------------------------------------------------------------------------

struct Server::Impl : std::enable_shared_from_this<Server::Impl> {
  Impl(ServerOptions options, Handler handler)
      : core(std::make_shared<ServerCore>(std::move(options), std::move(handler))) {}

  void listen();
  asio::awaitable<void> accept();
  void signals_wait();
  void drain_start();
  void drain_check();

  // The order matters: `io` ends first of what others refer to, and frees pending handlers, which
  // hold connections, which hold `core`.
  std::shared_ptr<ServerCore> core;
  asio::io_context io;
  asio::any_io_executor control = asio::make_strand(io);  // of all that is not a connection's
  tcp::acceptor acceptor{control};
  asio::signal_set signals{control};
  asio::steady_timer drain_timer{control};
  std::uint16_t port = 0;
  bool drain_began = false;
};

void Server::Impl::listen() {
  const ServerOptions& options = core->options;
  ServerError error;
  tcp::resolver resolver(control);
  const auto found =
      resolver.resolve(options.host, std::to_string(options.port),
                       tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || found.empty()) {
    fail_input("cannot listen on '{}': {}", options.host, error.message());
  }
  // A name may have addresses of both kinds; clients try 127.0.0.1 at the latest.
  tcp::endpoint endpoint = found.begin()->endpoint();
  for (const auto& entry : found) {
    if (entry.endpoint().address().is_v4()) {
      endpoint = entry.endpoint();
      break;
    }
  }
  bind_check(endpoint.address().to_string(), !options.gate.keys.empty(), options.without_key);
  const std::string where = fmt::format("{}:{}", options.host, options.port);
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error == asio::error::address_in_use) {
    fail_busy("{} is in use by another process; choose another port", where);
  }
  if (error) fail_input("cannot listen on {}: {}", where, error.message());
  port = acceptor.local_endpoint().port();
}

asio::awaitable<void> Server::Impl::accept() {
  const std::size_t limit = core->options.max_connections;
  bool pause = false;
  while (acceptor.is_open()) {
    // Without memory one client is lost and not all that come after it.
    std::shared_ptr<Connection> connection;
    try {
      ServerError error;
      if (std::exchange(pause, false)) {
        asio::steady_timer timer(control, descriptors_retry);
        co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, error));
      }
      const asio::any_io_executor strand = asio::make_strand(io);
      tcp::socket socket =
          co_await acceptor.async_accept(strand, asio::redirect_error(asio::use_awaitable, error));
      if (error) {
        // Out of descriptors or memory: connections wait in the kernel's queue meanwhile.
        pause = error != asio::error::connection_aborted;
        continue;
      }
      const std::size_t count = core->connection_count();
      if (count >= limit && core->refused_counter) core->refused_counter->add();
      if (count >= limit + turned_away_at_once) continue;  // the socket closes itself
      connection = std::make_shared<Connection>(core, std::move(socket));
      core->connection_enter(connection);
      if (count >= limit) {
        asio::co_spawn(strand, connection->turn_away(connection), asio::detached);
      } else {
        asio::co_spawn(strand, connection->serve(connection), asio::detached);
      }
    } catch (const std::exception&) {
      if (connection) core->connection_leave(connection.get());
      pause = true;
    }
  }
}

void Server::Impl::signals_wait() {
  signals.async_wait([this](ServerError error, int) {
    if (error) return;
    if (core->draining.exchange(true)) return io.stop();
    drain_start();
    signals_wait();
  });
}

/// On `control`: ends the server once nobody is waited for.
void Server::Impl::drain_check() {
  if (!drain_began || core->connections_awaited() > 0) return;
  ServerError error;
  acceptor.close(error);
  io.stop();
}

/// On `control`, once. Who comes from now on is told: the port stays open until the end.
void Server::Impl::drain_start() {
  drain_began = true;
  drain_check();
  for (const auto& connection : core->connections()) {
    if (connection->late()) continue;
    asio::post(connection->executor(), [connection] { connection->drain_begin(); });
  }
  drain_timer.expires_after(core->options.drain_timeout);
  drain_timer.async_wait([this](ServerError cancelled) {
    if (cancelled) return;
    ServerError error;
    acceptor.close(error);
    for (const auto& connection : core->connections()) {
      asio::post(connection->executor(), [connection] { connection->break_off(); });
    }
    drain_timer.expires_after(break_off_grace);
    drain_timer.async_wait([this](ServerError stopped) {
      if (!stopped) io.stop();
    });
  });
}

Server::Server(ServerOptions options, Handler handler)
    : impl_(std::make_shared<Impl>(std::move(options), std::move(handler))) {
  impl_->listen();
  descriptors_raise(impl_->core->options.max_connections);
  if (impl_->core->options.signals) {
    impl_->signals.add(SIGTERM);
    impl_->signals.add(SIGINT);
    impl_->signals_wait();
  }
  Impl* impl = impl_.get();
  impl->core->on_empty = [impl] { asio::post(impl->control, [impl] { impl->drain_check(); }); };
  asio::co_spawn(impl->control, impl->accept(), asio::detached);
}

Server::~Server() { impl_->core->on_empty = nullptr; }

std::uint16_t Server::port() const { return impl_->port; }
asio::any_io_executor Server::executor() { return impl_->io.get_executor(); }

void Server::run() {
  const auto serve = [this] {
    for (;;) {
      try {
        impl_->io.run();
        return;
      } catch (const std::exception&) {  // of one callback; the others are not to suffer
        continue;
      }
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < impl_->core->options.io_threads; ++i) others.emplace_back(serve);
  serve();
  for (std::thread& thread : others) thread.join();
}

void Server::drain() {
  if (impl_->core->draining.exchange(true)) return;
  Impl* impl = impl_.get();
  asio::post(impl->control, [impl] { impl->drain_start(); });
}

bool Server::draining() const { return impl_->core->draining; }
void Server::stop() { impl_->io.stop(); }
std::size_t Server::connections() const { return impl_->core->connection_count(); }

}  // namespace lca::server
