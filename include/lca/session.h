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
  /// Logits after the last token: [vocabulary]. Empty before the first.
  std::span<const float> logits() const;

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
