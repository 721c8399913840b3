// Requests and replies over loopback: framing, keep-alive, pipelining, methods, statuses.

#include "server/http/raw_client.h"

#include <gtest/gtest.h>

namespace lca::server::test {
namespace {

TEST(HttpProtocol, PassesMethodPathQueryAndBodyToTheHandler) {
  TestServer server;
  RawClient client(server.port());
  EXPECT_EQ(client.ask(request_text("POST", "/echo?a=%20b", "", "the body")).body,
            "POST\n/echo\na=%20b\nthe body");
  EXPECT_EQ(client.ask(request_text("GET", "/ech%6f")).body, "GET\n/echo\n\n");
}

TEST(HttpProtocol, KeepsAConnectionForFurtherRequests) {
  TestServer server;
  RawClient client(server.port());
  for (int i = 0; i < 100; ++i) {
    const std::string body = "request " + std::to_string(i);
    const RawReply reply = client.ask(request_text("POST", "/echo", "", body));
    ASSERT_EQ(reply.status, 200);
    ASSERT_TRUE(reply.body.ends_with(body));
  }
  EXPECT_EQ(server.server().connections(), 1U);
}

TEST(HttpProtocol, ClosesWhenTheClientAsksForItOrSpeaksHttp10) {
  TestServer server;
  RawClient client(server.port());
  RawReply reply = client.ask(request_text("GET", "/echo", "Connection: close\r\n"));
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers["connection"], "close");
  EXPECT_TRUE(client.closed_within(2s));

  RawClient old(server.port());
  EXPECT_EQ(old.ask("GET /echo HTTP/1.0\r\n\r\n").status, 200);
  EXPECT_TRUE(old.closed_within(2s));

