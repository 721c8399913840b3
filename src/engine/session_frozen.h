#pragma once
/// A session that is kept and not in use: what `Session::fork` would copy, in the memory of
/// attention/frozen_cache.h.

#include <lca/session.h>

#include <memory>
#include <span>
#include <vector>

#include "attention/frozen_cache.h"
#include "engine/session_state.h"

namespace lca {

/// One thread at a time works on frozen sessions that share memory.
class FrozenSession {
 public:
  /// A copy of `session`, with those of its marks that are given. `alike`: sessions of the same
  /// model and settings that begin alike, the most similar first.
  FrozenSession(const Session& session, std::vector<SessionMark> marks,
                std::span<const FrozenSession* const> alike,
                const std::shared_ptr<FrozenBytes>& count);

  /// The session again. It goes on to the bit as the frozen one would have.
  Session thaw() const;

  const std::vector<std::int32_t>& tokens() const { return state_.tokens; }
  std::int64_t length() const { return state_.length(); }
  std::span<const float> logits() const { return state_.logits; }
  const std::vector<SessionMark>& marks() const { return state_.marks; }
  bool rotates_as_prompt(std::int64_t count) const { return state_.rotates_as_prompt(count); }
  std::size_t dense_bytes() const { return dense_bytes_; }

  /// Bytes that it alone holds, without blocks (FrozenBytes) and marks.
  std::size_t bytes() const;
  /// Of representatives, which others may hold too.
  std::size_t shared_bytes() const { return caches_->shared_bytes(); }
  std::size_t mark_bytes() const;

 private:
  Session::State state_;  // without caches
  std::unique_ptr<FrozenCaches> caches_;
  std::size_t dense_bytes_;
};

}  // namespace lca
