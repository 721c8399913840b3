# Sources of the server's API layer, relative to src/server/.
set(lca_server_api_sources
  api/fields.cpp
  api/openapi.cpp
  api/parse_chat.cpp
  api/parse_common.cpp
  api/parse_messages.cpp
  api/parse_responses.cpp
  api/reply.cpp
  api/reply_messages.cpp
  api/reply_openai.cpp
  api/reply_responses.cpp
  api/request_json.cpp
  api/routes.cpp
  api/token_text.cpp)
