// Requests from bytes without a socket: every split, targets, heads of replies, lines of the log.

#include "server/http/request_log.h"
#include "server/http/request_reader.h"
#include "server/http/response.h"

#include <lca/error.h>

#include <gtest/gtest.h>

namespace lca::server {
namespace {

/// Feeds two pieces as a connection does: what is not consumed comes again, with more.
std::string feed_split(RequestReader& reader, std::string_view text, std::size_t at) {
  std::string held(text.substr(0, at));
  for (const std::string_view more : {text.substr(at), std::string_view()}) {
    while (const std::size_t used = reader.feed(held)) held.erase(0, used);
    held += more;
  }
  return held;
}

TEST(RequestReading, DoesNotDependOnWhereTheBytesAreSplit) {
  const std::string_view texts[] = {
      "POST /a?b=c HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhelloGET",
      "POST /a?b=c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
      "2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\nGET"};
  for (const std::string_view text : texts) {
    for (std::size_t at = 0; at < text.size() - 3; ++at) {
      RequestReader reader({});
      const std::string rest = feed_split(reader, text, at);
      ASSERT_EQ(reader.state(), RequestReader::State::done) << at;
      EXPECT_EQ(rest, "GET") << at;
      EXPECT_EQ(reader.request().path, "/a");
      EXPECT_EQ(reader.request().query, "b=c");
      EXPECT_EQ(reader.request().body, "hello");
      EXPECT_EQ(header_value(reader.request(), "HOST"), "x");
      EXPECT_TRUE(reader.keep_alive());
    }
  }
}

TEST(RequestReading, ARequestWithoutABodyIsDoneAtItsBlankLine) {
  RequestReader reader({});
  const std::string_view text = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  EXPECT_EQ(reader.feed(text), text.size());
  EXPECT_EQ(reader.state(), RequestReader::State::done);
  EXPECT_EQ(reader.feed("more"), 0U);
}

TEST(RequestReading, TrailersAreNoHeaders) {
  RequestReader reader({});
  std::string text =
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
      "1\r\na\r\n0\r\nx-api-key: late\r\n\r\n";
  const std::string rest = feed_split(reader, text, 0);
  EXPECT_EQ(reader.state(), RequestReader::State::done);
  EXPECT_EQ(rest, "");
  EXPECT_EQ(reader.request().body, "a");
  EXPECT_EQ(header_count(reader.request(), "x-api-key"), 0U);
}

TEST(RequestReading, OtherVersionsAreRefused) {
  RequestReader reader({});
  reader.feed("GET / HTTP/2.0\r\nHost: x\r\n\r\n");
  EXPECT_EQ(reader.state(), RequestReader::State::failed);
  EXPECT_EQ(reader.status(), 505);
}

TEST(RequestReading, TargetsAreSplitAndDecoded) {
  std::string path, query, authority;
  EXPECT_TRUE(target_split("/a%2Fb?c%20d?e#f", path, query, authority));
  EXPECT_EQ(path, "/a/b");
  EXPECT_EQ(query, "c%20d?e");
  EXPECT_TRUE(target_split("HTTP://h:1?x", path, query, authority));
  EXPECT_EQ(authority, "h:1");
  EXPECT_EQ(path, "/");
  EXPECT_EQ(query, "x");
  for (const char* bad : {"", "a", "?x", "/%", "/%1", "/%0g", "/%00", "http://", "http:///x"}) {
    EXPECT_FALSE(target_split(bad, path, query, authority)) << bad;
  }
}

TEST(Responses, HeadersCannotBeSmuggledIn) {
  EXPECT_NO_THROW(header_check("X-Model", "caf\xc3\xa9\tand more"));
  for (const char* value : {"a\r\nb", "a\nb", "a\rb", "\x7f", "\x01"}) {
    EXPECT_THROW(header_check("X-Model", value), Error);
  }
  EXPECT_THROW(header_check("X-Model", std::string("a\0b", 3)), Error);
  EXPECT_THROW(header_check("X Model", "a"), Error);
  EXPECT_THROW(header_check("X:", "a"), Error);
  EXPECT_THROW(header_check("", "a"), Error);
}

TEST(Responses, HeadsHaveWhatTheirShapeNeeds) {
  const std::string whole = response_head(404, {{"Allow", "GET"}}, {1, false, 12});
  EXPECT_TRUE(whole.starts_with("HTTP/1.1 404 Not Found\r\nAllow: GET\r\nDate: "));
  EXPECT_NE(whole.find("\r\nContent-Length: 12\r\n"), std::string::npos);
  EXPECT_TRUE(whole.ends_with("\r\nConnection: close\r\n\r\n"));
  const std::string stream = response_head(200, {}, {1, true, std::nullopt});
  EXPECT_NE(stream.find("\r\nTransfer-Encoding: chunked\r\n"), std::string::npos);
  EXPECT_EQ(stream.find("Connection"), std::string::npos);
  EXPECT_EQ(response_head(200, {}, {0, false, std::nullopt}).find("chunked"), std::string::npos);
  EXPECT_EQ(response_head(204, {}, {1, true, 0}).find("Content-Length"), std::string::npos);
  EXPECT_EQ(http_date(784111777), "Sun, 06 Nov 1994 08:49:37 GMT");
  std::string chunks;
  chunk_append(chunks, "");
  chunk_append(chunks, std::string(26, 'a'));
  EXPECT_EQ(chunks, "1a\r\n" + std::string(26, 'a') + "\r\n");
}

TEST(RequestLog, ALineNamesNoQueryAndEscapesWhatATerminalWouldObey) {
  RequestRecord record;
  record.peer = "127.0.0.1";
  record.method = "POST";
  record.path = "/a\x1b[2J\nb";
  record.status = 200;
  record.bytes_in = 5;
  record.bytes_out = 7;
  record.seconds = 0.25;
  EXPECT_EQ(request_log_line(record), "127.0.0.1 POST /a\\x1b[2J\\x0ab 200 in 5 out 7 0.250 s");
  record.gone = true;
  record.method.clear();
  record.path = std::string(1000, 'a');
  const std::string line = request_log_line(record);
  EXPECT_TRUE(line.ends_with(" gone"));
  EXPECT_LT(line.size(), 300U);
}

}  // namespace
}  // namespace lca::server
