#pragma once
/// How much memory requests need, for an engine to decide which it takes up.

#include <lca/engine.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace lca {

/// The most a request needs beside the weights.
struct RequestNeed {
  std::size_t session = 0;  ///< by its session, as long as it runs
  std::size_t work = 0;     ///< activations and scratch, which all requests share
};

class EngineMemory {
 public:
  /// `options` without zeros, but for `memory_bytes`.
  EngineMemory(const Model& model, const EngineOptions& options, int threads);

  /// Of a session that grows to `length` tokens; its chunk is not 0.
  RequestNeed need(const SessionOptions& session, std::int64_t length) const;
  /// Throws Error (out of memory) where a request that has this need alone would not fit.
  void require(const RequestNeed& need, const SessionOptions& session, std::int64_t length) const;
  std::size_t limit() const { return limit_; }

 private:
  bool fits(const RequestNeed& need) const;

  const Model& model_;
  int threads_;
  std::size_t step_bytes_;  ///< activations and logits of the largest step
  std::size_t limit_;
};

}  // namespace lca
