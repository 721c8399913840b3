#pragma once
/// Greedy replies to many prompts at once, through the engine.

#include <lca/engine.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

namespace lca::eval {

/// What the model reads and how long its reply may be.
struct EvalPrompt {
  std::vector<std::int32_t> ids;
  std::int64_t max_tokens = 0;
};

/// What the model replies: up to `max_tokens`, or to a token that ends a reply.
struct EvalReply {
  std::string text;
  std::vector<std::int32_t> tokens;
  std::int64_t prompt_tokens = 0;
  bool ended = false;  ///< by an end token, which is not among `tokens`
};

/// How far a run is.
struct RunnerProgress {
  std::size_t done = 0;   ///< replies
  std::size_t total = 0;  ///< of `which`
  /// Tokens of prompts that were read and tokens that were generated.
  std::int64_t read_tokens = 0;
  std::int64_t generated_tokens = 0;
};

struct RunnerOptions {
  SessionOptions session;
  /// That run together; 0: as many as the engine takes.
  std::int64_t most_sessions = 0;
  std::stop_token stop;
  std::function<void(const RunnerProgress&)> progress;  ///< after every step
};

using PromptMaker = std::function<EvalPrompt(std::size_t)>;
using ReplyTaker = std::function<void(std::size_t, EvalReply)>;

/// Replies to the prompts `make(i)` for all i of `which`. Prompts are made in that order, only a
/// few before they are read; `done(i, reply)` is called in the order in which replies are complete.
/// Both run on the calling thread, and what they throw ends the run, as does the first prompt that
/// fails. Throws Error (cancelled) where `stop` is requested: replies that were complete by then
/// were handed out.
void replies_run(std::shared_ptr<const Model> model, Context& context,
                 std::span<const std::size_t> which, const PromptMaker& make,
                 const ReplyTaker& done, const RunnerOptions& options);

}  // namespace lca::eval
