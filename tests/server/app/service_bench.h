#pragma once
/// A whole server in this process: the tiny model of the host's tests behind HTTP.

#include "engine/saved_session.h"
#include "server/app/service.h"
#include "server/host/host_bench.h"
#include "server/http/raw_client.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>

namespace lca::test {

class ServiceBench {
 public:
  explicit ServiceBench(server::HostOptions host = HostBench::usual(), bool opened = true,
                        server::ServiceOptions wanted = {})
      : host_(std::move(host)), service_(std::move(wanted)) {
    server::ServerOptions options;
    options.port = 0;
    service_.configure(options);
    server_ = std::make_unique<server::Server>(std::move(options), service_.handler());
    thread_ = std::thread([this] { server_->run(); });
    if (opened) open();
  }
  ~ServiceBench() {
    server_->stop();
    thread_.join();
    service_.close();
  }

  void open() {
    service_.open(
        std::make_unique<server::ServedModel>("tiny", HostBench::shared_model(), 2, host_),
        nullptr);
  }
  /// As at the end, while connections are still served.
  void close() { service_.close(); }
  std::uint16_t port() const { return server_->port(); }

  server::test::RawReply get(const std::string& path) const {
    return server::test::RawClient(port()).ask(server::test::request_text("GET", path));
  }
  server::test::RawReply post(const std::string& path, const server::Json& body) const {
    return post_text(path, body.dump());
  }
  server::test::RawReply post_text(const std::string& path, const std::string& body) const {
    return server::test::RawClient(port()).ask(post_bytes(path, body));
  }
  static std::string post_bytes(const std::string& path, const std::string& body) {
    return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }

 private:
  server::HostOptions host_;
  server::Service service_;
  std::unique_ptr<server::Server> server_;
  std::thread thread_;
};

/// A conversation of one question, with a seed of its own.
inline server::Json chat_body(const std::string& question, int tokens = 12) {
  return {{"messages", {{{"role", "user"}, {"content", question}}}},
          {"max_tokens", tokens},
          {"seed", 3},
          {"ignore_eos", true}};
}

/// The texts of a chat stream, joined.
inline std::string stream_text(const std::string& body) {
  std::string text;
  for (std::size_t at = body.find("data: {"); at != std::string::npos;
       at = body.find("data: {", at + 1)) {
    const server::Json event =
        server::Json::parse(body.substr(at + 6, body.find('\n', at) - at - 6));
    for (const server::Json& choice : event["choices"]) {
      if (choice["delta"].contains("content")) {
        text += choice["delta"]["content"].get<std::string>();
      }
    }
  }
  return text;
}

}  // namespace lca::test
