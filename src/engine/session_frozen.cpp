#include "engine/session_frozen.h"

#include <utility>

namespace lca {

FrozenSession::FrozenSession(const Session& session, std::vector<SessionMark> marks,
                             std::span<const FrozenSession* const> alike,
                             const std::shared_ptr<FrozenBytes>& count)
    : dense_bytes_(session.dense_bytes()) {
  const Session::State& from = session.state();
  std::vector<const FrozenCaches*> others;
  for (const FrozenSession* other : alike) others.push_back(other->caches_.get());
  caches_ = from.caches->freeze(others, count);
  state_.model = from.model;
  state_.context = from.context;
  state_.chunk = from.chunk;
  state_.most_marks = from.most_marks;
  state_.settings = from.settings;
  state_.layer_by_layer = from.layer_by_layer;
  state_.entry_positions = from.entry_positions;
  state_.rope_positions = from.rope_positions;
  state_.rope_inherited = true;
  state_.tokens = from.tokens;
  state_.pending = from.pending;
  state_.prompt_end = from.prompt_end;
  state_.logits = from.logits;
  state_.marks = std::move(marks);
}

Session FrozenSession::thaw() const {
  Session session(state_.model, *state_.context,
                  {state_.settings, state_.chunk, state_.most_marks});
  Session::State& to = session.state();
  to.rope_positions = state_.rope_positions;
  to.rope_inherited = state_.rope_inherited;
  to.caches = caches_->thaw();
  to.tokens = state_.tokens;
  to.pending = state_.pending;
  to.prompt_end = state_.prompt_end;
  to.logits = state_.logits;
  to.marks = state_.marks;
  return session;
}

std::size_t FrozenSession::bytes() const {
  return caches_->bytes() +
         (state_.tokens.capacity() + state_.pending.capacity()) * sizeof(std::int32_t) +
         state_.logits.capacity() * sizeof(float);
}

std::size_t FrozenSession::mark_bytes() const {
  std::size_t total = 0;
  for (const SessionMark& mark : state_.marks) {
    total += mark.caches->bytes() + mark.logits.capacity() * sizeof(float);
  }
  return total;
}

}  // namespace lca
