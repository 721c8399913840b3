// One step of the engine: who takes part, the step itself, and what happens where it fails.

#include <algorithm>
#include <utility>

#include "core/context_state.h"
#include "core/error.h"
#include "engine/engine_state.h"
#include "engine/session_state.h"
#include "models/model_state.h"

namespace lca {

bool Engine::State::step(const std::stop_token& stop) {
  prefilled = decoded = 0;
  {
    const std::lock_guard lock(mutex);
    waiting.splice(waiting.end(), arrived);
  }
  cancel_requested();
  // Where nothing runs no request can end: what was set aside gets another chance.
  if (std::ranges::none_of(admitted, &EngineItem::is_active)) unblock();
  take_up();
  forward(stop);
  admitted.remove_if([](const EngineItem& item) { return item.over; });
  counts_publish();
  return work_left();
}

bool Engine::State::work_left() const {
  if (!waiting.empty() || !admitted.empty()) return true;
  const std::lock_guard lock(mutex);
  return !arrived.empty();
}

void Engine::State::counts_publish() {
  std::int64_t reading = 0;
  std::size_t held = 0;
  std::size_t work = 0;
  const ContextMemory shared = context.memory();
  std::size_t used = shared.activations + shared.scratch;
  for (EngineItem& item : admitted) {
    if (item.reading) ++reading;
    held += item.need.session;
    work = std::max(work, item.need.work);
    const Memory all = item.session().memory();
    used += all.total() - all.activations - all.scratch;
  }
  const std::lock_guard lock(mutex);
  counts.waiting = std::ssize(waiting) + std::ssize(arrived);
  counts.reading = reading;
  counts.decoding = std::ssize(admitted) - reading;
  counts.memory_used = used;
  counts.memory_reserved = held + work;
  counts.step_prefilled = prefilled;
  counts.step_decoded = decoded;
  counts.prefilled_tokens += prefilled;
  counts.decoded_tokens += decoded;
}

// --- taking up ----------------------------------------------------------------------------------

bool Engine::State::has_room(const EngineItem& item) const {
  std::int64_t running = 0;
  std::size_t held = item.need.session;
  std::size_t work = item.need.work;
  for (const EngineItem& other : admitted) {
    if (other.over) continue;
    ++running;
    held += other.need.session;
    work = std::max(work, other.need.work);
  }
  // A request fits alone: that was checked when it came.
  if (running == 0) return true;
  return running < options.most_sessions && work <= memory.limit() && held <= memory.limit() - work;
}

void Engine::State::take_up() {
  while (!blocked && !waiting.empty() && has_room(waiting.front())) {
    EngineItem& item = waiting.front();
    const bool first = std::ranges::all_of(admitted, &EngineItem::over);
    try {
      begin(item);
    } catch (...) {
      const std::exception_ptr thrown = std::current_exception();
      item.reply.reset();
      if (item.made) item.request.session.reset();
      const ErrorKind kind = error_kind(thrown);
      if (kind == ErrorKind::busy) throw;  // it stays in front of the others
      if (kind == ErrorKind::out_of_memory && !first) {
        blocked = true;
        return;
      }
      admitted.splice(admitted.end(), waiting, waiting.begin());
      end_with(item, thrown);
      continue;
    }
    // Those taken up earlier and set aside since came earlier too, or are in `waiting` again.
    admitted.splice(admitted.end(), waiting, waiting.begin());
    if (item.rest.empty()) {
      item.picks = false;
      reply_begin(item);
    } else if (!item.session().state().layer_by_layer) {
      report(item);
    }
  }
}

void Engine::State::begin(EngineItem& item) {
  Request& request = item.request;
  const SessionOptions wanted = session_options(request);
  if (!request.session) {
    item.made = true;
    request.session.emplace(model, context, wanted);
  }
  Session& session = item.session();
  session.set_context(context);
  item.rest = request.prompt;
  if (request.keep_prefix && !item.made) {
    item.rest = item.rest.subspan(static_cast<std::size_t>(session.keep_prefix(request.prompt)));
  }
  item.waiting_seconds =
      std::chrono::duration<double>(EngineItem::Clock::now() - item.submitted).count();
  item.reply.emplace(session, tokenizer ? *tokenizer : model->tokenizer(), item.rest,
                     request.generate, item.callbacks.piece);
  item.done = 0;
  item.reading = !item.rest.empty();
  item.own_chunk = std::exchange(session.state().chunk, wanted.chunk);
}

void Engine::State::unblock() {
  blocked = false;
  for (EngineItem& item : admitted) item.paused = false;
}

void Engine::State::cancel_requested() {
  for (auto at = waiting.begin(); at != waiting.end();) {
    EngineItem& item = *at++;
    if (item.cancel_requested()) finish(item, true);
  }
  waiting.remove_if([](const EngineItem& item) { return item.over; });
  for (EngineItem& item : admitted) {
    if (item.ending || !item.cancel_requested()) continue;
    if (!item.reading && !item.paused) {
      // Its token was handed out: a session that is handed back takes it first.
      item.reply->cancel();
      item.ending = true;
      if (item.request.keep_session) continue;
      try {
        item.reply->taken();
      } catch (...) {
        end_with(item, std::current_exception());
        continue;
      }
    }
    finish(item, true);
  }
  admitted.remove_if([](const EngineItem& item) { return item.over; });
}

// --- running ------------------------------------------------------------------------------------

void Engine::State::forward(const std::stop_token& stop) {
  if (EngineItem* alone = alone_next()) {
    alone_last = true;
    read_alone(*alone, stop);
    return;
  }
  alone_last = false;
  items.clear();
  gather(items);
  run(items, stop);
}

/// The request whose prompt is a step of its own, if its turn has come: it is the first that reads,
/// and those that decode had a step since the last such prompt.
EngineItem* Engine::State::alone_next() {
  EngineItem* first = nullptr;
  bool others = false;
  for (EngineItem& item : admitted) {
    if (!item.is_active()) continue;
    if (!item.reading) {
      others = true;
    } else if (first == nullptr) {
      first = &item;
    }
  }
  const bool whole = first != nullptr && first->session().state().layer_by_layer;
  return whole && !(others && alone_last) ? first : nullptr;
}

void Engine::State::gather(std::vector<EngineItem*>& to) {
  for (EngineItem& item : admitted) {
    if (item.is_active() && !item.reading) to.push_back(&item);
  }
  std::int64_t left = options.step_tokens - std::ssize(to);
  for (EngineItem& item : admitted) {
    if (!item.is_active() || !item.reading || item.session().state().layer_by_layer) continue;
    const std::int64_t count = std::ssize(item.chunk());
    if (count > left) break;
    to.push_back(&item);
    left -= count;
  }
}

std::span<const std::int32_t> EngineItem::chunk() {
  const std::span<const std::int32_t> left = rest.subspan(done);
  std::size_t most = std::min(static_cast<std::size_t>(session().state().chunk), left.size());
  const std::int64_t position = session().length();
  const auto cut = std::ranges::upper_bound(request.cuts, position);
  if (cut != request.cuts.end()) most = std::min(most, static_cast<std::size_t>(*cut - position));
  return left.first(most);
}

bool EngineItem::is_cut(std::size_t more) {
  return std::ranges::binary_search(request.cuts,
                                    session().length() + static_cast<std::int64_t>(more));
}

Step Engine::State::step_of(EngineItem& item) {
  Step step;
  step.session = &item.session();
  bool picks = item.reply->is_greedy() && !item.ending;
  if (item.reading) {
    step.tokens = item.chunk();
    step.prompt = true;
    step.prompt_left =
        std::ssize(item.rest) - static_cast<std::int64_t>(item.done) - std::ssize(step.tokens);
    step.wants_logits = step.prompt_left == 0;
    step.logits = item.reply->prompt_sink();
    // A fork made at the end of the prompt needs its logits.
    picks = picks && step.wants_logits && !step.logits && item.request.generate.max_tokens > 0 &&
            !item.is_cut(step.tokens.size());
  } else {
    step.tokens = {&item.token, 1};
  }
  item.count = step.tokens.size();
  item.picks = picks;
  if (picks) step.greedy = &item.greedy;
  return step;
}

/// Runs a step of these requests. One that fails ends alone; where memory runs out, the newest is
/// set aside.
void Engine::State::run(std::span<EngineItem*> part, const std::stop_token& stop) {
  while (!part.empty()) {
    std::exception_ptr thrown;
    steps.clear();
    try {
      for (EngineItem* item : part) steps.push_back(step_of(*item));
      sessions_forward(steps, stop);
    } catch (...) {
      thrown = std::current_exception();
    }
    if (!thrown) {
      {
        const std::lock_guard lock(mutex);
        ++counts.steps;
      }
      choose_together(part);
      for (EngineItem* item : part) advance(*item);
      return;
    }
    switch (error_kind(thrown)) {
      case ErrorKind::cancelled:
        return;  // nobody moved: the next call repeats the step
      case ErrorKind::busy:
        std::rethrow_exception(thrown);
      case ErrorKind::out_of_memory:
        context.trim();
        if (part.size() > 1) {
          // Prompts are last, the newest of them at the end.
          set_aside(*part.back());
          part = part.first(part.size() - 1);
          continue;
        }
        break;
      default:
        break;
    }
    if (part.size() == 1) {
      end_with(*part.front(), thrown);
      return;
    }
    // Whose fault it was is not known: one by one only those fail that are at fault.
    for (std::size_t i = 0; i < part.size(); ++i) {
      run(part.subspan(i, 1), stop);
      if (stop.stop_requested()) return;
    }
    return;
  }
}

/// Samples the next tokens of several requests on the context's threads. Hooks stay on this thread.
/// The step is taken: whatever fails here, a request without token chooses it when its turn comes.
void Engine::State::choose_together(std::span<EngineItem* const> part) noexcept {
  for (EngineItem* item : part) item->chosen.reset();
  try {
    choosing.clear();
    for (EngineItem* item : part) {
      const bool read = !item->reading || item->done + item->count == item->rest.size();
      const bool more = item->reading ? item->request.generate.max_tokens > 0 : !item->ending;
      if (read && more && !item->picks && !item->request.generate.adjust) choosing.push_back(item);
    }
    if (choosing.size() < 2) return;
    const ContextUse use(context);
    context.state().pool.run(std::ssize(choosing), [&](std::int64_t task, int) {
      EngineItem& item = *choosing[static_cast<std::size_t>(task)];
      item.chosen = item.reply->choose();
    });
  } catch (...) {
    return;  // those that have a token keep it: it is the one they would choose
  }
}

void Engine::State::read_alone(EngineItem& item, const std::stop_token& stop) {
  std::stop_source any;
  const auto pass_on = [&any] { any.request_stop(); };
  const std::stop_callback all(stop, pass_on);
  const std::stop_callback one(item.cancel.get_token(), pass_on);
  const std::stop_callback own(item.request.generate.stop, pass_on);
  try {
    item.session().prefill(item.rest, item.request.generate.progress, item.reply->prompt_sink(),
                           any.get_token());
  } catch (...) {
    const std::exception_ptr thrown = std::current_exception();
    const ErrorKind kind = error_kind(thrown);
    if (kind == ErrorKind::busy) throw;
    if (kind == ErrorKind::cancelled && stop.stop_requested() && !item.cancel_requested()) return;
    const bool others = std::ranges::any_of(
        admitted, [&](const EngineItem& other) { return &other != &item && !other.over; });
    if (kind == ErrorKind::out_of_memory && others) {
      context.trim();
      set_aside(item);
    } else {
      end_with(item, thrown);
    }
    return;
  }
  {
    const std::lock_guard lock(mutex);
    ++counts.steps;
  }
  prefilled += std::ssize(item.rest);
  item.done = item.rest.size();
  item.picks = false;
  reply_begin(item);
}

void Engine::State::set_aside(EngineItem& item) {
  blocked = true;
  if (!item.reading || !item.made) {
    item.paused = true;  // it keeps its session as it is
    return;
  }
  item.reply.reset();
  item.request.session.reset();
  item.reading = false;
  const auto self = std::ranges::find(admitted, item.id, &EngineItem::id);
  const auto later =
      std::ranges::find_if(waiting, [&](const EngineItem& other) { return other.id > item.id; });
  waiting.splice(later, admitted, self);
}

}  // namespace lca
