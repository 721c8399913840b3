#include "server/app/service.h"

#include "server/api/request_json.h"
#include "server/app/service_state.h"
#include "server/headers.h"
#include "server/page/page.h"

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <random>
#include <utility>

namespace lca::server {
namespace {

constexpr const char* kJson = "application/json";
constexpr auto kLockPause = std::chrono::milliseconds(25);

ApiError not_now(int status, std::string message) {
  ApiError error;
  error.status = status;
  error.message = std::move(message);
  error.retry_after = 2;
  return error;
}

asio::awaitable<void> send_error(ResponseWriter& writer, Dialect dialect, ApiError error) {
  if (error.retry_after > 0) writer.header("Retry-After", std::to_string(error.retry_after));
  if (!error.allow.empty()) writer.header("Allow", error.allow);
  std::string body = error_body(dialect, error);
  co_await writer.send(error.status, kJson, std::move(body));
}

/// Methods of a path for the header Allow; empty: not a path of this server.
std::string methods_of(std::string_view path) {
  if (page_answer(path, {})) return "GET, HEAD";
  HttpRequest request;
  request.path = path;
  request.method = "?";
  try {
    route_match(request);
  } catch (const ApiException& error) {
    return error.error().allow;
  }
  return {};
}

}  // namespace

std::string random_id() {
  static thread_local std::mt19937_64 draw{std::random_device{}()};
  return fmt::format("{:016x}{:016x}", draw(), draw());
}

Service::Service(ServiceOptions options) : state_(std::make_shared<State>(std::move(options))) {}
Service::~Service() { close(); }

metrics::Registry& Service::registry() { return state_->registry; }

void Service::open(std::unique_ptr<ServedModel> model, std::unique_ptr<ServedModel> compare) {
  state_->model = std::move(model);
  state_->compare = std::move(compare);
  state_->created = std::chrono::duration_cast<std::chrono::seconds>(
                        std::chrono::system_clock::now().time_since_epoch())
                        .count();
  state_->metrics_add();
  state_->opened = true;
}

void Service::drain() { state_->draining = true; }

void Service::close() {
  state_->aside.drop();
  state_->files.drop();
  if (!state_->opened.exchange(false)) return;
  for (ServedModel* each : {state_->model.get(), state_->compare.get()}) {
    if (each != nullptr) each->host().drain({});
  }
  state_->aside.stop();
  state_->files.stop();
}

Handler Service::handler() {
  return [state = state_](HttpRequest request, ResponseWriter& writer) {
    return state->answer(std::move(request), writer);
  };
}

void Service::configure(ServerOptions& options) {
  options.gate.unguarded = [](std::string_view, std::string_view path) {
    return path == "/health" || page_answer(path, {}).has_value();
  };
  options.gate.methods = methods_of;
  options.registry = &state_->registry;
  options.error_render = [](const HttpRequest& about, int status, const std::string& message) {
    ApiError error;
    error.status = status;
    error.message = message;
    return std::pair<std::string, std::string>(kJson, error_body(dialect_of(about), error));
  };
}

void Service::State::require_open() const {
  if (!opened) throw ApiException(not_now(503, "the model is being loaded"));
}

ServedModel& Service::State::served(std::string_view name) {
  if (compare && name == compare->name()) return *compare;
  if (options.strict_model) model_check(name, model->name());
  return *model;
}

asio::awaitable<void> Service::State::answer(HttpRequest request, ResponseWriter& writer) {
  const bool reads = request.method == "GET" || request.method == "HEAD";
  if (reads) {
    const std::string known(header_value(request, "if-none-match"));
    if (const std::optional<PageAnswer> page = page_answer(request.path, known)) {
      for (const auto& [name, value] : page->headers) {
        writer.header(std::string(name), std::string(value));
      }
      co_await writer.send(page->status, std::string(page->content_type), std::string(page->body));
      co_return;
    }
  }
  Dialect dialect = dialect_of(request);
  std::optional<ApiError> failed;
  try {
    const RouteMatch match = route_match(request);
    dialect = match.dialect;
    co_await answer_route(request, writer, match);
  } catch (...) {
    // A job's failure is its stream's last event; a stream that nobody ended is broken off.
    if (writer.started()) throw;
    failed = error_now();
  }
  if (failed) co_await send_error(writer, dialect, std::move(*failed));
}

asio::awaitable<void> Service::State::answer_route(HttpRequest& request, ResponseWriter& writer,
                                                   const RouteMatch& match) {
  std::function<std::string()> slow, on_file;
  std::optional<ForkRequest> fork;
  std::string body, type = kJson;
  switch (match.route) {
    case Route::health:
      require_open();
      if (draining) throw ApiException(not_now(503, "the server is shutting down"));
      body = R"({"status":"ok"})";
      break;
    case Route::openapi:
      body = openapi_body();
      break;
    case Route::metrics:
      body = body_metrics();
      type = std::string(metrics::Registry::content_type);
      break;
    case Route::chat:
    case Route::completions:
    case Route::responses:
    case Route::messages:
      co_await answer_text(request, writer, match.route);
      co_return;
    default: {
      require_open();
      const std::string& name = match.name;
      switch (match.route) {
        case Route::models:
          body = body_models(match.dialect);
          break;
        case Route::model:
          body = body_model(match.dialect, name);
          break;
        case Route::page_config:
          body = body_page_config();
          break;
        case Route::server_info:
          body = body_server_info();
          break;
        case Route::model_info:
          body = body_model_info();
          break;
        case Route::count_tokens:
          slow = [&] { return body_count(request); };
          break;
        case Route::tokenize:
          slow = [&] { return body_tokenize(request); };
          break;
        case Route::detokenize:
          slow = [&] { return body_detokenize(request); };
          break;
        case Route::sessions:
          on_file = [&] { return body_sessions(); };
          break;
        case Route::session_fork:
          on_file = [&] {
            if (!fork) fork = parse_fork(json_parse_body(request.body));
            return body_fork(*fork, name);
          };
          break;
        case Route::session_delete:
          on_file = [&] { return body_delete(name); };
          break;
        case Route::session_messages:
          on_file = [&] { return body_messages(name); };
          break;
        case Route::cache:
          on_file = [&] { return body_cache(request, name); };
          break;
        default:
          break;
      }
    }
  }
  bool here = true;
  if (slow) {
    const Aside::Place place(aside, request.body.size());
    const std::function<void()> work = [&] { body = slow(); };
    here = co_await aside.run(work, writer);
  } else if (on_file) {
    const Aside::Place place(files, request.body.size());
    const std::function<void()> work = [&] { body = on_file(); };
    here = co_await on_files(work, writer);
  }
  if (here) co_await writer.send(200, std::move(type), std::move(body));
}

asio::awaitable<bool> Service::State::on_files(const std::function<void()>& work,
                                               ResponseWriter& writer) {
  const std::chrono::duration<double> patience(model->host().lock_seconds());
  const auto asked = std::chrono::steady_clock::now();
  std::exception_ptr held;
  const std::function<void()> attempt = [&] {
    held = nullptr;
    try {
      work();
    } catch (const SessionHeld&) {
      held = std::current_exception();
    }
  };
  asio::steady_timer pause(writer.executor());
  while (!writer.gone()) {
    const bool done = co_await files.run(attempt, writer);
    if (!done || !held) co_return done;
    if (std::chrono::steady_clock::now() - asked >= patience) std::rethrow_exception(held);
    // No thread waits: others hold other sessions.
    pause.expires_after(kLockPause);
    boost::system::error_code error;
    co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
  }
  co_return false;
}

}  // namespace lca::server
