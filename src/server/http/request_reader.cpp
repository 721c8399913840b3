#include "server/http/request_reader.h"

#include "server/http/asio_config.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <algorithm>
#include <utility>

namespace lca::server {
namespace asio = boost::asio;
namespace http = boost::beast::http;

struct RequestReader::Parser {
  http::request_parser<http::string_body> beast;
  std::size_t header_limit = 0;
  std::size_t header_bytes = 0;  // consumed
};

namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = letter_lower(c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool percent_decode(std::string_view text, std::string& out) {
  out.clear();
  for (std::size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (i + 2 >= text.size()) return false;
      const int high = hex_digit(text[i + 1]);
      const int low = hex_digit(text[i + 2]);
      if (high < 0 || low < 0) return false;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (c == '\0') return false;
    out.push_back(c);
  }
  return true;
}

}  // namespace

std::size_t header_count(const HttpRequest& request, std::string_view name) {
  std::size_t count = 0;
  for (const auto& [key, value] : request.headers) count += text_same_letters(key, name);
  return count;
}

bool target_split(std::string_view target, std::string& path, std::string& query,
                  std::string& authority) {
  authority.clear();
  query.clear();
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (target.size() < scheme.size() ||
        !text_same_letters(target.substr(0, scheme.size()), scheme)) {
      continue;
    }
    target.remove_prefix(scheme.size());
    const std::size_t end = std::min(target.find_first_of("/?#"), target.size());
    authority = target.substr(0, end);
    target.remove_prefix(end);
    if (authority.empty()) return false;
    break;
  }
  target = target.substr(0, target.find('#'));
  const std::size_t mark = target.find('?');
  if (mark != std::string_view::npos) query = target.substr(mark + 1);
  target = target.substr(0, mark);
  if (target.empty() && !authority.empty()) target = "/";
  if (target == "*") {  // OPTIONS *
    path = "*";
    return true;
  }
  return target.starts_with('/') && percent_decode(target, path);
}

RequestReader::RequestReader(const ReadLimits& limits) : parser_(std::make_unique<Parser>()) {
  parser_->beast.eager(false);
  // Beast counts the request line and the headers apart, or together, as the bytes are split; its
  // limit only has to come after the one that feed() checks.
  parser_->header_limit = limits.header_bytes;
  parser_->beast.header_limit(static_cast<std::uint32_t>(limits.header_bytes + 64));
  parser_->beast.body_limit(limits.body_bytes);
}

RequestReader::~RequestReader() = default;

void RequestReader::fail(int status, std::string problem) {
  if (state_ == State::headers && request_.method.empty()) take_known();  // errors name the route
  state_ = State::failed;
  status_ = status;
  problem_ = std::move(problem);
  keep_alive_ = false;
}

std::size_t RequestReader::feed(std::string_view bytes) {
  if (state_ == State::done || state_ == State::failed || bytes.empty()) return 0;
  boost::beast::error_code error;
  auto& parser = parser_->beast;
  std::size_t consumed = 0;
  // The parser stops after each part: head, chunk, body. The headers are taken as soon as they are
  // there, since trailers join them later, which must not pass for what the gate has seen.
  for (;;) {
    const std::string_view rest = bytes.substr(consumed);
    const std::size_t used = parser.put(asio::const_buffer(rest.data(), rest.size()), error);
    consumed += used;
    if (error || parser.is_done() || consumed == bytes.size() || used == 0) break;
    if (state_ == State::headers && parser.is_header_done()) break;
  }
  if (state_ == State::headers) {
    parser_->header_bytes += consumed;
    const std::size_t waiting = parser.is_header_done() ? 0 : bytes.size() - consumed;
    if (error != http::error::body_limit &&
        parser_->header_bytes + waiting > parser_->header_limit) {
      error = http::error::header_limit;
    }
  }
  // The parser passes over data as it comes, and waits for the end of a chunk's head or of
  // trailers.
  if (state_ == State::body && error == http::error::need_more &&
      bytes.size() - consumed > parser_->header_limit) {
    fail(431, "a chunk's head or the trailers are larger than this server accepts");
    return consumed;
  }
  if (error && error != http::error::need_more) {
    if (error == http::error::header_limit) {
      fail(431, "the request's headers are larger than this server accepts");
    } else if (error == http::error::body_limit) {
      fail(413, "the request's body is larger than this server accepts");
    } else if (error == http::error::bad_version) {
      fail(505, "this server speaks HTTP/1.0 and HTTP/1.1");
    } else {
      fail(400, "malformed HTTP request: " + error.message());
    }
    return consumed;
  }
  if (state_ == State::headers && parser.is_header_done()) take_headers();
  if (state_ == State::body && parser.is_done()) {
    request_.body = std::move(parser.get().body());
    state_ = State::done;
  }
  return consumed;
}

std::size_t RequestReader::body_held() const {
  if (state_ != State::body) return request_.body.size();
  // Room for an announced body is reserved at once, and takes no memory until it is filled.
  const std::string& body = parser_->beast.get().body();
  return std::min(body.capacity(), 2 * body.size());
}

/// The head as far as it was read; returns the authority of its target.
std::string RequestReader::take_known() {
  const auto& message = parser_->beast.get();
  request_.method = std::string(message.method_string());
  for (const auto& field : message) {
    request_.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  }
  std::string authority;
  if (!target_split(std::string_view(message.target().data(), message.target().size()),
                    request_.path, request_.query, authority)) {
    request_.path.clear();
  }
  return authority;
}

void RequestReader::take_headers() {
  const std::string authority = take_known();
  minor_version_ = static_cast<int>(parser_->beast.get().version() % 10);
  if (request_.path.empty()) return fail(400, "malformed request target");
  if (!authority.empty()) {  // it wins over the header (RFC 9112, 3.2.2)
    std::erase_if(request_.headers,
                  [](const auto& header) { return text_same_letters(header.first, "host"); });
    request_.headers.emplace_back("Host", authority);
  }
  // A body whose length two readers could see differently is how requests are smuggled past a
  // proxy.
  const std::string_view coding = header_value(request_, "transfer-encoding");
  if (header_count(request_, "transfer-encoding") > 0) {
    if (!text_same_letters(coding, "chunked") || header_count(request_, "transfer-encoding") > 1) {
      return fail(501, "the only transfer coding this server reads is chunked");
    }
    if (minor_version_ == 0 || header_count(request_, "content-length") > 0) {
      return fail(400, "a chunked body needs HTTP/1.1 and no Content-Length");
    }
  }
  if (header_count(request_, "content-length") > 1) {
    return fail(400, "more than one Content-Length");
  }
  const std::string_view expect = header_value(request_, "expect");
  if (!expect.empty() && minor_version_ > 0) {
    if (!text_same_letters(expect, "100-continue")) {
      return fail(417, "the only expectation this server meets is 100-continue");
    }
    expects_continue_ = true;
  }
  keep_alive_ = parser_->beast.keep_alive();
  state_ = State::body;
}

}  // namespace lca::server
