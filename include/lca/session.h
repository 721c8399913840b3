#pragma once
/// One conversation with a model: the tokens so far and a cache per layer.

#include <lca/context.h>
#include <lca/memory.h>
#include <lca/model.h>
#include <lca/settings.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

namespace lca {

/// How a session attends.
struct SessionOptions {
  /// One entry per layer, or one for all; empty: the model's own (`Model::settings`).
  std::vector<Settings> settings;
  /// Tokens that pass the model together while a prompt is read; 0: a tuned number.
  std::int64_t chunk = 0;
  /// Most marks it keeps; the oldest is dropped for a new one.
  std::size_t marks = 8;
};

/// How far a prompt is: `done` of `total` tokens. In `prompt` mode work goes layer by layer, and
/// `done` is the share of the work, in tokens.
struct PrefillProgress {
  std::int64_t done = 0;
  std::int64_t total = 0;
};

/// Where the tokens of a session are, in its layer with most groups: `sink` and `window` exact,
/// `groups` of `group` tokens condensed. Method `window` forgets the others.
struct SessionLayout {
  std::int64_t tokens = 0;
  std::int64_t sink = 0;
  std::int64_t groups = 0;
  std::int64_t group = 0;
  std::int64_t window = 0;
};

/// Receives logits of `count` consecutive positions from `first` on: [count, vocabulary].
using LogitsSink = std::function<void(std::int64_t first, std::int64_t count, const float* logits)>;

/// A step is one chunk of a prompt, one decoded token, one `sessions_forward`, or in `prompt` mode
/// a whole prompt. Whatever is thrown inside one (memory, cancellation, I/O, a callback's
/// exception) leaves the session as it was before that step, ready to go on.
///
/// Thread-safety: one thread at a time. Sessions of one context take turns; the context must
/// outlive them. Forks may be used in different threads with contexts of their own (`set_context`).
class Session {
 public:
  Session(std::shared_ptr<const Model> model, Context& context, const SessionOptions& options = {});
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  const Model& model() const;
  std::shared_ptr<const Model> shared_model() const;
  /// Runs on another context from now on, to be used in another thread, say.
  void set_context(Context& context);
  /// Settings of each layer.
  const std::vector<Settings>& settings() const;
  /// Tokens taken so far.
  const std::vector<std::int32_t>& tokens() const;
  std::int64_t length() const;
  /// Tokens up to the end of the last prompt; what follows was decoded.
  std::int64_t prompt_end() const;

  /// Reads a prompt (or the next turn of a conversation) of at least one token. `progress` is
  /// called between chunks; where it returns false, and where `stop` is requested (noticed between
  /// layers), Error (cancelled) is thrown and the session stands at the last whole chunk (`prompt`
  /// mode: where it stood before). `logits` receives those of every position; without it only the
  /// last position's are computed.
  void prefill(std::span<const std::int32_t> tokens,
               const std::function<bool(PrefillProgress)>& progress = {},
               const LogitsSink& logits = {}, const std::stop_token& stop = {});
  /// Takes one generated token.
  void decode(std::int32_t token, const std::stop_token& stop = {});
  /// Logits after the last token: [vocabulary]. Empty before the first, and where they are not
  /// known: after a cut, and after a prompt that was stopped half way.
  std::span<const float> logits() const;

  /// Tokens that belong to the conversation and are still to be read (what a stopped prompt left,
  /// say). The session only keeps them, and saves them with the rest; the caller hands them to
  /// `prefill` and sets new ones.
  const std::vector<std::int32_t>& pending() const;
  void set_pending(std::vector<std::int32_t> tokens);

  /// Marks the present position, so that the session can return to it later at no cost but a copy
  /// of its window: representatives never change once written and are shared. Throws Error in
  /// `prompt` mode, where later prompts change what earlier ones would have condensed.
  void mark();
  /// Marked positions, ascending.
  std::vector<std::int64_t> marks() const;

