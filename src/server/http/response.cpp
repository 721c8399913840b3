#include "server/http/response.h"

#include "core/error.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <iterator>

namespace lca::server {

std::string_view status_reason(int status) {
  switch (status) {
    case 100:
      return "Continue";
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Unknown";
  }
}

void header_check(std::string_view name, std::string_view value) {
  constexpr std::string_view marks = "!#$%&'*+-.^_`|~";
  const auto token = [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           marks.find(c) != std::string_view::npos;
  };
  const auto control = [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f;
  };
  if (name.empty() || !std::ranges::all_of(name, token)) {
    fail_input("a response header's name is not a token");
  }
  if (std::ranges::any_of(value, control)) {
    fail_input("the value of the response header {} has control characters", name);
  }
}

std::string http_date(long long seconds) {
  return fmt::format("{:%a, %d %b %Y %H:%M:%S} GMT",
                     fmt::gmtime(static_cast<std::time_t>(seconds)));
}

std::string response_head(int status, const HeaderList& headers, const ResponseShape& shape) {
  std::string head;
  auto out = std::back_inserter(head);
  fmt::format_to(out, "HTTP/1.1 {} {}\r\n", status, status_reason(status));
  for (const auto& [name, value] : headers) {
    header_check(name, value);
    fmt::format_to(out, "{}: {}\r\n", name, value);
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  fmt::format_to(out, "Date: {}\r\n",
                 http_date(std::chrono::duration_cast<std::chrono::seconds>(now).count()));
  head += "X-Content-Type-Options: nosniff\r\n";
  if (shape.length) {
    if (status != 204 && status != 304) {
      fmt::format_to(out, "Content-Length: {}\r\n", *shape.length);
    }
  } else if (shape.minor_version > 0) {
    head += "Transfer-Encoding: chunked\r\n";
  }
  if (!shape.keep_alive) {
    head += "Connection: close\r\n";
  } else if (shape.minor_version == 0) {
    head += "Connection: keep-alive\r\n";
  }
  head += "\r\n";
  return head;
}

void chunk_append(std::string& out, std::string_view data) {
  if (data.empty()) return;
  fmt::format_to(std::back_inserter(out), "{:x}\r\n", data.size());
  out += data;
  out += "\r\n";
}

std::string error_body(int status, std::string_view message) {
  const char* type = "invalid_request_error";
  if (status == 401) type = "authentication_error";
  if (status == 403) type = "permission_error";
  if (status == 404) type = "not_found_error";
  if (status == 429) type = "rate_limit_error";
  if (status >= 500) type = "server_error";
  nlohmann::ordered_json body;
  body["error"] = {{"message", message}, {"type", type}, {"param", nullptr}, {"code", nullptr}};
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace lca::server
