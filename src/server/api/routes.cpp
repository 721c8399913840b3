#include "server/api/routes.h"

#include "server/headers.h"

#include "server/api/request_json.h"

#include <algorithm>
#include <optional>

namespace lca::server {

namespace {

constexpr RouteEntry kRoutes[] = {
    {Route::chat, "POST", "/v1/chat/completions", Dialect::openai},
    {Route::completions, "POST", "/v1/completions", Dialect::openai},
    {Route::responses, "POST", "/v1/responses", Dialect::openai},
    {Route::messages, "POST", "/v1/messages", Dialect::anthropic},
    {Route::count_tokens, "POST", "/v1/messages/count_tokens", Dialect::anthropic},
    {Route::models, "GET", "/v1/models", Dialect::openai},
    {Route::model, "GET", "/v1/models/{name}", Dialect::openai},
    {Route::tokenize, "POST", "/tokenize", Dialect::plain},
    {Route::detokenize, "POST", "/detokenize", Dialect::plain},
    {Route::sessions, "GET", "/v1/sessions", Dialect::plain},
    {Route::session_fork, "POST", "/v1/sessions/{name}/fork", Dialect::plain},
    {Route::session_delete, "DELETE", "/v1/sessions/{name}", Dialect::plain},
    {Route::cache, "GET", "/cache/{name}", Dialect::plain},
    {Route::health, "GET", "/health", Dialect::plain},
    {Route::metrics, "GET", "/metrics", Dialect::plain},
    {Route::openapi, "GET", "/openapi.json", Dialect::plain},
    {Route::server_info, "GET", "/server_info", Dialect::plain},
    {Route::model_info, "GET", "/model_info", Dialect::plain},
    {Route::page_config, "GET", "/page-config", Dialect::plain},
    {Route::session_messages, "GET", "/v1/sessions/{name}/messages", Dialect::plain},
};

/// What `{name}` stands for, where the path is the pattern's; empty for a pattern without.
std::optional<std::string> path_match(std::string_view pattern, std::string_view path) {
  const std::size_t open = pattern.find('{');
  if (open == std::string_view::npos) {
    return pattern == path ? std::optional<std::string>("") : std::nullopt;
  }
  const std::string_view before = pattern.substr(0, open);
  const std::string_view after = pattern.substr(pattern.find('}') + 1);
  if (path.size() <= before.size() + after.size()) return std::nullopt;
  if (!path.starts_with(before) || !path.ends_with(after)) return std::nullopt;
  const std::string_view name =
      path.substr(before.size(), path.size() - before.size() - after.size());
  // Names of models may have slashes ("org/model"); those of sessions may not.
  const bool slashes = before == "/v1/models/";
  if (!slashes && name.find('/') != std::string_view::npos) return std::nullopt;
  return std::string(name);
}

}  // namespace

std::span<const RouteEntry> route_table() { return kRoutes; }

Dialect dialect_of(const HttpRequest& request) {
  const std::string_view path = request.path;
  if (path.starts_with("/v1/messages") || !header_value(request, "anthropic-version").empty()) {
    return Dialect::anthropic;
  }
  return path.starts_with("/v1/") && !path.starts_with("/v1/sessions") ? Dialect::openai
                                                                       : Dialect::plain;
}

RouteMatch route_match(const HttpRequest& request) {
  const std::string_view asked = request.method;
  const std::string_view method = asked == "HEAD" ? "GET" : asked;
  std::string allow;
  for (const RouteEntry& entry : kRoutes) {
    std::optional<std::string> name = path_match(entry.path, request.path);
    if (!name) continue;
    if (entry.method == method) {
      const bool shared = entry.route == Route::models || entry.route == Route::model;
      return {.route = entry.route,
              .dialect = shared ? dialect_of(request) : entry.dialect,
              .name = std::move(*name)};
    }
    allow += allow.empty() ? "" : ", ";
    allow += entry.method == "GET" ? "GET, HEAD" : entry.method;
  }
  ApiError error;
  const std::string shown = json_shown(Json(request.path));
  if (allow.empty()) {
    error.status = 404;
    error.message = fmt::format("there is nothing at {}", shown);
  } else {
    error.status = 405;
    error.message = fmt::format("{} takes {}", shown, allow);
    error.allow = std::move(allow);
  }
  throw ApiException(std::move(error));
}

}  // namespace lca::server
