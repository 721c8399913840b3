// A job in the engine: its events, and its end.

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "engine/engine_state.h"
#include "engine/session_state.h"
#include "server/host/conversation.h"
#include "server/host/host_state.h"

namespace lca::server {
namespace {

TokenText token_text(const Tokenizer& tokenizer, std::int32_t id, std::optional<float> logprob) {
  TokenText made;
  made.id = id;
  // A model's vocabulary may be padded beyond its tokenizer's.
  if (id < tokenizer.size()) made.bytes = tokenizer.bytes(id);
  made.logprob = logprob;
  return made;
}

TokenDetail token_detail(const Tokenizer& tokenizer, const TokenLogprobs& known) {
  TokenDetail made{token_text(tokenizer, known.id, known.logprob)};
  for (const TokenLogprob& other : known.top) {
    made.top.push_back(token_text(tokenizer, other.id, other.logprob));
  }
  return made;
}

std::string decode_known(const Tokenizer& tokenizer, std::span<const std::int32_t> ids) {
  std::vector<std::int32_t> known;
  std::ranges::copy_if(ids, std::back_inserter(known),
                       [&](std::int32_t id) { return id < tokenizer.size(); });
  return tokenizer.decode(known);
}

/// The `prompt` event of an echo.
JobEvent prompt_event(const Tokenizer& tokenizer, std::span<const std::int32_t> tokens, int choice,
                      const Generated* generated) {
  JobEvent event;
  event.kind = JobEvent::Kind::prompt;
  event.choice = choice;
  event.text = decode_known(tokenizer, tokens);
  if (generated == nullptr) return event;
  for (std::size_t i = 0; i < generated->prompt_logprobs.size() && i < tokens.size(); ++i) {
    const std::optional<TokenLogprobs>& known = generated->prompt_logprobs[i];
    event.tokens.push_back(known ? token_detail(tokenizer, *known)
                                 : TokenDetail{token_text(tokenizer, tokens[i], std::nullopt)});
  }
  return event;
}

double seconds_between(HostJob::Clock::time_point from, HostJob::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

RequestCallbacks EngineHost::State::callbacks(const JobPtr& job, int choice) {
  RequestCallbacks calls;
  calls.cut = [this, job](Session& session) { at_cut(job, session); };
  calls.piece = [this, job, choice](const GeneratePiece& made) {
    if (job->over) return false;
    if (choice == 0) show(*job);
    piece(*job, choice, made);
    return true;
  };
  calls.finished = [this, job, choice](RequestResult result) {
    finished(job, choice, std::move(result));
  };
  calls.failed = [this, job](const Error& error, const RequestResult&) {
    fail(job, error_of(error));
  };
  return calls;
}

void EngineHost::State::leave_queue(HostJob& job) {
  if (!job.queued.exchange(false)) return;
  const std::lock_guard guard(mutex);
  --counts.queued;
  counts.queued_bytes -= job.bytes;
}

/// The engine has taken it up.
void EngineHost::State::begun(HostJob& job) {
  if (job.started || job.over) return;
  job.started = true;
  leave_queue(job);
  {
    const std::lock_guard guard(mutex);
    job.running = true;
    ++counts.running;
    counts.prompt_tokens += std::ssize(job.tokens);
    counts.cached_tokens += job.cached;
  }
  JobEvent event;
  event.kind = JobEvent::Kind::started;
  event.usage = {std::ssize(job.tokens), job.cached, 0};
  job.on_event(std::move(event));
  if (!job.job.echo || job.job.generate.prompt_logprobs) return;
  for (int choice = 0; choice < job.job.n; ++choice) {
    job.on_event(prompt_event(tokenizer, job.tokens, choice, nullptr));
  }
}

bool EngineHost::State::report(HostJob& job, PrefillProgress progress) {
  if (job.over) return false;
  if (!whole_prompts) show(job);
  begun(job);
  const auto now = HostJob::Clock::now();
  if (seconds_between(job.reported, now) < options.progress_seconds) return true;
  job.reported = now;
  JobEvent event;
  event.kind = JobEvent::Kind::progress;
  event.prefill = {progress.done + job.cached, std::ssize(job.tokens)};
  {
    const std::lock_guard guard(mutex);
    if (token_rate.value() > 0) {
      event.seconds_left = static_cast<double>(progress.total - progress.done) / token_rate.value();
    }
  }
  job.on_event(std::move(event));
  return true;
}

/// Reading stands at a cut: some are kept, and at the end of the prompt the other choices begin.
void EngineHost::State::at_cut(const JobPtr& job, Session& session) {
  const std::int64_t length = session.length();
  const bool turn = std::ranges::binary_search(job->marks, length);
  const bool stone = options.mark_distance > 0 && length % options.mark_distance == 0;
  if (job->keeps && (turn || stone)) {
    if (job->saved) session.mark();
    if (options.prefix_cache && !prefix.holds(session.tokens())) {
      prefix.put(session, turn ? Kept::turn : Kept::stone);
    }
  }
  if (job->job.n == 1 || length != std::ssize(job->tokens) || std::exchange(job->forked, true)) {
    return;
  }
  for (int choice = 1; choice < job->job.n; ++choice) {
    request(job, choice, session.fork(length), {});
  }
}

/// Publishes what the first choice's cache holds after a step, before an event tells of it.
void EngineHost::State::show(HostJob& job) {
  if (job.job.session.empty()) return;
  std::list<EngineItem>& items = engine.state().admitted;
  const auto item = std::ranges::find(items, job.first, &EngineItem::id);
  if (item == items.end() || !item->request.session) return;
  live.update(job.job.session, job.id, item->session());
}

void EngineHost::State::piece(HostJob& job, int choice, const GeneratePiece& made) {
  begun(job);
  const auto now = HostJob::Clock::now();
  auto& last = job.last_token[static_cast<std::size_t>(choice)];
  if (!made.ids.empty()) {
    const std::lock_guard guard(mutex);
    if (last == HostJob::Clock::time_point()) {
      counts.first_token.add(seconds_between(job.submitted, now));
    } else {
      counts.between_tokens.add(seconds_between(last, now));
    }
    ++counts.reply_tokens;
    last = now;
  }
  JobEvent event;
  event.kind = JobEvent::Kind::piece;
  event.choice = choice;
  event.text = made.text;
  if (made.logprobs != nullptr) event.tokens.push_back(token_detail(tokenizer, *made.logprobs));
  if (event.text.empty() && event.tokens.empty()) return;
  if (job.job.echo && job.job.generate.prompt_logprobs) {
    job.pieces[static_cast<std::size_t>(choice)].push_back(std::move(event));
  } else {
    job.on_event(std::move(event));
  }
}

/// What a client received is what it sends back: a message that was continued comes back whole.
void EngineHost::State::remember_reply(const HostJob& job, std::span<const std::int32_t> reply) {
  std::span<const std::int32_t> prompt(job.tokens);
  std::vector<std::int32_t> whole;
  if (job.job.continue_last) {
    const auto is_mark = [&](std::int32_t id) { return tokenizer.is_special(id); };
    const auto mark = std::find_if(prompt.rbegin(), prompt.rend(), is_mark);
    const auto end = static_cast<std::size_t>(mark.base() - prompt.begin());
    whole.assign(prompt.begin() + static_cast<std::ptrdiff_t>(end), prompt.end());
    prompt = prompt.first(end);
  }
  whole.insert(whole.end(), reply.begin(), reply.end());
  replies.add(prompt, whole, tokenizer);
}

void EngineHost::State::finished(const JobPtr& job, int choice, RequestResult result) {
  if (job->over) return;
  Generated& generated = result.generated;
  const Job& wish = job->job;
  if (job->complete && generated.reason == StopReason::cancelled) {
    generated.reason = StopReason::end_token;
  }
  const bool whole = generated.reason != StopReason::cancelled;
  if (whole) begun(*job);
  JobEvent event;
  event.kind = JobEvent::Kind::done;
  event.choice = choice;
  event.reason = generated.reason;
  event.usage = {std::ssize(job->tokens), job->cached, std::ssize(generated.tokens)};
  const std::string decoded = decode_known(tokenizer, generated.tokens);
  if (generated.reason == StopReason::stop_string && decoded.size() >= generated.text.size()) {
    const std::string_view rest = std::string_view(decoded).substr(generated.text.size());
    for (const std::string& stop : wish.generate.stops) {
      if (rest.starts_with(stop) && stop.size() > event.stop.size()) event.stop = stop;
    }
  }
  if (wish.echo && wish.generate.prompt_logprobs && whole) {
    job->on_event(prompt_event(tokenizer, job->tokens, choice, &generated));
    for (JobEvent& held : job->pieces[static_cast<std::size_t>(choice)]) {
      job->on_event(std::move(held));
    }
    const auto& ends = model->end_tokens();
    if (generated.tokens.size() == 1 &&
        std::ranges::find(ends, generated.tokens[0]) != ends.end()) {
      event.reason = StopReason::end_token;
    }
  }
  if (whole && job->keeps) {
    // Not where a stop string was cut off.
    if (decoded == generated.text) remember_reply(*job, generated.tokens);
    const bool saves = choice == 0 && job->saved;
    if (choice == 0 && result.session && !wish.session.empty()) {
      live.update(wish.session, job->id, *result.session);
      job->left = true;
    }
    if (result.session && options.prefix_cache) {
      prefix.put(*result.session, Kept::reply);
      prefix.leave(job->tokens, job->marks);
    }
    if (saves && result.session) {
      job->to_save = std::move(result.session);
      job->reply = generated.text;
    }
  }
  job->held.push_back(event);
  --job->open;
  const bool reads_each = wish.echo && wish.generate.prompt_logprobs;
  if (!whole && choice == 0 && !job->forked && !reads_each) {
    // The prompt was not read to its end: the other choices have not begun.
    for (int other = 1; other < wish.n; ++other) {
      event.choice = other;
      job->held.push_back(event);
    }
    job->open = 0;
  }
  if (!job->saved) {
    if (job->open > 0) {
      job->on_event(std::move(job->held.back()));
      job->held.clear();
      return;
    }
  }
  if (job->open == 0) close(job);
}

/// All choices are over.
void EngineHost::State::close(const JobPtr& job) {
  if (!job->to_save) {
    const bool cancelled = job->held.empty() || job->held.back().reason == StopReason::cancelled;
    job->lock.reset();
    end(*job, std::move(job->held), cancelled ? &HostCounts::cancelled : &HostCounts::finished);
  } else if (model->info().device == "cpu") {
    files->post([this, job] { save(job); });
  } else {
    save(job);  // a GPU's memory is read by the thread that uses it
  }
}

/// The session is on disk before the reply's last event.
void EngineHost::State::save(const JobPtr& job) {
  attempt(job, [&] {
    const std::string& name = job->job.session;
    // Where it can be cut back without a mark, one would only be another window on disk.
    job->to_save->state().drop_marks_after(job->to_save->truncate_floor() - 1);
    store->save(name, *job->to_save);
    job->to_save.reset();
    Message reply{"assistant", job->reply};
    if (options.hooks.reply) reply = options.hooks.reply(job->job, job->reply);
    store->save_messages(name, conversation_json(job->job, std::move(reply)));
    job->file = store->stamp(name);
    job->lock.reset();
    end(*job, std::move(job->held), &HostCounts::finished);
  });
}

void EngineHost::State::end(HostJob& job, std::vector<JobEvent> last,
                            std::int64_t HostCounts::*count) {
  if (job.over.exchange(true)) return;
  leave_queue(job);
  if (const std::string& name = job.job.session; !name.empty()) {
    if (count == &HostCounts::finished && job.left) {
      live.leave(name, job.id, job.file);
    } else {
      live.drop(name, job.id);
    }
  }
  {
    const std::lock_guard guard(mutex);
    const auto now = HostJob::Clock::now();
    if (job_ended != HostJob::Clock::time_point()) {
      job_rate.add(1, seconds_between(job_ended, now));
    }
    job_ended = now;
    if (job.running.exchange(false)) --counts.running;
    ++(counts.*count);
    ++ending;
    jobs.erase(job.id);
  }
  for (JobEvent& event : last) job.on_event(std::move(event));
  {
    const std::lock_guard guard(mutex);
    --ending;
  }
  changed.notify_all();
}

void EngineHost::State::fail(const JobPtr& job, ApiError error) {
  {
    const std::lock_guard guard(job->mutex);
    for (const RequestId request : job->requests) engine.cancel(request);
  }
  job->to_save.reset();
  job->lock.reset();
  JobEvent event;
  event.kind = JobEvent::Kind::failed;
  event.error = std::move(error);
  end(*job, {std::move(event)}, &HostCounts::failed);
}

void EngineHost::State::end_cancelled(const JobPtr& job) {
  std::vector<JobEvent> last;
  for (int choice = 0; choice < job->job.n; ++choice) {
    JobEvent event;
    event.kind = JobEvent::Kind::done;
    event.choice = choice;
    event.reason = StopReason::cancelled;
    last.push_back(std::move(event));
  }
  job->lock.reset();
  end(*job, std::move(last), &HostCounts::cancelled);
}

}  // namespace lca::server
