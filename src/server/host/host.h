#pragma once
/// Jobs of a server on one engine.
///
/// Threads. One thread steps the engine; between two steps it takes up prepared jobs and keeps the
/// prefix cache, which therefore needs no lock. Two others do what a step must not wait for:
/// tokenising, loading and saving sessions. `submit`, `cancel` and `counts` only take a short lock.
///
/// A job's way. `submit` admits it by the number and bytes of queued jobs, before anything is
/// tokenised. A worker writes and tokenises the prompt, checks it against the context, and locks
/// and loads its session. The engine's thread puts ids of known replies in place, finds the longest
/// kept beginning and hands the rest to the engine, with the cuts of the prompt (prompt_cuts.h) as
/// the places where chunks end; at some of them a fork goes into the cache. A prompt with several
/// replies is read once and forked at its end. A job with a session is saved by a worker before its
/// `done` events are handed out, and unlocked after.
///
/// Without prefix cache a job is read in the chunks of a session alone, and its replies depend on
/// the job and its seed, whatever else runs.
///
/// Cancelling. A job that waits leaves its place at once; one that runs leaves before the next
/// step, in the middle of its prompt too. Beginnings that were read stay in the cache.

#include <lca/engine.h>
#include <lca/model.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/host/host_meter.h"
#include "server/host/live_caches.h"
#include "server/host/prefix_cache.h"
#include "server/host/session_store.h"
#include "server/types.h"

namespace lca::server {

using JobId = std::uint64_t;

/// What other parts of the server add to a job.
struct HostHooks {
  /// Token ids of a job's prompt; for jobs with tools, say. Empty: the chat template. Called by
  /// worker threads, several at once.
  std::function<std::vector<std::int32_t>(const Job&)> prompt;
  /// Constrains a reply (`GenerateOptions::adjust`); may return none. `prompt_tokens` come before
  /// the reply in what the function receives. Called, as what it returns, by the engine's thread.
  std::function<decltype(GenerateOptions::adjust)(const Job&, int choice,
                                                  std::int64_t prompt_tokens)>
      adjust;
  /// The message that a reply's text is: its tool calls, say. Empty: the text alone. Only of jobs
  /// whose session is saved; called by worker threads and the engine's.
  std::function<Message(const Job&, const std::string& text)> reply;
};

struct HostOptions {
  std::int64_t context = 0;        ///< most tokens of prompt and reply; 0: what it was trained for
  std::int64_t most_reply = 0;     ///< most tokens of a reply; 0: what the context has room for
  std::int64_t most_queued = 256;  ///< jobs that are not taken up
  std::size_t most_queued_bytes = std::size_t{64} << 20;  ///< of their prompts and bodies
  bool prefix_cache = true;
  std::size_t prefix_bytes = 0;       ///< of kept beginnings; 0: a quarter of the engine's memory
  std::int64_t cut_distance = 512;    ///< between steady cuts of a prompt
  std::int64_t mark_distance = 4096;  ///< between cuts that are kept while a prompt is read
  /// Folder of named sessions; empty: none, and a job's name only serves `cache_view`.
  std::string sessions;
  double lock_seconds = 2;         ///< that a job waits for its session
  double progress_seconds = 0.25;  ///< between two `progress` events, at least
  EngineOptions engine;
  SessionOptions session;
  std::optional<Tokenizer> tokenizer;  ///< in place of the model's
  std::optional<ChatTemplate> chat;    ///< in place of the model's
  HostHooks hooks;
};

/// What a host does and did.
struct HostCounts {
  std::int64_t queued = 0;  ///< jobs that are not taken up by the engine
  std::size_t queued_bytes = 0;
  std::int64_t running = 0;                                           ///< jobs taken up
  std::int64_t finished = 0, failed = 0, cancelled = 0, refused = 0;  ///< jobs so far
  std::int64_t prompt_tokens = 0, cached_tokens = 0, reply_tokens = 0;
  TimeHistogram first_token;  ///< from `submit`
  TimeHistogram between_tokens;
  double prefill_rate = 0;  ///< tokens a second, lately; 0: not known
  PrefixCounts prefix;
  EngineCounts engine;
};

/// Thread-safe. The context must outlive it, and no one else may use it.
class EngineHost {
 public:
  /// Events of one job come one at a time, from the threads of the host; it must not block, nor
  /// throw. `done` of the last choice, or `failed`, is the last.
  using OnEvent = std::function<void(JobEvent)>;
  struct State;

  EngineHost(std::shared_ptr<const Model> model, Context& context, HostOptions options);
  /// Cancels what is left.
  ~EngineHost();
  EngineHost(const EngineHost&) = delete;
  EngineHost& operator=(const EngineHost&) = delete;

  /// Places in the queue for the jobs of one request, counted as queued until these are submitted.
  /// It gives back what is left of them; the host must outlive it.
  class Admission {
   public:
    Admission(Admission&& other) noexcept;
    ~Admission();
    Admission(const Admission&) = delete;
    Admission& operator=(const Admission&) = delete;

   private:
    friend class EngineHost;
    explicit Admission(State& host) : host_(&host) {}
    State* host_;
    std::int64_t jobs_ = 0;
    std::size_t bytes_ = 0;
  };
  /// Throws ApiException: 429 with the seconds to wait where too much is queued, 503 while
  /// draining. The jobs of one request are queued all or none, however many they are.
  Admission admit(std::span<const Job> jobs);
  /// Throws ApiException: 503 while draining, 400 where the job cannot run here.
  JobId submit(Job job, OnEvent on_event, Admission& admitted);
  /// Both for a single job.
  JobId submit(Job job, OnEvent on_event);
  /// The job ends with `done` events of reason `cancelled`. False where it is over.
  bool cancel(JobId id);
  /// The job ends as if its replies had come to their end: what is written of them counts, and is
  /// saved. False where it is over.
  bool finish(JobId id);
  /// Refuses new jobs and waits for those that are left; what is not over then is cancelled.
  void drain(std::chrono::duration<double> most);

  HostCounts counts() const;
  /// Null without folder.
  SessionStore* sessions();
  /// The cache of a named session: of the newest job that runs in it, after its last step; else as
  /// the last one left it, in memory or in the file; zeros where one waits and there is nothing
  /// else. Takes no file's lock and waits for no step; a file that was not read before is read now.
  /// Throws Error where it is broken.
  std::optional<CacheView> cache_view(std::string_view session) const;
  /// The token ids at positions `first` to `last`, that one included, as far as there are any.
  std::optional<TokenRange> cache_text(std::string_view session, std::int64_t first,
                                       std::int64_t last) const;
  /// Whether `Job::continue_last` is honoured: the model has a chat format.
  bool continues() const;
  const TurnTokens& turns() const;
  std::int64_t context_tokens() const;
  /// That a request waits for a session that another one holds.
  double lock_seconds() const;
  /// The token ids that a job's prompt has, as it would be read without cache.
  std::vector<std::int32_t> prompt_tokens(const Job& job) const;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace lca::server
