#pragma once
/// What a Service holds. Its coroutines are in several files.

#include "server/api/reply.h"
#include "server/api/request.h"
#include "server/api/routes.h"
#include "server/app/aside.h"
#include "server/app/service.h"
#include "server/http/mailbox.h"

#include <chrono>
#include <functional>
#include <optional>

namespace lca::server {

struct Service::State : std::enable_shared_from_this<Service::State> {
  explicit State(ServiceOptions wanted)
      : options(std::move(wanted)),
        aside(2, options.most_aside, options.most_aside_bytes),
        files(2, options.most_aside, options.most_aside_bytes) {}

  const ServiceOptions options;
  metrics::Registry registry;
  std::unique_ptr<ServedModel> model, compare;
  std::atomic<bool> opened = false, draining = false;
  std::int64_t created = 0;  ///< seconds since 1970
  Aside aside;               ///< parses, compiles, tokenises, renders
  Aside files;               ///< reads and writes files of sessions

  // service.cpp
  asio::awaitable<void> answer(HttpRequest request, ResponseWriter& writer);
  asio::awaitable<void> answer_route(HttpRequest& request, ResponseWriter& writer,
                                     const RouteMatch& match);
  /// Runs `work` on the files of sessions; where another request holds one, again and again, as
  /// long as a job would wait. False: the client left.
  asio::awaitable<bool> on_files(const std::function<void()>& work, ResponseWriter& writer);
  ServedModel& served(std::string_view name);
  void require_open() const;
  void metrics_add();

  // service_text.cpp
  asio::awaitable<void> answer_text(HttpRequest& request, ResponseWriter& writer, Route route);

  // service_routes.cpp: bodies of replies, which may take long
  std::string body_count(const HttpRequest& request);
  std::string body_tokenize(const HttpRequest& request);
  std::string body_detokenize(const HttpRequest& request);
  std::string body_sessions();
  std::string body_fork(const ForkRequest& asked, const std::string& name);
  std::string body_delete(const std::string& name);
  std::string body_messages(const std::string& name);
  std::string body_cache(const HttpRequest& request, const std::string& name);
  std::string body_models(Dialect dialect) const;
  std::string body_model(Dialect dialect, const std::string& name) const;
  std::string body_metrics() const;
  std::string body_page_config() const;
  std::string body_server_info() const;
  std::string body_model_info() const;
  SessionStore& store();
};

/// 32 hexadecimal digits.
std::string random_id();

}  // namespace lca::server
