// What the server refuses: sizes, slow senders, keys, names, origins, too many connections.

#include "server/http/raw_client.h"

#include <lca/error.h>

#include <gtest/gtest.h>

#include <algorithm>

namespace lca::server::test {
namespace {

using Clock = std::chrono::steady_clock;

TEST(HttpLimits, HugeHeadersAre431) {
  ServerOptions options;
  options.limits.header_bytes = 4096;
  TestServer server(std::move(options));
  const std::string most = "X-A: " + std::string(3900, 'a') + "\r\n";
  RawClient client(server.port());
  EXPECT_EQ(client.ask(request_text("GET", "/echo", most)).status, 200);
  for (const std::string& headers :
       {"X-A: " + std::string(5000, 'a') + "\r\n", "X-A: " + std::string(1 << 20, 'a') + "\r\n"}) {
    RawClient other(server.port());
    EXPECT_EQ(other.ask(request_text("GET", "/echo", headers)).status, 431);
    EXPECT_TRUE(other.closed_within(3s));
  }
  RawClient endless(server.port());  // never comes to an end of its line
  EXPECT_EQ(endless.ask("GET /" + std::string(6000, 'a')).status, 431);
  std::string many;
  for (int i = 0; i < 2000; ++i) many += "A: b\r\n";
  RawClient lines(server.port());
  EXPECT_EQ(lines.ask(request_text("GET", "/echo", many)).status, 431);
  EXPECT_EQ(server.handled, 1);
}

TEST(HttpLimits, LargeBodiesAre413HoweverTheyAreSent) {
  ServerOptions options;
  options.limits.body_bytes = 1000;
  TestServer server(std::move(options));
  RawClient client(server.port());
  EXPECT_EQ(client.ask(request_text("POST", "/echo", "", std::string(1000, 'a'))).status, 200);
  EXPECT_EQ(client.ask(request_text("POST", "/echo", "", std::string(1001, 'a'))).status, 413);
  EXPECT_TRUE(client.closed_within(3s));

  RawClient announced(server.port());  // refused before it is sent
  EXPECT_EQ(announced.ask(request_text("POST", "/echo", "Content-Length: 99999999999\r\n")).status,
            413);
  RawClient asked(server.port());
  EXPECT_EQ(
      asked.ask(request_text("POST", "/echo", "Expect: 100-continue\r\nContent-Length: 2000\r\n"))
          .status,
      413);
  RawClient chunked(server.port());
  chunked.send(request_text("POST", "/echo", "Transfer-Encoding: chunked\r\n"));
  const std::string chunk = "190\r\n" + std::string(400, 'a') + "\r\n";
  for (int i = 0; i < 3; ++i) chunked.send(chunk);
  EXPECT_EQ(chunked.reply().status, 413);
  EXPECT_EQ(server.handled, 1);
}

TEST(HttpLimits, EndlessChunkHeadsAndTrailersAre431) {
  ServerOptions options;
  options.limits.header_bytes = 4096;
  TestServer server(std::move(options));
  const std::string head = request_text("POST", "/echo", "Transfer-Encoding: chunked\r\n");
  for (const char* begin : {"5;", "5;a=\"", "5\r\nabcde\r\n0\r\nX: ", "0\r\n"}) {
    RawClient client(server.port());
    client.send(head + begin);
    bool open = true;
    for (int i = 0; i < 2000 && open; ++i) open = client.send("A: aaaaaaaaaaaaaa\r\n");
    // Lines end a chunk's head, and what follows is no chunk.
    EXPECT_EQ(client.reply().status, begin == std::string_view("5;") ? 400 : 431) << begin;
    RawClient line(server.port());
    line.send(head + begin);
    open = true;
    for (int i = 0; i < 2000 && open; ++i) open = line.send(std::string(16, 'a'));
    EXPECT_EQ(line.reply().status, 431) << begin;
  }
  EXPECT_EQ(server.handled, 0);
}

TEST(HttpLimits, BodiesThatTogetherTakeTooMuchAre429) {
  ServerOptions options;
  options.limits.body_bytes = 1 << 20;
  options.max_reading_bytes = 3 << 19;
  TestServer server(std::move(options));
  RawClient first(server.port());
  const std::string body(1 << 20, 'a');
  const std::string head = request_text("POST", "/echo", "Content-Length: 1048576\r\n");
  // What is announced and does not come takes nothing.
  std::vector<RawClient> silent;
  for (int i = 0; i < 8; ++i) {
    silent.emplace_back(server.port());
    silent.back().send(head + "a");
  }
  first.send(head + std::string(800 << 10, 'a'));
  EXPECT_EQ(RawClient(server.port()).ask(request_text("GET", "/echo")).status, 200);
  RawClient second(server.port());
  RawReply reply;
  EXPECT_TRUE(holds_within(2s, [&] {  // until the first one has been read so far
    RawClient other(server.port());
    other.send(head + std::string(800 << 10, 'a'));
    reply = other.reply(false, 100ms);
    return reply.status == 429;
  }));
  EXPECT_EQ(reply.headers["retry-after"], "1");
  first.send(std::string_view(body).substr(800 << 10));
  EXPECT_EQ(first.reply().status, 200);
  EXPECT_EQ(second.ask(request_text("POST", "/echo", "", body)).status, 200);
}

TEST(HttpLimits, SlowSendersGet408) {
  ServerOptions options;
  options.header_timeout = 150ms;
  options.body_timeout = 300ms;
  TestServer server(std::move(options));
  RawClient headers(server.port());
  const auto start = Clock::now();
  headers.send("GET /echo HTT");
  EXPECT_EQ(headers.reply().status, 408);
  EXPECT_GE(Clock::now() - start, 140ms);
  EXPECT_LT(Clock::now() - start, 1500ms);
  EXPECT_TRUE(headers.closed_within(3s));

  RawClient trickle(server.port());  // progress does not help: the limit is for all of it
  trickle.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n");
  RawReply reply;
  for (int i = 0; i < 100 && reply.status == 0; ++i) {
    trickle.send("a");
    reply = trickle.reply(false, 20ms);
  }
  EXPECT_EQ(reply.status, 408);
  EXPECT_EQ(server.handled, 0);
}

TEST(HttpLimits, IdleConnectionsAreClosedSilently) {
  ServerOptions options;
  options.idle_timeout = 100ms;
  TestServer server(std::move(options));
  RawClient fresh(server.port());
  RawClient used(server.port());
  EXPECT_EQ(used.ask(request_text("GET", "/echo")).status, 200);
  EXPECT_EQ(fresh.bytes(2s), "");
  EXPECT_TRUE(used.closed_within(2s));
  EXPECT_TRUE(holds_within(2s, [&] { return server.server().connections() == 0; }));
}

TEST(HttpLimits, AKeyIsAskedForEverywhereButOnUnguardedRoutes) {
  ServerOptions options;
  options.gate.keys = {"first-key", "second-key"};
  options.gate.unguarded = [](std::string_view, std::string_view path) {
    return path == "/events";
  };
  TestServer server(std::move(options));
  RawClient client(server.port());
  const auto status = [&](const char* path, const char* headers) {
    return client.ask(request_text("GET", path, headers)).status;
  };
  EXPECT_EQ(status("/echo", ""), 401);
  EXPECT_EQ(status("/nowhere", ""), 401);
  EXPECT_EQ(status("/echo", "Authorization: Bearer first-kez\r\n"), 401);
  EXPECT_EQ(status("/echo", "Authorization: Bearer first-ke\r\n"), 401);
  EXPECT_EQ(status("/echo", "Authorization: Bearer first-keyfirst-key\r\n"), 401);
  EXPECT_EQ(status("/echo", "Authorization: Bearer \r\n"), 401);
  EXPECT_EQ(status("/echo", "Authorization: Basic first-key\r\n"), 401);
  EXPECT_EQ(status("/echo", "Authorization: Bearer first-key\r\n"), 200);
  EXPECT_EQ(status("/echo", "authorization: bearer second-key\r\n"), 200);
  EXPECT_EQ(status("/echo", "X-API-Key: second-key\r\n"), 200);
  EXPECT_EQ(status("/events", ""), 200);
  RawReply reply = client.ask(request_text("GET", "/echo"));
  EXPECT_EQ(reply.headers["www-authenticate"], "Bearer");
  EXPECT_NE(reply.body.find("\"authentication_error\""), std::string::npos);
}

TEST(HttpLimits, ARefusalDoesNotWaitForTheBody) {
  ServerOptions options;
  options.gate.keys = {"key"};
  TestServer server(std::move(options));
  RawClient client(server.port());
  EXPECT_EQ(client.ask(request_text("POST", "/echo", "Content-Length: 1000000\r\n")).status, 401);
  EXPECT_TRUE(client.closed_within(3s));
}

TEST(HttpLimits, ForeignHostsAndOriginsAre403) {
  ServerOptions options;
  options.gate.allow_hosts = {"lca.example"};
  TestServer server(std::move(options));
  const auto status = [&](std::string_view host, std::string_view headers) {
    RawClient client(server.port());
    const std::string text =
        "GET /echo HTTP/1.1\r\nHost: " + std::string(host) + "\r\n" + std::string(headers) + "\r\n";
    return client.ask(text).status;
  };
  for (const char* host : {"localhost", "LOCALHOST:8080", "127.0.0.1", "127.1.2.3:1", "[::1]:80",
                           "lca.example", "Lca.Example.:443", "app.localhost"}) {
    EXPECT_EQ(status(host, ""), 200) << host;
  }
  for (const char* host : {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example",
                           "192.168.0.1", "notlca.example", "2130706433"}) {
    EXPECT_EQ(status(host, ""), 403) << host;
  }
  EXPECT_EQ(status("localhost:8080", "Origin: http://localhost:8080\r\n"), 200);
  EXPECT_EQ(status("localhost", "Origin: http://localhost\r\n"), 200);
  EXPECT_EQ(status("127.0.0.1:8080", "Origin: https://lca.example\r\n"), 200);
  for (const char* origin : {"null", "http://evil.example", "http://localhost:3000", "file://",
                             "http://", "http://localhost:8080.evil.example", "localhost:8080"}) {
    EXPECT_EQ(status("localhost:8080", "Origin: " + std::string(origin) + "\r\n"), 403) << origin;
  }
  RawClient absolute(server.port());  // the target's host counts
  EXPECT_EQ(absolute.ask("GET http://evil.example/echo HTTP/1.1\r\nHost: localhost\r\n\r\n").status,
            403);
  EXPECT_EQ(absolute.ask("GET http://localhost/echo HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
}

TEST(HttpLimits, ListeningBeyondLoopbackNeedsAKeyOrConsent) {
  const Handler nothing = [](HttpRequest, ResponseWriter&) -> asio::awaitable<void> { co_return; };
  ServerOptions options;
  options.host = "0.0.0.0";
  options.port = 0;
  EXPECT_THROW(Server(options, nothing), Error);
  options.without_key = true;
  EXPECT_NO_THROW(Server(options, nothing));
  options.without_key = false;
  options.gate.keys = {"key"};
  EXPECT_NO_THROW(Server(options, nothing));
}

TEST(HttpLimits, AWildcardServerAnswersToTheAddressOfTheConnection) {
  ServerOptions options;
  options.host = "0.0.0.0";
  options.without_key = true;
  TestServer server(std::move(options));
  RawClient client(server.port());
  EXPECT_EQ(client.ask("GET /echo HTTP/1.1\r\nHost: 0.0.0.0\r\n\r\n").status, 200);
  EXPECT_EQ(client.ask("GET /echo HTTP/1.1\r\nHost: 10.9.8.7\r\n\r\n").status, 403);
}

TEST(HttpLimits, APortThatIsTakenIsBusy) {
  TestServer server;
  ServerOptions options;
  options.port = server.port();
  try {
    const Server second(options, nullptr);
    FAIL() << "two servers on one port";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::busy);
  }
  options.host = "no such host";
  EXPECT_THROW(Server(options, nullptr), Error);
}

TEST(HttpLimits, TooManyConnectionsAreToldSo) {
  metrics::Registry registry;
  ServerOptions options;
  options.max_connections = 3;
  options.registry = &registry;
  TestServer server(std::move(options));
  std::vector<RawClient> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back(server.port());
    EXPECT_EQ(clients.back().ask(request_text("GET", "/echo")).status, 200);
  }
  RawClient excess(server.port());
  RawReply reply = excess.ask(request_text("GET", "/echo"));
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.headers["retry-after"], "1");
  EXPECT_TRUE(excess.closed_within(3s));
  clients.pop_back();
  EXPECT_TRUE(holds_within(3s, [&] { return server.server().connections() == 2; }));
  RawClient next(server.port());
  EXPECT_EQ(next.ask(request_text("GET", "/echo")).status, 200);
  EXPECT_NE(registry.text().find("lca_http_connections_refused_total 1\n"), std::string::npos);
}

}  // namespace
}  // namespace lca::server::test
