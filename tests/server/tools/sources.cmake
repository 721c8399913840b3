set(lca_test_server_tools_sources
  tests/server/tools/test_tool_events.cpp
  tests/server/tools/test_tool_grammar.cpp
  tests/server/tools/test_tool_prompt.cpp
  tests/server/tools/test_tool_reader.cpp
  tests/server/tools/test_tool_rule.cpp)
