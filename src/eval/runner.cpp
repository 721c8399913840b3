#include "eval/runner.h"

#include <deque>
#include <optional>
#include <utility>

#include "core/error.h"

namespace lca::eval {
namespace {

/// One run: what the engine's callbacks leave, taken up between steps.
class RunnerQueue {
 public:
  RunnerQueue(std::shared_ptr<const Model> model, Context& context, const RunnerOptions& options)
      : model_(std::move(model)),
        options_(options),
        engine_(model_, context, {.most_sessions = options.most_sessions}) {}

  /// Whether another prompt should be handed to the engine: so many that no step lacks tokens, and
  /// not so many that all prompts lie in memory.
  bool has_place() const {
    return submitted_ - engine_.counts().prefilled_tokens < 2 * engine_.options().step_tokens;
  }

  void submit(std::size_t index, EvalPrompt prompt) {
    submitted_ += std::ssize(prompt.ids);
    Request request;
    request.prompt = std::move(prompt.ids);
    request.options = options_.session;
    request.options.marks = 0;
    request.generate.max_tokens = prompt.max_tokens;
    request.generate.end_tokens = model_->end_tokens();
    engine_.submit(
        std::move(request),
        {.piece = {},
         .finished = [this, index](RequestResult result) { finished(index, std::move(result)); },
         .failed = [this](const Error& error,
                          const RequestResult&) { error_ = error_ ? error_ : error; }});
  }

  bool step() { return engine_.step(options_.stop); }

  std::optional<std::pair<std::size_t, EvalReply>> next() {
    if (replies_.empty()) return std::nullopt;
    auto first = std::move(replies_.front());
    replies_.pop_front();
    return first;
  }

  void require_success() const {
    if (error_) throw Error(*error_);
  }

  RunnerProgress progress(std::size_t done, std::size_t total) const {
    const EngineCounts counts = engine_.counts();
    return {done, total, counts.prefilled_tokens, counts.decoded_tokens};
  }

 private:
  void finished(std::size_t index, RequestResult result) {
    Generated& made = result.generated;
    EvalReply reply{std::move(made.text), std::move(made.tokens), made.prompt_tokens,
                    made.reason == StopReason::end_token};
    replies_.emplace_back(index, std::move(reply));
  }

  std::shared_ptr<const Model> model_;
  const RunnerOptions& options_;
  std::deque<std::pair<std::size_t, EvalReply>> replies_;
  std::optional<Error> error_;
  std::int64_t submitted_ = 0;  // tokens of prompts
  Engine engine_;
};

}  // namespace

void replies_run(std::shared_ptr<const Model> model, Context& context,
                 std::span<const std::size_t> which, const PromptMaker& make,
                 const ReplyTaker& done, const RunnerOptions& options) {
  if (which.empty()) return;
  RunnerQueue queue(std::move(model), context, options);
  std::size_t made = 0, handed_out = 0;
  while (handed_out < which.size()) {
    while (made < which.size() && queue.has_place()) {
      queue.submit(which[made], make(which[made]));
      ++made;
    }
    queue.step();
    while (auto reply = queue.next()) {
      ++handed_out;
      done(reply->first, std::move(reply->second));
    }
    queue.require_success();
    if (options.progress) options.progress(queue.progress(handed_out, which.size()));
    if (handed_out < which.size() && options.stop.stop_requested()) {
      throw Error(ErrorKind::cancelled, "stopped before all replies were complete");
    }
  }
}

}  // namespace lca::eval
