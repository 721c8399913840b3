// Going back in a session: cutting it, forking it, and keeping what a new prompt shares with it.

#include <lca/session.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "engine/session_state.h"
#include "models/model_state.h"

namespace lca {
namespace {

std::vector<Cache> clones_of(const std::vector<Cache>& caches) {
  std::vector<Cache> copies;
  copies.reserve(caches.size());
  for (const Cache& cache : caches) copies.push_back(cache.clone());
  return copies;
}

/// Whether positions of a session of this length turn as those of a short one do. Keys beyond that
/// depend on how long the prompt was they came with, and a shorter session would hold others.
bool turns_as_short(const Session::State& state, std::int64_t length) {
  const Rope& rope = state.model->state().rope;
  if (!rope.depends_on_length()) return true;
  return rope.frequencies(length) == rope.frequencies(1) &&
         rope.multiplier(length) == rope.multiplier(1);
}

void require_whole(const Session::State& state) {
  if (state.broken) fail_internal("this session stopped in the middle of a step and cannot go on");
}

}  // namespace

const std::vector<std::int32_t>& Session::pending() const { return state_->pending; }
void Session::set_pending(std::vector<std::int32_t> tokens) { state_->pending = std::move(tokens); }

std::int64_t Session::truncate_floor() const {
  if (!turns_as_short(*state_, length())) return length();
  std::int64_t floor = 0;
  for (const Cache& cache : state_->caches) floor = std::max(floor, cache.truncate_floor());
  return floor;
}

void Session::truncate(std::int64_t length) {
  State& state = *state_;
  require_whole(state);
  const std::int64_t floor = truncate_floor();
  if (length < 0 || length > this->length()) {
    fail_input("cannot cut a session of {} tokens to {}", this->length(), length);
  }
  if (length < floor) {
    if (state.layer_by_layer) {
      fail_input(
          "cannot cut a session of {} tokens to {}: in summary mode `prompt` earlier groups were "
          "scored by later queries; use `streaming`, or read the text again",
          this->length(), length);
    }
    fail_input(
        "cannot cut a session of {} tokens to {}: what its window would hold is condensed or "
        "dropped; the shortest it can be cut to is {}",
        this->length(), length, floor);
  }
  state.pending.clear();
  if (length == this->length()) return;
  for (Cache& cache : state.caches) cache.truncate(length);
  state.tokens.resize(static_cast<std::size_t>(length));
  state.prompt_end = std::min(state.prompt_end, length);
  state.logits.clear();
}

Session Session::fork(std::int64_t length,
                      const std::function<bool(PrefillProgress)>& progress) const {
  const State& from = *state_;
  require_whole(from);
  if (length < 0 || length > this->length()) {
    fail_input("cannot fork a session of {} tokens at {}", this->length(), length);
  }
  if (from.layer_by_layer && length != this->length()) {
    fail_input(
        "cannot fork a session of {} tokens at {}: in summary mode `prompt` earlier groups were "
        "scored by later queries, so that a shorter session would differ; fork it at {}, or use "
        "`streaming`",
        this->length(), length, this->length());
  }
  Session other(from.model, *from.context, {from.settings, from.chunk});
  State& to = *other.state_;
  const std::span<const std::int32_t> kept =
      std::span(from.tokens).first(static_cast<std::size_t>(length));
  if (length == this->length()) {
    to.caches = clones_of(from.caches);
    to.tokens = from.tokens;
    to.pending = from.pending;
    to.prompt_end = from.prompt_end;
    to.logits = from.logits;
  } else if (length > 0 && length - 1 >= truncate_floor()) {
    // One less, and the last token once more: its logits are needed.
    to.caches = clones_of(from.caches);
    for (Cache& cache : to.caches) cache.truncate(length - 1);
    to.tokens.assign(kept.begin(), kept.end() - 1);
    other.decode(kept.back());
  } else if (length > 0) {
    other.prefill(kept, progress);
  }
  to.prompt_end = std::min(from.prompt_end, length);
  return other;
}

std::int64_t Session::keep_prefix(std::span<const std::int32_t> prompt) {
  State& state = *state_;
  if (prompt.empty()) fail_input("a prompt needs at least one token");
  const auto size = static_cast<std::int64_t>(prompt.size());
  const auto common = std::ranges::mismatch(state.tokens, prompt).in1 - state.tokens.begin();
  // The last token is read again where nobody knows its logits.
  const bool all = common == size && size == length() && !state.logits.empty();
  const std::int64_t keep = all ? size : std::min<std::int64_t>(common, size - 1);
  if (!state.broken && !state.layer_by_layer && keep > 0 && keep >= truncate_floor() &&
      turns_as_short(state, std::max(size, length()))) {
    truncate(keep);
    state.prompt_end = keep;
    return keep;
  }
  state.caches = state.empty_caches();
  state.tokens.clear();
  state.pending.clear();
  state.logits.clear();
  state.prompt_end = 0;
  state.broken = false;
  return 0;
}

}  // namespace lca
