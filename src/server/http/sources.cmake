# Sources of the HTTP layer, relative to src/server/. Needs Boost 1.81 headers, spdlog, fmt and
# nlohmann-json. asio_impl.cpp holds Asio's own code and must not be compiled with others as one.
set(lca_server_http_sources
  http/asio_impl.cpp http/connection.cpp http/connection_write.cpp http/gate.cpp
  http/request_log.cpp http/request_reader.cpp http/response.cpp http/server.cpp)
set(lca_server_http_alone http/asio_impl.cpp)
