# Tests of the HTTP layer, relative to tests/server/.
set(lca_server_http_tests
  http/raw_client.cpp http/test_gate.cpp http/test_limits.cpp http/test_many.cpp
  http/test_protocol.cpp http/test_reader.cpp http/test_streams.cpp)
