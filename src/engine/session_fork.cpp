// Going back in a session: marks, cutting, forking, and keeping what a new prompt shares with it.

#include <lca/session.h>

#include <algorithm>
#include <utility>

#include "core/context_state.h"
#include "core/error.h"
#include "engine/session_state.h"
#include "models/model_state.h"

namespace lca {

bool Session::State::rotates_as_short(std::int64_t length) const {
  const Rope& rope = model->state().rope;
  if (entry_positions || !rope.depends_on_length()) return true;
  return rope.frequencies(length) == rope.frequencies(1) &&
         rope.multiplier(length) == rope.multiplier(1);
}

const SessionMark* Session::State::mark_at(std::int64_t position) const {
  const auto found = std::ranges::find(marks, position, &SessionMark::position);
  return found == marks.end() ? nullptr : &*found;
}

const SessionMark* Session::State::mark_before(std::int64_t position) const {
  const SessionMark* best = nullptr;
  for (const SessionMark& mark : marks) {
    const bool better = best == nullptr || mark.position() > best->position();
    if (mark.position() <= position && better) best = &mark;
  }
  return best;
}

bool Session::State::can_rewind_to(std::int64_t position) const {
  return mark_at(position) != nullptr && rotates_as_short(length());
}

void Session::State::drop_marks_after(std::int64_t position) {
  std::erase_if(marks, [&](const SessionMark& mark) { return mark.position() > position; });
}

void Session::State::cut(std::int64_t length) {
  if (length == this->length()) return;
  std::vector<float> known;
  std::int64_t end = std::min(prompt_end, length);
  if (const SessionMark* mark = mark_at(length)) {
    known = mark->logits;
    end = mark->prompt_end;
    caches->rewind(*mark->caches);
  } else {
    caches->truncate(length);
  }
  tokens.resize(static_cast<std::size_t>(length));
  if (length == 0) rope_inherited = false;
  prompt_end = end;
  logits = std::move(known);
  drop_marks_after(length);
}

const std::vector<std::int32_t>& Session::pending() const { return state_->pending; }
void Session::set_pending(std::vector<std::int32_t> tokens) { state_->pending = std::move(tokens); }

void Session::mark() {
  guarded([&] {
    State& state = *state_;
    if (state.layer_by_layer) {
      fail_input(
          "a session in summary mode `prompt` cannot be marked: later prompts decide how earlier "
          "groups are condensed; use `streaming`");
    }
    if (state.most_marks == 0 || state.mark_at(length()) != nullptr) return;
    SessionMark mark;
    mark.caches = state.caches->mark();
    mark.logits = state.logits;
    mark.prompt_end = state.prompt_end;
    state.marks.reserve(state.most_marks + 1);
    if (state.marks.size() >= state.most_marks) state.marks.erase(state.marks.begin());
    state.marks.push_back(std::move(mark));
  });
}

std::vector<std::int64_t> Session::marks() const {
  std::vector<std::int64_t> positions;
  for (const SessionMark& mark : state_->marks) positions.push_back(mark.position());
  std::ranges::sort(positions);
  return positions;
}

std::int64_t Session::truncate_floor() const {
  return state_->rotates_as_short(length()) ? state_->caches->truncate_floor() : length();
}

void Session::truncate(std::int64_t length) {
  guarded([&] {
    State& state = *state_;
    if (length < 0 || length > this->length()) {
      fail_input("cannot cut a session of {} tokens to {}", this->length(), length);
    }
    const std::int64_t floor = truncate_floor();
    if (length < floor && !state.can_rewind_to(length)) {
      if (state.layer_by_layer) {
        fail_input(
            "cannot cut a session of {} tokens to {}: in summary mode `prompt` earlier groups were "
            "scored by later queries; use `streaming`, or read the text again",
            this->length(), length);
      }
      fail_input(
          "cannot cut a session of {} tokens to {}: what its window would hold is condensed or "
          "dropped; the shortest it can be cut to is {}, or a marked position",
          this->length(), length, floor);
    }
    state.cut(length);
    state.pending.clear();
  });
}

Session Session::fork(std::int64_t length, const std::function<bool(PrefillProgress)>& progress,
                      const std::stop_token& stop) const {
  return guarded([&] {
    const State& from = *state_;
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
    Session other(from.model, *from.context, {from.settings, from.chunk, from.most_marks});
    State& to = *other.state_;
    if (length > 0) {
      to.rope_positions = from.rope_positions;
      to.rope_inherited = true;
      if (from.model->state().rope.depends_on_length()) to.caches = to.empty_caches();
    }
    const auto begin = from.tokens.begin();
    // Takes over the first `kept` tokens, for which caches and logits are at hand.
    const auto stand_at = [&](std::int64_t kept, std::unique_ptr<SequenceCaches> caches,
                              const std::vector<float>& logits) {
      to.caches = std::move(caches);
      to.tokens.assign(begin, begin + kept);
      to.logits = logits;
    };
    if (length == this->length()) {
      stand_at(length, from.caches->fork(), from.logits);
      to.pending = from.pending;
    } else if (const SessionMark* mark = from.mark_at(length);
               from.can_rewind_to(length) && !mark->logits.empty()) {
      stand_at(length, from.caches->fork_at(*mark->caches), mark->logits);
    } else if (length > 0) {
      // The last token is read again where its logits are not known.
      const std::int64_t keep = length - 1;
      const SessionMark* before = from.mark_before(keep);
      if (keep >= truncate_floor()) {
        stand_at(keep, from.caches->fork(), {});
        to.caches->truncate(keep);
      } else if (before != nullptr && from.rotates_as_short(this->length())) {
        stand_at(before->position(), from.caches->fork_at(*before->caches), {});
      }
      const std::span<const std::int32_t> rest(begin + other.length(), begin + length);
      if (rest.size() == 1) {
        other.decode(rest.front(), stop);
      } else {
        other.prefill(rest, progress, {}, stop);
      }
    }
    to.prompt_end = std::min(from.prompt_end, length);
    for (const SessionMark& mark : from.marks) {
      if (mark.position() <= length) to.marks.push_back(mark);
    }
    return other;
  });
}

std::int64_t Session::keep_prefix(std::span<const std::int32_t> prompt) {
  return guarded([&]() -> std::int64_t {
    State& state = *state_;
    state.check(prompt);
    const auto size = static_cast<std::int64_t>(prompt.size());
    const auto common = std::ranges::mismatch(state.tokens, prompt).in1 - state.tokens.begin();
    if (!state.layer_by_layer && common > 0 && state.rotates_as_prompt(size)) {
      // The last token is read again where its logits are not known.
      const auto keeps = [&](std::int64_t position, const std::vector<float>& logits) {
        return position < size || (position == size && !logits.empty());
      };
      std::int64_t best = 0;
      if (common == length() && keeps(common, state.logits)) {
        best = common;
      } else if (const std::int64_t cut = std::min<std::int64_t>(common, size - 1);
                 cut >= truncate_floor()) {
        best = cut;
      }
      for (const SessionMark& mark : state.marks) {
        const std::int64_t position = mark.position();
        if (position <= common && position > best && keeps(position, mark.logits)) best = position;
      }
      if (best > 0) {
        state.cut(best);
        state.pending.clear();
        state.prompt_end = best;
        return best;
      }
    }
    state.rope_positions = 0;
    state.rope_inherited = false;
    state.caches = state.empty_caches();
    state.tokens.clear();
    state.pending.clear();
    state.logits.clear();
    state.marks.clear();
    state.prompt_end = 0;
    return 0;
  });
}

}  // namespace lca
