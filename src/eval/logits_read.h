#pragma once
/// Reads token sequences and hands out the logits of all their positions.

#include <lca/session.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

namespace lca::eval {

struct ReadOptions {
  SessionOptions session;
  std::stop_token stop;
  std::function<void(std::int64_t tokens)> progress;  ///< read so far
};

/// The callbacks of a sequence, called on the calling thread.
struct ReadCallbacks {
  /// Its tokens. Made in order, only as many as are read together.
  std::function<std::vector<std::int32_t>(std::size_t)> make;
  /// Logits of `count` positions from `first` on: [count, vocabulary].
  std::function<void(std::size_t, std::int64_t first, std::int64_t count, const float* logits)>
      rows;
  /// All of its rows were handed out; `session` has read it.
  std::function<void(std::size_t, const Session& session)> done;
};

/// Reads the sequences `which`, short ones several at a time. Throws Error (cancelled) where `stop`
/// is requested: those that were complete by then were handed out.
void logits_read(const std::shared_ptr<const Model>& model, Context& context,
                 std::span<const std::size_t> which, const ReadCallbacks& callbacks,
                 const ReadOptions& options);

}  // namespace lca::eval
