// The engine's edge: options, requests from any thread, counts.

#include <lca/engine.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "engine/engine_state.h"
#include "engine/session_state.h"
#include "models/model_state.h"

namespace lca {
namespace {

/// Enough to share the reading of weights among many; on the GPU so many that the caches of
/// sessions take as long to read as the weights.
constexpr std::int64_t kSessionsCpu = 64;
constexpr std::int64_t kSessionsDevice = 512;

/// Beyond it lengths are not added up: no memory holds such a session.
constexpr std::int64_t kLongestLength = std::int64_t{1} << 40;

EngineOptions options_complete(const Model& model, EngineOptions options) {
  const auto check = [](const char* name, std::int64_t value) {
    if (value < 0) fail_input("{} must be 0 or more, not {}", name, value);
  };
  check("most_sessions", options.most_sessions);
  check("step_tokens", options.step_tokens);
  if (options.most_sessions == 0) {
    options.most_sessions = model.info().device == "cpu" ? kSessionsCpu : kSessionsDevice;
  }
  if (options.step_tokens == 0) {
    options.step_tokens = options.most_sessions + model.state().backend->chunk_rows();
  }
  if (options.step_tokens <= options.most_sessions) {
    fail_input(
        "step_tokens is {}; a step takes a token of each of {} sessions and at least one of a "
        "prompt",
        options.step_tokens, options.most_sessions);
  }
  return options;
}

std::shared_ptr<const Model> model_checked(std::shared_ptr<const Model> model) {
  if (!model) fail_input("an engine needs a model");
  return model;
}

/// Holds the right to step.
class Stepping {
 public:
  explicit Stepping(std::atomic_flag& flag) : flag_(flag) {
    if (flag_.test_and_set(std::memory_order_acquire)) {
      fail_busy("the engine is stepping already, in another thread or around this callback");
    }
  }
  ~Stepping() { flag_.clear(std::memory_order_release); }
  Stepping(const Stepping&) = delete;
  Stepping& operator=(const Stepping&) = delete;

 private:
  std::atomic_flag& flag_;
};

}  // namespace

Engine::State::State(std::shared_ptr<const Model> the_model, Context& the_context,
                     const EngineOptions& wanted)
    : model(model_checked(std::move(the_model))),
      context(the_context),
      options(options_complete(*model, wanted)),
      memory(*model, options, context.threads()) {
  counts.memory_limit = memory.limit();
}

SessionOptions Engine::State::session_options(const Request& request) const {
  SessionOptions session = request.options;
  if (request.session) {
    const Session::State& held = request.session->state();
    session = {held.settings, held.chunk, held.most_marks};
  }
  if (session.chunk == 0) session.chunk = model->state().backend->chunk_rows();
  const bool whole = waits_for_prompt(settings_per_layer(*model, session));
  if (!whole) session.chunk = std::min(session.chunk, options.step_tokens - options.most_sessions);
  return session;
}

void Engine::State::check(const Request& request, RequestNeed& need) const {
  Reply::check(request.generate, model->info().vocabulary);
  const Session* session = request.session ? &*request.session : nullptr;
  if (session != nullptr && session->shared_model() != model) {
    fail_input("the session of the request belongs to another model than the engine's");
  }
  const bool continues = session != nullptr && !request.keep_prefix && !session->logits().empty();
  if (!request.prompt.empty() || !continues) tokens_check(*model, request.prompt);

  std::int64_t length = std::ssize(request.prompt);
  if (session != nullptr && !request.keep_prefix) length += session->length();
  length += std::min(request.generate.max_tokens, kLongestLength);
  const SessionOptions wanted = session_options(request);
  need = memory.need(wanted, std::max<std::int64_t>(1, length));
  if (session != nullptr) need.session += session->memory().marks;
  memory.require(need, wanted, length);
}

RequestId Engine::State::submit(Request&& request, RequestCallbacks callbacks) {
  std::list<EngineItem> one(1);
  EngineItem& item = one.front();
  check(request, item.need);
  item.callbacks = std::move(callbacks);
  RequestId id = 0;
  {
    const std::lock_guard lock(mutex);
    id = item.id = last_id + 1;
    live.emplace(id, item.cancel);
    last_id = id;
    item.request = std::move(request);
    arrived.splice(arrived.end(), one);
    ++counts.waiting;
  }
  arrival.notify_all();
  return id;
}

Engine::Engine(std::shared_ptr<const Model> model, Context& context, const EngineOptions& options)
    : state_(guarded([&] { return std::make_unique<State>(std::move(model), context, options); })) {
}

Engine::~Engine() = default;

RequestId Engine::submit(Request&& request, RequestCallbacks callbacks) {
  return guarded([&] { return state_->submit(std::move(request), std::move(callbacks)); });
}

bool Engine::cancel(RequestId id) {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->live.find(id);
  if (found == state_->live.end()) return false;
  found->second.request_stop();
  return true;
}

bool Engine::step(const std::stop_token& stop) {
  return guarded([&] {
    const Stepping stepping(state_->stepping);
    return state_->step(stop);
  });
}

void Engine::run(const std::stop_token& stop) {
  guarded([&] {
    const Stepping stepping(state_->stepping);
    while (!stop.stop_requested()) {
      if (state_->step(stop)) continue;
      std::unique_lock lock(state_->mutex);
      state_->arrival.wait(lock, stop, [this] { return !state_->arrived.empty(); });
    }
  });
}

EngineCounts Engine::counts() const {
  const std::lock_guard lock(state_->mutex);
  return state_->counts;
}

const EngineOptions& Engine::options() const { return state_->options; }

}  // namespace lca
