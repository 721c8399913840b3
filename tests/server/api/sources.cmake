# Tests of the server's API layer, relative to tests/server/. check_clients.py needs the packages
# openai and anthropic and the samples that Reply.* writes with LCA_REPLY_SAMPLES=DIR.
set(lca_server_api_tests
  api/test_clients.cpp
  api/test_fields.cpp
  api/test_parse.cpp
  api/test_reply.cpp
  api/test_request_json.cpp)
# A fuzz target like those of tests/fuzz/, with the corpus in corpus/.
set(lca_server_api_fuzz api/fuzz_api.cpp)
