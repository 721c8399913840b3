#pragma once
/// What an Engine holds, and one request on its way through it.

#include <lca/engine.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "engine/engine_memory.h"
#include "engine/reply.h"

namespace lca {

/// What was thrown, as an Error: what is none comes from a callback or hook.
Error error_of(const std::exception_ptr& thrown);
ErrorKind error_kind(const std::exception_ptr& thrown);

/// A request and how far it is. The session is in `request`.
struct EngineItem {
  using Clock = std::chrono::steady_clock;

  RequestId id = 0;
  Request request;
  RequestCallbacks callbacks;
  RequestNeed need;
  std::stop_source cancel;
  Clock::time_point submitted = Clock::now();
  double waiting_seconds = 0;

  // From here on it is taken up.
  bool made = false;           ///< the engine made the session
  std::int64_t own_chunk = 0;  ///< of the session, which reads in shorter ones here
  std::optional<Reply> reply;
  std::span<const std::int32_t> rest;  ///< what the session reads of the prompt
  std::size_t done = 0;                ///< tokens of it that are read
  bool reading = false;
  bool paused = false;     ///< set aside until another request ends
  bool ending = false;     ///< `token` is its last
  bool over = false;       ///< its last callback was called
  std::int32_t token = 0;  ///< the next the session takes

  // Of the present step.
  std::size_t count = 0;  ///< tokens in it
  bool picks = false;     ///< `greedy` receives the next token
  std::int32_t greedy = 0;
  std::optional<std::int32_t> chosen;  ///< the next token, where it was sampled beside others

  Session& session() { return *request.session; }
  /// What it reads next.
  std::span<const std::int32_t> chunk();
  /// Whether reading stands at a cut after so many more tokens.
  bool is_cut(std::size_t more);
  bool is_active() const { return !over && !paused; }
  bool cancel_requested() const {
    return cancel.stop_requested() || request.generate.stop.stop_requested();
  }
};

struct Engine::State {
  State(std::shared_ptr<const Model> model, Context& context, const EngineOptions& options);

  const std::shared_ptr<const Model> model;
  Context& context;
  const EngineOptions options;
  const EngineMemory memory;
  std::optional<Tokenizer> tokenizer;  ///< in place of the model's

  // Shared by all threads.
  mutable std::mutex mutex;
  std::condition_variable_any arrival;
  std::list<EngineItem> arrived;
  std::map<RequestId, std::stop_source> live;  ///< requests that are not over
  RequestId last_id = 0;
  EngineCounts counts;

  // Of the thread that steps. Items never move in memory: lists are spliced.
  std::atomic_flag stepping;
  std::list<EngineItem> waiting;   ///< by id
  std::list<EngineItem> admitted;  ///< by id
  bool blocked = false;            ///< memory ran out: nothing is taken up until a request ends
  bool alone_last = false;         ///< the last step was a prompt of its own
  std::int64_t prefilled = 0, decoded = 0;  ///< in this step
  std::vector<EngineItem*> items;           ///< scratch
  std::vector<EngineItem*> choosing;        ///< scratch
  std::vector<Step> steps;                  ///< scratch

  /// Settings and chunk that a request's session has here.
  SessionOptions session_options(const Request& request) const;
  void check(const Request& request, RequestNeed& need) const;
  RequestId submit(Request&& request, RequestCallbacks callbacks);
  bool step(const std::stop_token& stop);

 private:
  void cancel_requested();
  void take_up();
  bool has_room(const EngineItem& item) const;
  void begin(EngineItem& item);
  void unblock();
  void forward(const std::stop_token& stop);
  EngineItem* alone_next();
  void read_alone(EngineItem& item, const std::stop_token& stop);
  void gather(std::vector<EngineItem*>& to);
  Step step_of(EngineItem& item);
  void run(std::span<EngineItem*> part, const std::stop_token& stop);
  void choose_together(std::span<EngineItem* const> part) noexcept;
  void advance(EngineItem& item);
  void report(EngineItem& item);
  void reply_begin(EngineItem& item);
  void next_token(EngineItem& item, bool picked);
  void set_aside(EngineItem& item);
  RequestResult result_of(EngineItem& item, Generated generated);
  void leave(EngineItem& item, bool failed);
  void finish(EngineItem& item, bool cancelled) noexcept;
  void end_with(EngineItem& item, const std::exception_ptr& thrown) noexcept;
  void counts_publish();
  bool work_left() const;
};

}  // namespace lca
