#pragma once
/// Continuous batching: many replies at once, on one model and one context.

#include <lca/context.h>
#include <lca/error.h>
#include <lca/generate.h>
#include <lca/model.h>
#include <lca/session.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <vector>

namespace lca {

using RequestId = std::uint64_t;

/// One reply to be made.
struct Request {
  /// What is read first. With a session it follows the session's tokens, and may be empty where
  /// those end a prompt; with `keep_prefix` it is the whole text instead.
  std::vector<std::int32_t> prompt;
  /// A session of the same model to continue; none: a new one with `options`.
  std::optional<Session> session;
  /// The session keeps what it has in common with `prompt` (`Session::keep_prefix`) and reads the
  /// rest.
  bool keep_prefix = false;
  /// The session is handed back at the end, at the last token of the reply.
  bool keep_session = false;
  /// Lengths of the session at which a chunk of the prompt ends, ascending: there
  /// `RequestCallbacks::cut` is called. Those that the session has passed are skipped; in `prompt`
  /// mode there are none.
  std::vector<std::int64_t> cuts;
  SessionOptions options;    ///< of a new session
  GenerateOptions generate;  ///< `stop` and cancelling are noticed between steps
};

/// What a request leaves.
struct RequestResult {
  Generated generated;             ///< times count from the end of waiting
  double waiting_seconds = 0;      ///< from `submit` until it was taken up
  std::optional<Session> session;  ///< where asked for; runs on the engine's context
};

/// Called by the thread that steps; may call anything of the engine but `step` and `run`.
/// `finished` or `failed` is the last call for a request. What a callback or hook throws ends its
/// request with `failed`, and no other; what `failed` itself throws is ignored.
struct RequestCallbacks {
  std::function<bool(const GeneratePiece&)> piece;  ///< after every token; false cancels
  /// Reading stands at one of `Request::cuts`; may mark or fork the session. Its logits are known
  /// at the end of the prompt only. Called again where the prompt is read anew for want of memory.
  std::function<void(Session&)> cut = {};
  std::function<void(RequestResult)> finished;
  /// The result is what there was until then; a session in it stands before the step that failed.
  std::function<void(const Error&, RequestResult)> failed;
};

/// How an engine shares a step among requests. Zeros stand for numbers tuned to the device.
struct EngineOptions {
  std::int64_t most_sessions = 0;  ///< that run together; more requests wait
  /// Most tokens of a step, prompts and generated ones together; at least `most_sessions` and one.
  std::int64_t step_tokens = 0;
  /// Memory for sessions, activations and scratch, the weights not counted; 0: what is free now.
  std::size_t memory_bytes = 0;
};

/// What an engine does and did.
struct EngineCounts {
  std::int64_t waiting = 0;   ///< requests that are not taken up
  std::int64_t reading = 0;   ///< requests whose prompt is being read
  std::int64_t decoding = 0;  ///< requests that generate
  std::int64_t finished = 0;  ///< requests so far, cancelled ones included
  std::int64_t failed = 0;
  std::int64_t steps = 0;
  std::int64_t prefilled_tokens = 0;
  std::int64_t decoded_tokens = 0;
  std::int64_t step_prefilled = 0;  ///< tokens of prompts in the last step
  std::int64_t step_decoded = 0;    ///< generated tokens in the last step
  std::size_t memory_used = 0;      ///< by sessions, activations and scratch after the last step
  std::size_t memory_reserved = 0;  ///< the most that the requests taken up can come to need
  std::size_t memory_limit = 0;     ///< what can be reserved
};

/// Requests join and leave between steps. In every step each running request decodes a token, and
/// prompts fill the step, first come first served, in the chunks in which a session would read them
/// alone (at most `step_tokens` − `most_sessions` tokens): on the CPU a reply is bit for bit that
/// of `generate`. A prompt in summary mode `prompt` is a step of its own, between two others.
///
/// A request is taken up when a session is free and its worst case (prompt and `max_tokens`) fits
/// into memory beside the worst cases of those that run, so that none of these can run short. If
/// memory runs out in a step all the same, the step is repeated without its newest request, a
/// prompt first: that one waits until another request ends. Only a request that is alone fails.
///
/// Thread-safety: `submit`, `cancel` and `counts` from any thread; `step` and `run` from one thread
/// at a time, else Error (busy). The context must outlive the engine.
class Engine {
 public:
  Engine(std::shared_ptr<const Model> model, Context& context, const EngineOptions& options = {});
  /// Ends what is left without calling back.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Queues a request. Throws Error (bad input) where it is wrong, Error (out of memory) where it
  /// could not run even alone; `request` is then untouched.
  RequestId submit(Request&& request, RequestCallbacks callbacks);
  /// Ends a request before the next step, with reason `cancelled`. False where it is over.
  bool cancel(RequestId id);
  /// Runs one step. True while requests are left. `stop` interrupts the step between layers: it is
  /// undone, and the next call repeats it.
  bool step(const std::stop_token& stop = {});
  /// Steps until `stop` is requested, and waits where there is nothing to do.
  void run(const std::stop_token& stop);

  EngineCounts counts() const;
  /// As they are in force, zeros replaced.
  const EngineOptions& options() const;

  struct State;
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

}  // namespace lca