  RawClient stream(server.port());
  reply = stream.ask("GET /events HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_FALSE(reply.headers.contains("transfer-encoding"));
  EXPECT_TRUE(reply.whole);
  EXPECT_TRUE(reply.body.ends_with("data: 4\n\n"));
}

TEST(HttpProtocol, AnswersPipelinedRequestsInOrder) {
  TestServer server;
  RawClient client(server.port());
  std::string all;
  for (int i = 0; i < 50; ++i) {
    all += i % 5 == 4 ? request_text("GET", "/events")
                      : request_text("POST", "/echo", "", "number " + std::to_string(i));
  }
  client.send(all);
  for (int i = 0; i < 50; ++i) {
    const RawReply reply = client.reply();
    ASSERT_EQ(reply.status, 200) << i;
    ASSERT_TRUE(reply.body.ends_with(i % 5 == 4 ? "data: 4\n\n" : "number " + std::to_string(i)));
  }
}

TEST(HttpProtocol, ReadsChunkedBodiesWithExtensionsAndTrailers) {
  TestServer server;
  RawClient client(server.port());
  const RawReply reply = client.ask(
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
      "5;name=value\r\nhello\r\n7\r\n, world\r\n0\r\nTrailer: x\r\n\r\n");
  EXPECT_EQ(reply.body, "POST\n/echo\n\nhello, world");
  EXPECT_EQ(client.ask(request_text("GET", "/echo")).status, 200);
}

TEST(HttpProtocol, ReadsRequestsThatArriveByteByByte) {
  TestServer server;
  RawClient client(server.port());
  for (const char c : request_text("POST", "/echo", "X-A: b\r\n", "slowly but surely")) {
    client.send(std::string_view(&c, 1));
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(client.reply().body, "POST\n/echo\n\nslowly but surely");
}

TEST(HttpProtocol, SaysContinueBeforeTheBodyWhenAskedTo) {
  TestServer server;
  RawClient client(server.port());
  client.send(request_text("POST", "/echo", "Expect: 100-continue\r\nContent-Length: 4\r\n"));
  EXPECT_EQ(client.reply().status, 100);
  client.send("body");
  EXPECT_EQ(client.reply().body, "POST\n/echo\n\nbody");
  EXPECT_EQ(client.ask(request_text("POST", "/echo", "Expect: cake\r\n")).status, 417);
}

TEST(HttpProtocol, LeavesTheBodyOutOfRepliesToHead) {
  TestServer server;
  RawClient client(server.port());
  client.send(request_text("HEAD", "/echo"));
  RawReply reply = client.reply(true);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers["content-length"], "11");
  client.send(request_text("HEAD", "/events"));
  EXPECT_EQ(client.reply(true).status, 200);
  EXPECT_EQ(client.ask(request_text("GET", "/echo")).body, "GET\n/echo\n\n");
}

TEST(HttpProtocol, AnswersOptionsAndForeignMethodsWithTheMethodsOfThePath) {
  ServerOptions options;
  options.gate.methods = [](std::string_view path) {
    return path == "/echo" ? std::string("POST") : path == "/events" ? "GET" : "";
  };
  TestServer server(std::move(options));
  RawClient client(server.port());
  RawReply reply = client.ask(request_text("OPTIONS", "/echo"));
  EXPECT_EQ(reply.status, 204);
  EXPECT_EQ(reply.headers["allow"], "POST, OPTIONS");
  reply = client.ask(request_text("GET", "/echo"));
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(reply.headers["allow"], "POST, OPTIONS");
  EXPECT_EQ(client.ask(request_text("GET", "/nowhere")).status, 404);
  for (const char* method : {"TRACE", "CONNECT", "PATCH", "FROB"}) {
    reply = client.ask(request_text(method, "/events"));
    EXPECT_EQ(reply.status, 405) << method;
    EXPECT_EQ(reply.headers["allow"], "GET, HEAD, OPTIONS");
  }
  EXPECT_EQ(client.ask(request_text("OPTIONS", "*")).status, 204);
}

TEST(HttpProtocol, AnswersBrokenRequestsWith400AndCloses) {
  TestServer server;
  for (const char* text :
       {"\x16\x03\x01 TLS\r\n\r\n", "GET /echo\r\n\r\n",
        "GET echo HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /%zz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", "GET /echo HTTP/1.1\r\n\r\n",
        "GET /echo HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
        "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "GET /echo HTTP/1.1\r\nHost: localhost\r\nA b: c\r\n\r\n"}) {
    RawClient client(server.port());
    EXPECT_EQ(client.ask(text).status, 400) << text;
  }
  RawClient coded(server.port());
  EXPECT_EQ(coded.ask(request_text("POST", "/echo", "Transfer-Encoding: gzip\r\n")).status, 501);
  EXPECT_TRUE(coded.closed_within(2s));
  EXPECT_EQ(server.handled, 0);
}

TEST(HttpProtocol, TurnsFailuresOfTheHandlerInto500WithoutItsText) {
  TestServer server;
  RawClient client(server.port());
  for (const char* path : {"/throws", "/silent", "/crlf"}) {
    const RawReply reply = client.ask(request_text("GET", path));
    EXPECT_EQ(reply.status, 500) << path;
    EXPECT_EQ(reply.body.find("secret"), std::string::npos);
    EXPECT_FALSE(reply.headers.contains("set-cookie"));
  }
  const RawReply broken = client.ask(request_text("GET", "/breaks"));
  EXPECT_EQ(broken.status, 200);
  EXPECT_FALSE(broken.whole) << "a broken stream must not look complete";
}

TEST(HttpProtocol, WritesErrorsInTheDialectThatIsConfigured) {
  ServerOptions options;
  options.gate.keys = {"k"};
  options.error_render = [](const HttpRequest& about, int status, const std::string&) {
    const std::string said(header_value(about, "x-dialect"));
    return std::pair<std::string, std::string>("text/x-test",
                                               about.path + said + " " + std::to_string(status));
  };
  options.limits.header_bytes = 2048;
  options.limits.body_bytes = 10;
  options.header_timeout = 100ms;
  TestServer server(std::move(options));
  RawClient client(server.port());
  RawReply reply = client.ask(request_text("GET", "/echo", "X-Dialect: a\r\n"));
  EXPECT_EQ(reply.body, "/echoa 401");
  EXPECT_EQ(reply.headers["content-type"], "text/x-test");
  // Where the request is given up before its head is whole, as far as that is known.
  RawClient large(server.port());
  EXPECT_EQ(large.ask(request_text("POST", "/echo", "X-Dialect: a\r\n", std::string(11, 'b'))).body,
            "/echoa 413");
  RawClient heads(server.port());
  EXPECT_EQ(heads.ask("GET /echo HTTP/1.1\r\nX-Dialect: a\r\nX: " + std::string(3000, 'b')).body,
            "/echoa 431");
  RawClient slow(server.port());
  EXPECT_EQ(slow.ask("GET /echo HTTP/1.1\r\nX-Dialect: a\r\nX: ").body, "/echoa 408");
  RawClient nothing(server.port());
  EXPECT_EQ(nothing.ask("GE").body, " 408");
}

TEST(HttpProtocol, WritesInThatDialectToWhoIsCutOffByTheEndToo) {
  ServerOptions options;
  options.error_render = [](const HttpRequest& about, int status, const std::string&) {
    return std::pair<std::string, std::string>("text/x-test",
                                               about.path + " " + std::to_string(status));
  };
  TestServer server(std::move(options));
  RawClient half(server.port());
  half.send("GET /echo HTTP/1.1\r\nHost: localhost\r\n");
  std::this_thread::sleep_for(50ms);  // so that the server has read it: what it has not, it resets
  server.server().drain();
  EXPECT_EQ(half.reply().body, "/echo 503");
}

}  // namespace
}  // namespace lca::server::test
