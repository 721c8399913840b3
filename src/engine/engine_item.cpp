// One request in the engine after a step: its next token, its end.

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "engine/engine_state.h"
#include "engine/session_state.h"

namespace lca {

Error error_of(const std::exception_ptr& thrown) {
  try {
    guarded([&] { std::rethrow_exception(thrown); });
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    return {ErrorKind::bad_input,
            fmt::format("a callback or hook of the request threw: {}", error.what())};
  } catch (...) {
    return {ErrorKind::bad_input, "a callback or hook of the request threw"};
  }
  fail_internal("there is no error");
}

ErrorKind error_kind(const std::exception_ptr& thrown) { return error_of(thrown).kind(); }

/// After a step that the request took part in.
void Engine::State::advance(EngineItem& item) {
  if (item.reading) {
    prefilled += static_cast<std::int64_t>(item.count);
    item.done += item.count;
    report(item);
    if (!item.over && item.callbacks.cut && item.is_cut(0)) {
      try {
        item.callbacks.cut(item.session());
      } catch (...) {
        end_with(item, std::current_exception());
      }
    }
    if (!item.over && item.done == item.rest.size()) reply_begin(item);
    return;
  }
  ++decoded;
  try {
    item.reply->taken();
  } catch (...) {
    end_with(item, std::current_exception());
    return;
  }
  if (item.ending) {
    finish(item, false);
  } else {
    next_token(item, item.picks);
  }
}

/// The prompt is read.
void Engine::State::reply_begin(EngineItem& item) {
  item.reading = false;
  try {
    item.reply->prompt_read();
  } catch (...) {
    end_with(item, std::current_exception());
    return;
  }
  next_token(item, item.picks);
}

/// Tells how far the prompt is.
void Engine::State::report(EngineItem& item) {
  const auto& progress = item.request.generate.progress;
  if (!progress) return;
  try {
    const auto done = static_cast<std::int64_t>(item.done);
    if (!progress({done, std::ssize(item.rest)})) finish(item, true);
  } catch (...) {
    end_with(item, std::current_exception());
  }
}

/// Chooses the next token and hands it out; `picked`: it is known already.
void Engine::State::next_token(EngineItem& item, bool picked) {
  try {
    Reply& reply = *item.reply;
    if (!reply.wants_token()) {
      finish(item, false);
      return;
    }
    const std::int32_t token = picked        ? item.greedy
                               : item.chosen ? *std::exchange(item.chosen, std::nullopt)
                                             : reply.choose();
    if (token < 0) fail_internal("the model produced NaN");
    if (!reply.push(token)) {
      finish(item, false);
      return;
    }
    item.token = token;
    item.ending = reply.is_last();
    if (item.ending && !item.request.keep_session) {
      reply.taken();  // nobody will ask what comes after it
      finish(item, false);
    }
  } catch (...) {
    end_with(item, std::current_exception());
  }
}

RequestResult Engine::State::result_of(EngineItem& item, Generated generated) {
  RequestResult result;
  result.generated = std::move(generated);
  result.waiting_seconds = item.waiting_seconds;
  if (item.request.session) {
    if (item.own_chunk != 0) item.session().state().chunk = item.own_chunk;
    if (item.request.keep_session) result.session = std::move(item.request.session);
  }
  return result;
}

/// Frees what the request holds; the last callback comes afterwards.
void Engine::State::leave(EngineItem& item, bool failed) {
  item.over = true;
  if (item.reply) unblock();  // it held memory
  item.reply.reset();
  item.request.session.reset();
  const std::lock_guard lock(mutex);
  live.erase(item.id);
  ++(failed ? counts.failed : counts.finished);
}

void Engine::State::finish(EngineItem& item, bool cancelled) noexcept {
  try {
    Generated generated;
    if (item.reply) {
      generated = cancelled ? item.reply->cancelled() : item.reply->finish();
    } else {  // it was still waiting
      generated.reason = StopReason::cancelled;
      const bool follows = item.request.session && !item.request.keep_prefix;
      generated.reused_tokens = follows ? item.session().length() : 0;
      generated.prompt_tokens = generated.reused_tokens + std::ssize(item.request.prompt);
    }
    RequestResult result = result_of(item, std::move(generated));
    leave(item, false);
    if (item.callbacks.finished) item.callbacks.finished(std::move(result));
  } catch (...) {
    end_with(item, std::current_exception());
  }
}

void Engine::State::end_with(EngineItem& item, const std::exception_ptr& thrown) noexcept {
  try {
    const Error error = error_of(thrown);
    if (!item.over && error.kind() == ErrorKind::cancelled) {
      finish(item, true);
      return;
    }
    RequestResult result;
    if (item.over) {  // `finished` threw
      const std::lock_guard lock(mutex);
      --counts.finished;
      ++counts.failed;
    } else {
      result = result_of(item, item.reply ? item.reply->partial() : Generated());
      leave(item, true);
    }
    if (item.callbacks.failed) item.callbacks.failed(error, std::move(result));
  } catch (...) {
    if (!item.over) leave(item, true);
  }
}

}  // namespace lca
