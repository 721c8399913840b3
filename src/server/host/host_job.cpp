// A job until the engine has it: its prompt, its session, where reading begins.

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "engine/chat_pieces.h"
#include "engine/session_state.h"
#include "formats/tokenizer/state.h"
#include "server/host/host_state.h"

namespace lca::server {
namespace {

constexpr auto kLockRetry = std::chrono::milliseconds(10);

/// Where a tokenizer sets no bound: no text has so many bytes a token.
constexpr std::size_t kMostTokenBytes = 1024;

/// Cuts a loaded session back to the longest beginning of `tokens` it can stand at: all of it, or
/// where the prompt is cut too, at a mark or in what its window still holds. 0: none.
std::int64_t loaded_keep(Session& session, std::span<const std::int32_t> tokens,
                         std::span<const std::int64_t> cuts) {
  const auto size = std::ssize(tokens);
  if (!session.state().rotates_as_prompt(size)) return 0;
  const auto common =
      std::ranges::mismatch(session.tokens(), tokens).in1 - session.tokens().begin();
  const bool ends = common == size && session.logits().empty();
  if (common == session.length() && common > 0 && !ends) return common;
  std::int64_t best = 0;
  for (const std::int64_t mark : session.marks()) {
    if (mark <= common && mark < size && std::ranges::binary_search(cuts, mark)) best = mark;
  }
  const std::int64_t floor = session.truncate_floor();
  for (const std::int64_t cut : cuts) {
    if (cut >= floor && cut <= common && cut < size) best = std::max(best, cut);
  }
  if (best > 0) session.truncate(best);
  return best;
}

/// Bytes that the tokens of a prompt spell at least: templates trim messages, and some leave out
/// what a reply was thinking.
std::size_t fewest_bytes(const Job& job) {
  if (const auto* text = std::get_if<std::string>(&job.prompt)) return text->size();
  const auto* messages = std::get_if<std::vector<Message>>(&job.prompt);
  if (messages == nullptr) return 0;
  constexpr std::string_view kThought = "</think>";
  std::size_t bytes = 0;
  for (const Message& message : *messages) {
    std::string_view text = message.text;
    if (const std::size_t at = text.rfind(kThought); at != std::string_view::npos) {
      text.remove_prefix(at + kThought.size());
    }
    bytes += chat_trim(text).size();
  }
  return bytes;
}

}  // namespace

/// Tokenising takes time and memory by the bytes of a text: one that is too long by its bytes is
/// not tokenised.
void EngineHost::State::length_check(const Job& job) const {
  const std::size_t bytes = fewest_bytes(job);
  const std::size_t of_token = tokenizer.state().most_bytes;
  const auto most = static_cast<std::size_t>(most_tokens);
  if (of_token > 0 && bytes / of_token >= most) {
    fail_input(
        "the prompt has at least {} tokens and the context holds {}, at least one of them for the "
        "reply: shorten the prompt",
        bytes / of_token, most_tokens);
  }
  if (of_token == 0 && bytes / kMostTokenBytes >= most) {
    fail_input("the prompt has {} bytes and the context holds {} tokens: shorten the prompt", bytes,
               most_tokens);
  }
}

void EngineHost::State::attempt(const JobPtr& job, const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception&) {
    fail(job, error_now());
  }
}

/// On a worker: tokens, context, session.
void EngineHost::State::prepare(const JobPtr& job) {
  attempt(job, [&] {
    if (!job->take()) {
      end_cancelled(job);
      return;
    }
    length_check(job->job);
    job->tokens = prompt_tokens(job->job);
    tokens_check(*model, job->tokens);
    const std::int64_t count = std::ssize(job->tokens);
    if (count >= most_tokens) {
      fail(job, refusal(400, fmt::format("the prompt has {} tokens and the context holds {}, at "
                                         "least one of them for the reply: shorten the prompt",
                                         count, most_tokens)));
      return;
    }
    {
      const std::lock_guard guard(mutex);
      if (job->bytes > 0) {
        const double now = static_cast<double>(count) / static_cast<double>(job->bytes);
        tokens_per_byte = 0.9 * tokens_per_byte + 0.1 * now;
      }
    }
    if (job->saved) {
      files->post([this, job] { lock_session(job); });
    } else {
      post([this, job] { start(job); });
    }
  });
}

/// On a worker: tries again and again, without keeping the worker.
void EngineHost::State::lock_session(const JobPtr& job) {
  attempt(job, [&] {
    if (job->is_cancelled()) {
      end_cancelled(job);
      return;
    }
    const std::string& name = job->job.session;
    job->lock = store->try_lock(name);
    if (!job->lock) {
      const auto now = HostJob::Clock::now();
      if (!job->lock_asked) job->lock_asked = now;
      const std::chrono::duration<double> waited = now - *job->lock_asked;
      if (waited.count() < options.lock_seconds) {
        files->post([this, job] { lock_session(job); }, kLockRetry);
        return;
      }
      throw SessionHeld(name);
    }
    // What this server saved last is in the prefix cache; what another one saved is not. Replies
    // that were generated before this server began have their ids in the session alone.
    const auto kept = live.kept(name, store->stamp(name), 0, most_tokens);
    job->loads = !options.prefix_cache || !kept || !store->is_known(name);
    if (!job->loads) {
      job->tokens = tokens_align(tokenizer, std::move(job->tokens), kept->text.ids);
    }
    if (model->info().device == "cpu") load_session(*job);
    post([this, job] { start(job); });
  });
}

