#include "server/http/request_log.h"

#include <fmt/format.h>
#include <spdlog/logger.h>

#include <algorithm>
#include <iterator>
#include <string_view>

namespace lca::server {
namespace {

constexpr std::size_t log_text_limit = 200;

std::string log_printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, log_text_limit)) {
    if (c > ' ' && c < '\x7f' && c != '\\') {
      out += c;
    } else {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  if (text.size() > log_text_limit) out += "...";
  return out;
}

}  // namespace

std::string request_log_line(const RequestRecord& record) {
  const std::string method = record.method.empty() ? "-" : log_printable(record.method);
  const std::string path = record.path.empty() ? "-" : log_printable(record.path);
  return fmt::format("{} {} {} {} in {} out {} {:.3f} s{}", record.peer, method, path,
                     record.status, record.bytes_in, record.bytes_out, record.seconds,
                     record.gone ? " gone" : "");
}

std::function<void(const RequestRecord&)> request_log(std::shared_ptr<spdlog::logger> logger) {
  return [logger = std::move(logger)](const RequestRecord& record) {
    const auto level = record.status >= 500 ? spdlog::level::warn : spdlog::level::info;
    if (logger->should_log(level)) logger->log(level, "{}", request_log_line(record));
  };
}

}  // namespace lca::server
