#pragma once
/// Which route a request is for.

#include "server/types.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lca::server {

enum class Route : std::uint8_t {
  chat,
  completions,
  responses,
  messages,
  count_tokens,
  models,
  model,
  tokenize,
  detokenize,
  sessions,
  session_fork,
  session_delete,
  session_messages,
  cache,
  health,
  metrics,
  openapi,
  server_info,
  model_info,
  page_config,
};

/// `{name}` in a path stands for one segment.
struct RouteEntry {
  Route route;
  std::string_view method, path;
  Dialect dialect;
};

std::span<const RouteEntry> route_table();

struct RouteMatch {
  Route route = Route::health;
  Dialect dialect = Dialect::plain;
  std::string name = {};  ///< what `{name}` stands for
};

/// Throws ApiException: 404 where there is no such path, 405 where it takes other methods. HEAD is
/// taken for GET. The page's files are not routes: look for them where this says 404.
RouteMatch route_match(const HttpRequest& request);

/// The dialect for an error that comes before, or instead of, a route.
Dialect dialect_of(const HttpRequest& request);

/// /openapi.json, as text.
std::string openapi_body();

}  // namespace lca::server