  /// The shortest length `truncate` accepts now: all of it in `prompt` mode, else where the window
  /// of the shorter session would hold what is condensed or dropped by now.
  std::int64_t truncate_floor() const;
  /// Drops everything after the first `length` tokens, `pending` and later marks too: to a marked
  /// position, or where the caches allow. Throws Error elsewhere. Logits are unknown after a cut
  /// unless the position is marked.
  void truncate(std::int64_t length);
  /// Another session that stands at the first `length` tokens of this one, logits known: from a
  /// mark or cut back where the caches allow, else read again from the nearest mark or from the
  /// start, with `progress` as in `prefill`. It shares the representatives it has in common. In
  /// `prompt` mode only the present length is possible; others throw Error.
  Session fork(std::int64_t length, const std::function<bool(PrefillProgress)>& progress = {},
               const std::stop_token& stop = {}) const;
  /// Keeps the longest beginning of `prompt` that the session can stand at (cut back, or at a
  /// mark), drops the rest, and returns how many tokens need not be read: reading the others
  /// next leads where reading `prompt` from the start would. All of them only where the logits
  /// are known too; 0: the session starts over. In `prompt` mode a longer prompt changes what was
  /// condensed: always 0.
  std::int64_t keep_prefix(std::span<const std::int32_t> prompt);

  /// Writes all of it to a file, which appears complete or not at all: what was there stays until
  /// then (docs/sessions.md). Throws Error naming the path.
  void save(const std::string& path) const;
  /// Takes up a saved session: with the model, precision and device it was saved with it continues
  /// exactly as the saved one would have. Another precision, device or cache type converts the
  /// caches, and `notices` says so. The settings are the file's. Throws Error in one line where
  /// `options` names others, where the model is another, and where the file is not whole.
  static Session load(std::shared_ptr<const Model> model, Context& context, const std::string& path,
                      const SessionOptions& options = {});
  /// What a user should be told about how the session was loaded; usually nothing.
  const std::vector<std::string>& notices() const;

  SessionLayout layout() const;
  /// Bytes its caches hold (mechanism §7), and what dense attention would hold.
  std::size_t cache_bytes() const;
  std::size_t dense_bytes() const;
  /// All memory it holds, activations and scratch of its context included.
  Memory memory() const;

  struct State;
  State& state() { return *state_; }
  const State& state() const { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

/// One session's part of a step: tokens of a prompt, or one generated token.
struct Step {
  Session* session = nullptr;
  std::span<const std::int32_t> tokens;
  /// Tokens of a prompt; else generated ones. In `prompt` mode a prompt must be the only step.
  bool prompt = false;
  /// Receives logits of every position; without it only the last position's are computed.
  LogitsSink logits = {};
  /// False where more of the prompt follows and this chunk's logits are not needed.
  bool wants_logits = true;
  /// Tokens of the same prompt that later steps bring; some kinds of RoPE depend on all of it.
  std::int64_t prompt_left = 0;
  /// Receives the likeliest next token (the lowest id on ties, −1 where a logit is NaN) in place
  /// of logits, which then need not leave the device; `Session::logits` is unknown afterwards.
  std::int32_t* greedy = nullptr;
};

/// One step of several sessions, which share a model and a context: any mix of prompt chunks and
/// single tokens. Each session gets bit for bit what it gets alone, and weights are read once for
/// all. What is thrown leaves all sessions as they were.
void sessions_forward(std::span<const Step> steps, const std::stop_token& stop = {});

/// Takes one generated token in each of several sessions: a case of `sessions_forward`.
void sessions_decode(std::span<Session* const> sessions, std::span<const std::int32_t> tokens,
                     const std::stop_token& stop = {});

/// The most memory a session of `length` tokens needs beside the weights: its caches, and
/// activations and scratch for prefilling a prompt of that length.
Memory session_memory(const Model& model, const SessionOptions& options, std::int64_t length,
                      int threads);

}  // namespace lca
