#pragma once
/// One conversation with a model: the tokens so far and a cache per layer.

#include <lca/cache.h>
#include <lca/context.h>
#include <lca/model.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lca {

/// How a session attends.
struct SessionOptions {
  /// One entry per layer, or one for all; empty: the model's own (`Model::settings`).
  std::vector<Settings> settings;
  /// Tokens that pass the model together while a prompt is read; 0: a tuned number.
  std::int64_t chunk = 0;
};

/// How far a prompt is: `done` of `total` tokens. In `prompt` mode work goes layer by layer, and
/// `done` is the share of the work, in tokens.
struct PrefillProgress {
  std::int64_t done = 0;
  std::int64_t total = 0;
};

/// Receives logits of `count` consecutive positions from `first` on: [count, vocabulary].
using LogitsSink = std::function<void(std::int64_t first, std::int64_t count, const float* logits)>;

/// Not thread-safe; the context may be shared by sessions that take turns and must outlive them.
class Session {
 public:
  Session(std::shared_ptr<const Model> model, Context& context, const SessionOptions& options = {});
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  const Model& model() const;
  /// Settings of each layer.
  const std::vector<Settings>& settings() const;
  /// Tokens taken so far.
  const std::vector<std::int32_t>& tokens() const;
  std::int64_t length() const;

  /// Reads a prompt (or the next turn of a conversation) of at least one token. `progress` is
  /// called between chunks; returning false, or throwing, stops: the session is then left at the
  /// last whole chunk (`prompt` mode: as it was before), and Error (cancelled) is thrown. `logits`
  /// receives those of every position; without it only the last position's are computed.
  void prefill(std::span<const std::int32_t> tokens,
               const std::function<bool(PrefillProgress)>& progress = {},
               const LogitsSink& logits = {});
  /// Takes one generated token.
  void decode(std::int32_t token);
  /// Logits after the last token: [vocabulary]. Empty before the first, and where they are not
  /// known: after a cut, and after a prompt that was stopped half way.
  std::span<const float> logits() const;

  /// Tokens that belong to the conversation and are still to be read (what a stopped prompt left,
  /// say). The session only keeps them, and saves them with the rest; whoever goes on hands them to
  /// `prefill` and sets new ones.
  const std::vector<std::int32_t>& pending() const;
  void set_pending(std::vector<std::int32_t> tokens);

  /// The shortest length `truncate` accepts now: all of it in `prompt` mode, else where the window
  /// of the shorter session would hold what is condensed or dropped by now.
  std::int64_t truncate_floor() const;
  /// Forgets everything after the first `length` tokens, `pending` too. Throws Error where that is
  /// below the floor. Logits are unknown after a cut.
  void truncate(std::int64_t length);
  /// Another session that stands at the first `length` tokens of this one, logits known: cut back
  /// where the caches allow, else read again from the start, with `progress` as in `prefill`. In
  /// `prompt` mode only the present length is possible; others throw Error.
  Session fork(std::int64_t length,
               const std::function<bool(PrefillProgress)>& progress = {}) const;
  /// Keeps the longest beginning of `prompt` that the session can stand at, forgets the rest, and
  /// returns how many tokens need not be read: whoever reads the others next is where reading
  /// `prompt` from the start would lead. All of them only where the logits are known too; 0: the
  /// session starts over. In `prompt` mode a longer prompt changes what was condensed: always 0.
  std::int64_t keep_prefix(std::span<const std::int32_t> prompt);

  /// Writes all of it to a file, which appears complete or not at all: what was there stays until
  /// then (docs/sessions.md). Throws Error naming the path.
  void save(const std::string& path) const;
  /// Takes up a saved session: it goes on exactly as the saved one would have. The settings are the
  /// file's; where `options` names others, where the model is another, and where the file is not
  /// whole, Error says so in one line.
  static Session load(std::shared_ptr<const Model> model, Context& context, const std::string& path,
                      const SessionOptions& options = {});

  /// Bytes its caches hold (mechanism §7), and what dense attention would hold.
  std::size_t cache_bytes() const;
  std::size_t dense_bytes() const;

  struct State;
  State& state() { return *state_; }
  const State& state() const { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

/// Takes one generated token in each of several sessions, which share a model and a context: the
/// weights are read once for all. Each session gets the very values it would get alone.
void sessions_decode(std::span<Session* const> sessions, std::span<const std::int32_t> tokens);

/// The most memory a session of `length` tokens needs beside the weights, in bytes: its caches, and
/// scratch for prefilling a prompt of that length.
struct SessionMemory {
  std::size_t cache = 0;
  std::size_t scratch = 0;
};
SessionMemory session_memory(const Model& model, const SessionOptions& options, std::int64_t length,
                             int threads);

}  // namespace lca
