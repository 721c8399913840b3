// Streams: framing, comments, back-pressure, and clients that leave.

#include "server/http/raw_client.h"

#include <gtest/gtest.h>

namespace lca::server::test {
namespace {

using Clock = std::chrono::steady_clock;

TEST(HttpStreams, EventsArriveInOrderAndTheConnectionStays) {
  TestServer server;
  RawClient client(server.port());
  for (int i = 0; i < 3; ++i) {
    RawReply reply = client.ask(request_text("GET", "/events"));
    EXPECT_EQ(reply.headers["content-type"], "text/event-stream");
    EXPECT_EQ(reply.headers["cache-control"], "no-store");
    EXPECT_EQ(reply.headers["transfer-encoding"], "chunked");
    EXPECT_EQ(reply.body, "data: 0\n\ndata: 1\n\ndata: 2\n\ndata: 3\n\ndata: 4\n\n");
    EXPECT_TRUE(reply.whole);
  }
}

TEST(HttpStreams, AnIdleStreamSaysSoInComments) {
  ServerOptions options;
  options.comment_every = 50ms;
  TestServer server(std::move(options));
  RawClient client(server.port());
  client.send(request_text("GET", "/idle"));
  ASSERT_TRUE(holds_within(2s, [&] { return server.waiting == 1; }));
  std::this_thread::sleep_for(300ms);
  server.release();
  const RawReply reply = client.reply();
  EXPECT_TRUE(reply.whole);
  EXPECT_TRUE(reply.body.starts_with(": reading  prompt\n\n: reading  prompt\n\n")) << reply.body;
  EXPECT_TRUE(reply.body.ends_with("\n\ndata: end\n\n"));
}

TEST(HttpStreams, AStreamThatIsNotIdleHasNoComments) {
  ServerOptions options;
  options.comment_every = 400ms;
  TestServer server(std::move(options));
  RawClient client(server.port());
  client.send(request_text("GET", "/ticks"));
  std::string seen;
  for (int i = 0; i < 30; ++i) seen += client.bytes();
  EXPECT_NE(seen.find("data: tick"), std::string::npos);
  EXPECT_EQ(seen.find("waiting"), std::string::npos);
}

/// How long after `leave` the handler heard of it.
template <typename Leave>
std::chrono::milliseconds heard_after(const char* path, const Leave& leave) {
  TestServer server;
  RawClient client(server.port());
  client.send(request_text("GET", path));
  EXPECT_TRUE(holds_within(2s, [&] { return server.waiting == 1; }));
  const auto start = Clock::now();
  leave(client);
  EXPECT_TRUE(holds_within(5s, [&] { return server.left == 1; }));
  const auto heard = Clock::duration(server.left_at.load());
  EXPECT_TRUE(holds_within(2s, [&] { return server.waiting == 0; }));
  EXPECT_TRUE(holds_within(2s, [&] { return server.server().connections() == 0; }));
  return std::chrono::ceil<std::chrono::milliseconds>(heard - start.time_since_epoch());
}

TEST(HttpStreams, AClientThatLeavesIsNoticedAtOnceWhileItsRequestWaits) {
  EXPECT_LT(heard_after("/wait", [](RawClient& client) { client.close(); }), 200ms);
  EXPECT_LT(heard_after("/wait", [](RawClient& client) { client.reset(); }), 200ms);
  EXPECT_LT(heard_after("/wait", [](RawClient& client) { client.half_close(); }), 200ms);
  EXPECT_LT(heard_after("/idle", [](RawClient& client) { client.close(); }), 200ms);
  EXPECT_LT(heard_after("/idle", [](RawClient& client) { client.reset(); }), 200ms);
}

TEST(HttpStreams, AClientThatLeavesIsNoticedBehindFurtherRequests) {
  // More than the server reads ahead: end-of-file stands behind bytes that nobody reads. (Not more
  // than the kernel takes, too: then it does not leave the client's machine.)
  const std::string further = request_text("POST", "/echo", "", std::string(90'000, 'a'));
  const auto leave = [&](RawClient& client) {
    client.send(further);
    client.half_close();
  };
  EXPECT_LT(heard_after("/wait", leave), 400ms);
}

TEST(HttpStreams, AClientThatLeavesEndsItsStream) {
  TestServer server;
  for (const char* path : {"/ticks", "/flood"}) {
    server.left = 0;
    RawClient client(server.port());
    client.send(request_text("GET", path));
    EXPECT_FALSE(client.bytes().empty());
    client.close();
    EXPECT_TRUE(holds_within(1s, [&] { return server.left == 1; })) << path;
  }
}

TEST(HttpStreams, AShortReplyReachesAClientThatOnlyClosedItsOwnSide) {
  TestServer server;
  RawClient client(server.port());
  client.send(request_text("POST", "/echo", "", "hello"));
  client.half_close();
  EXPECT_EQ(client.reply().body, "POST\n/echo\n\nhello");
  EXPECT_TRUE(client.closed_within(2s));
}

TEST(HttpStreams, AWriterWaitsForASlowReader) {
  ServerOptions options;
  options.stream_bound = 128 << 10;
  TestServer server(std::move(options));
  RawClient client(server.port(), 16 << 10);
  client.send(request_text("GET", "/flood"));
  ASSERT_TRUE(holds_within(2s, [&] { return server.flooded > 0; }));
  long long before = -1;
  EXPECT_TRUE(holds_within(5s, [&] {
    const long long now = server.flooded;
    const bool still = now == before;
    before = now;
    std::this_thread::sleep_for(100ms);
    return still;
  })) << "the writer never waits";
  EXPECT_LT(before, 16 << 20);  // the kernel's buffers and the bound
  std::size_t got = 0;
  while (got < (1 << 20)) {
    const std::string piece = client.bytes();
    ASSERT_FALSE(piece.empty());
    got += piece.size();
  }
  EXPECT_TRUE(holds_within(2s, [&] { return server.flooded > before; }));
}

TEST(HttpStreams, AClientThatReadsNothingIsGivenUp) {
  ServerOptions options;
  options.write_timeout = 200ms;
  TestServer server(std::move(options));
  RawClient client(server.port(), 16 << 10);
  client.send(request_text("GET", "/flood"));
  EXPECT_TRUE(holds_within(5s, [&] { return server.left == 1; }));
  EXPECT_TRUE(holds_within(2s, [&] { return server.server().connections() == 0; }));
}

TEST(HttpStreams, ARequestBehindALongOneIsAnsweredAfterIt) {
  TestServer server;
  RawClient client(server.port());
  client.send(request_text("GET", "/wait") + request_text("GET", "/echo"));
  ASSERT_TRUE(holds_within(2s, [&] { return server.waiting == 1; }));
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(server.handled, 1);
  server.release();
  EXPECT_EQ(client.reply().body, "released");
  EXPECT_EQ(client.reply().body, "GET\n/echo\n\n");
}

}  // namespace
}  // namespace lca::server::test
