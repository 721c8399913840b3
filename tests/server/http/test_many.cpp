// Many connections at once, draining, and what is left behind: nothing.

#include "server/http/connection.h"
#include "server/http/raw_client.h"

#include <gtest/gtest.h>

#include <csignal>
#include <random>

namespace lca::server::test {
namespace {

using Clock = std::chrono::steady_clock;

std::size_t text_count(const std::string& text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

TEST(HttpMany, TwoHundredStreamsRunSideBySideOnOneThread) {
  TestServer server;
  std::vector<RawClient> clients;
  for (int i = 0; i < 200; ++i) {
    clients.emplace_back(server.port());
    clients.back().send(request_text("GET", "/ticks"));
  }
  ASSERT_TRUE(holds_within(10s, [&] { return server.waiting == 200; }));
  for (RawClient& client : clients) {
    std::string seen;
    while (text_count(seen, "data: tick") < 5) {
      const std::string piece = client.bytes();
      ASSERT_FALSE(piece.empty());
      seen += piece;
    }
  }
  clients.clear();
  EXPECT_TRUE(holds_within(5s, [&] { return server.left == 200; }));
  EXPECT_TRUE(holds_within(5s, [&] { return server.server().connections() == 0; }));
}

TEST(ThreadsHttp, ShareTheWork) {
  ServerOptions options;
  options.io_threads = 3;
  TestServer server(std::move(options));
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      RawClient client(server.port());
      for (int i = 0; i < 50; ++i) {
        const std::string body = std::to_string(t) + "/" + std::to_string(i);
        right += client.ask(request_text("POST", "/echo", "", body)).body.ends_with(body);
        right += client.ask(request_text("GET", "/events")).body.ends_with("data: 4\n\n");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 8 * 50 * 2);
  server.server().drain();
  EXPECT_TRUE(server.ended_within(3s));
}

TEST(HttpMany, AThousandIdleOrSlowConnectionsDoNotHoldUpOthers) {
  TestServer server;
  std::vector<RawClient> clients;
  for (int i = 0; i < 1000; ++i) {
    clients.emplace_back(server.port());
    if (i % 2) clients.back().send("POST /echo HTTP/1.1\r\nHost: local");
  }
  RawClient other(server.port());
  const auto start = Clock::now();
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(other.ask(request_text("GET", "/echo")).status, 200);
  }
  EXPECT_LT(Clock::now() - start, 4s);
  EXPECT_EQ(server.server().connections(), 1001U);
  // Those that were slow are still served.
  clients[1].send("host\r\nContent-Length: 2\r\n\r\nhi");
  EXPECT_EQ(clients[1].reply().body, "POST\n/echo\n\nhi");
}

TEST(HttpMany, NoDescriptorIsLeftOpenWhenClientsLeaveAtRandomMoments) {
  const std::size_t before = descriptors_open();
  {
    TestServer server;
    const std::size_t serving = descriptors_open();
    std::mt19937 random(7);
    const std::string requests[] = {request_text("GET", "/ticks"), request_text("GET", "/wait"),
                                    request_text("GET", "/flood"), request_text("GET", "/idle"),
                                    request_text("POST", "/echo", "", std::string(3000, 'a'))};
    for (int i = 0; i < 300; ++i) {
      RawClient client(server.port());
      const std::string& request = requests[random() % std::size(requests)];
      client.send(std::string_view(request).substr(0, random() % (2 * request.size())));
      if (random() % 2) std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      if (random() % 2) client.reset();
    }
    EXPECT_TRUE(holds_within(10s, [&] { return server.server().connections() == 0; }));
    EXPECT_TRUE(holds_within(2s, [&] { return server.waiting == 0; }));
    EXPECT_EQ(descriptors_open(), serving);
  }
  EXPECT_EQ(descriptors_open(), before);
}

TEST(HttpMany, DrainingLetsRunningRequestsEndAndTakesNoOthers) {
  TestServer server;
  RawClient idle(server.port());
  EXPECT_EQ(idle.ask(request_text("GET", "/echo")).status, 200);
  RawClient half(server.port());
  half.send("POST /echo HTTP/1.1\r\nHost: localhost\r\n");
  std::this_thread::sleep_for(50ms);  // so that the server has read it: what it has not, it resets
  RawClient running(server.port());
  running.send(request_text("GET", "/wait"));
  RawClient stream(server.port());
  stream.send(request_text("GET", "/idle"));
  ASSERT_TRUE(holds_within(2s, [&] { return server.waiting == 2; }));
  server.server().drain();
  EXPECT_TRUE(idle.closed_within(2s));
  EXPECT_EQ(half.reply().status, 503);
  for (int i = 0; i < 3; ++i) {
    RawClient late(server.port());
    RawReply refused = late.ask(request_text("GET", "/echo"));
    EXPECT_EQ(refused.status, 503);
    EXPECT_EQ(refused.headers["retry-after"], "1");
    EXPECT_EQ(refused.headers["connection"], "close");
  }
  RawClient silent(server.port());  // who comes late is not waited for
  EXPECT_FALSE(server.ended_within(100ms));
  server.release();
  RawReply reply = running.reply();
  EXPECT_EQ(reply.body, "released");
  EXPECT_EQ(reply.headers["connection"], "close");
  EXPECT_TRUE(stream.reply().whole);
  running.close();
  stream.close();
  half.close();
  EXPECT_TRUE(server.ended_within(2s));
}

TEST(HttpMany, DrainingEndsAtItsDeadline) {
  ServerOptions options;
  options.drain_timeout = 200ms;
  TestServer server(std::move(options));
  RawClient client(server.port());
  client.send(request_text("GET", "/wait"));
  RawClient flood(server.port(), 16 << 10);
  flood.send(request_text("GET", "/flood"));
  ASSERT_TRUE(holds_within(2s, [&] { return server.waiting == 2; }));
  const auto start = Clock::now();
  server.server().drain();
  server.server().drain();
  EXPECT_TRUE(server.ended_within(3s));
  EXPECT_GE(Clock::now() - start, 190ms);
  EXPECT_EQ(server.left, 2);
  EXPECT_TRUE(client.closed_within(1s));
}

TEST(HttpMany, SigtermDrains) {
  ServerOptions options;
  options.signals = true;
  TestServer server(std::move(options));
  RawClient client(server.port());
  client.send(request_text("GET", "/wait"));
  ASSERT_TRUE(holds_within(2s, [&] { return server.waiting == 1; }));
  std::raise(SIGTERM);
  EXPECT_TRUE(holds_within(2s, [&] { return server.server().draining(); }));
  EXPECT_FALSE(server.ended_within(50ms));
  server.release();
  EXPECT_EQ(client.reply().body, "released");
  client.close();
  EXPECT_TRUE(server.ended_within(2s));
}

TEST(HttpMany, ASecondSignalStopsAtOnce) {
  ServerOptions options;
  options.signals = true;
  TestServer server(std::move(options));
  RawClient client(server.port());
  client.send(request_text("GET", "/wait"));
  ASSERT_TRUE(holds_within(2s, [&] { return server.waiting == 1; }));
  std::raise(SIGINT);
  EXPECT_TRUE(holds_within(2s, [&] { return server.server().draining(); }));
  std::raise(SIGINT);
  EXPECT_TRUE(server.ended_within(2s));
}

TEST(HttpMany, AConnectionThatCouldNotBeginIsNotWaitedFor) {
  asio::io_context io;
  const auto core = std::make_shared<ServerCore>(ServerOptions(), Handler());
  const auto connection = std::make_shared<Connection>(core, asio::ip::tcp::socket(io));
  // Who begins it takes it off the list, and so does its end, in either order or alone.
  core->connection_leave(connection.get());
  EXPECT_EQ(core->connections_awaited(), 0U);
  core->connection_enter(connection);
  EXPECT_EQ(core->connections_awaited(), 1U);
  core->connection_leave(connection.get());
  core->connection_leave(connection.get());
  EXPECT_EQ(core->connections_awaited(), 0U);
  EXPECT_EQ(core->connection_count(), 0U);
}

TEST(HttpMany, AServerThatIsDestroyedInFullFlightLeaksNothing) {
  const std::size_t before = descriptors_open();
  std::vector<RawClient> clients;
  {
    TestServer server;
    for (const char* path : {"/wait", "/idle", "/ticks", "/flood"}) {
      clients.emplace_back(server.port(), 16 << 10);
      clients.back().send(request_text("GET", path));
    }
    ASSERT_TRUE(holds_within(2s, [&] { return server.waiting == 4; }));
  }
  clients.clear();
  EXPECT_EQ(descriptors_open(), before);
}

}  // namespace
}  // namespace lca::server::test
