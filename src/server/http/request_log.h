#pragma once
/// One line per request through spdlog: who, what, status, bytes, seconds. No query, header or
/// body.

#include "server/http/server.h"

#include <functional>
#include <memory>
#include <string>

namespace spdlog {
class logger;
}

namespace lca::server {

/// For ServerOptions::log. Errors of the server (5xx) are warnings, the rest is information.
std::function<void(const RequestRecord&)> request_log(std::shared_ptr<spdlog::logger> logger);

/// The line: `127.0.0.1 POST /v1/messages 200 in 512 out 2048 0.153 s`, ` gone` at its end where
/// the client left early. Bytes of the path that are not printable ASCII are escaped.
std::string request_log_line(const RequestRecord& record);

}  // namespace lca::server