void EngineHost::State::load_session(HostJob& job) {
  if (!std::exchange(job.loads, false)) return;
  job.tried = true;
  job.loaded = store->load(job.job.session, model, context,
                           {{}, options.session.chunk, options.session.marks});
  if (!job.loaded) return;
  job.tokens = tokens_align(tokenizer, std::move(job.tokens), job.loaded->tokens());
}

/// The cache has dropped what the file still holds: back to a worker.
void EngineHost::State::load_again(const JobPtr& job) {
  job->tried = job->loads = true;
  files->post([this, job] {
    attempt(job, [&] {
      if (model->info().device == "cpu") load_session(*job);
      post([this, job] { start(job); });
    });
  });
}

/// On the engine's thread.
void EngineHost::State::start(const JobPtr& job) {
  attempt(job, [&] {
    if (job->is_cancelled()) {
      end_cancelled(job);
      return;
    }
    load_session(*job);  // a GPU's memory is written by the thread that uses it
    const Job& wish = job->job;
    job->keeps = (options.prefix_cache || job->saved) && !wish.echo && !whole_prompts;
    if (job->keeps) job->tokens = replies.restore(std::move(job->tokens), tokenizer);
    const std::int64_t size = std::ssize(job->tokens);
    if (size >= most_tokens)
      fail_input("the prompt has {} tokens and the context holds {}", size, most_tokens);
    job->open = wish.n;
    job->last_token.resize(static_cast<std::size_t>(wish.n));
    job->pieces.resize(static_cast<std::size_t>(wish.n));

    std::vector<std::int64_t> cuts;
    std::optional<Session> session;
    if (job->keeps) {
      cuts = prompt_cuts(job->tokens, turns, options.cut_distance);
      const std::int64_t branch = prefix.seen(job->tokens, cuts);
      job->marks = marks_wanted(job->tokens, cuts, turns, options.cut_distance, branch);
      session = beginning(*job, cuts);
      job->cached = session ? session->length() : 0;
      if (job->saved && !job->tried && size - job->cached > options.cut_distance) {
        session.reset();
        load_again(job);
        return;
      }
    }
    // Who asks about the same beginning again may come after a restart.
    const bool branches = session && std::ranges::binary_search(job->marks, session->length());
    if (job->saved && branches) session->mark();
    if (!wish.session.empty()) {
      live.begin(wish.session, job->id, job->tokens,
                 session ? session_view(*session) : CacheView());
    }
    const bool reads_each = wish.echo && wish.generate.prompt_logprobs;
    if (wish.n > 1 && !reads_each) {
      if (session && session->length() == size) {
        job->forked = true;
        for (int choice = 1; choice < wish.n; ++choice) {
          request(job, choice, session->fork(size), {});
        }
      } else {
        cuts.push_back(size);
      }
    }
    request(job, 0, std::move(session), std::move(cuts));
    if (reads_each) {
      for (int choice = 1; choice < wish.n; ++choice) request(job, choice, std::nullopt, {});
    }
  });
}

/// The session that has read most of the prompt, from the file or from the prefix cache.
std::optional<Session> EngineHost::State::beginning(HostJob& job,
                                                    std::span<const std::int64_t> cuts) {
  std::optional<Session> best = std::exchange(job.loaded, std::nullopt);
  const std::int64_t kept = best ? loaded_keep(*best, job.tokens, cuts) : 0;
  if (kept == 0) best.reset();
  if (options.prefix_cache) {
    std::optional<Session> found = prefix.find(job.tokens, cuts);
    if (found && found->length() > kept) best = std::move(found);
  }
  return best;
}

/// Hands one choice to the engine; `session` stands at a beginning of the prompt.
void EngineHost::State::request(const JobPtr& job, int choice, std::optional<Session> session,
                                std::vector<std::int64_t> cuts) {
  const Job& wish = job->job;
  const std::int64_t size = std::ssize(job->tokens);
  Request made;
  const std::int64_t have = session ? session->length() : 0;
  made.prompt.assign(job->tokens.begin() + have, job->tokens.end());
  made.session = std::move(session);
  made.cuts = std::move(cuts);
  made.keep_session = job->keeps && (options.prefix_cache || choice == 0);
  made.options = options.session;
  made.generate = wish.generate;
  GenerateOptions& generate = made.generate;
  generate.sampling.seed += static_cast<std::uint64_t>(choice);
  generate.max_tokens = std::min(generate.max_tokens, most_tokens - size);
  if (options.most_reply > 0)
    generate.max_tokens = std::min(generate.max_tokens, options.most_reply);
  // Scores of a text have an entry for the token after it, whichever it is.
  const bool scores = wish.echo && generate.prompt_logprobs && generate.max_tokens == 1;
  if (!wish.ignore_end && !scores) {
    generate.end_tokens = model->end_tokens();
    if (chat) {
      generate.end_tokens.insert(generate.end_tokens.end(), chat->end_tokens().begin(),
                                 chat->end_tokens().end());
    }
  }
  if (options.hooks.adjust) generate.adjust = options.hooks.adjust(wish, choice, size);
  generate.progress = [this, job, choice](PrefillProgress progress) {
    return choice != 0 || report(*job, progress);
  };
  RequestCallbacks calls = callbacks(job, choice);
  const std::lock_guard guard(job->mutex);
  RequestId id = 0;
  try {
    id = engine.submit(std::move(made), std::move(calls));
  } catch (const Error& error) {
    // It would not fit even alone: asking again later is no use.
    if (error.kind() == ErrorKind::out_of_memory) fail_input("{}", error.what());
    throw;
  }
  job->requests.push_back(id);
  if (choice == 0) job->first = id;
  if (job->cancelled) engine.cancel(id);
}

}  // namespace lca::server
