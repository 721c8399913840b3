set(lca_test_server_grammar_sources
  tests/server/grammar/schema_oracle.cpp
  tests/server/grammar/test_recogniser.cpp
  tests/server/grammar/test_schema_errors.cpp
  tests/server/grammar/test_token_mask.cpp)
