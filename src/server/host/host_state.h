#pragma once
/// What an EngineHost holds, and one job on its way through it.

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "server/host/host.h"
#include "server/host/live_caches.h"
#include "server/host/task_queue.h"

namespace lca::server {

/// A job and how far it is.
struct HostJob {
  using Clock = std::chrono::steady_clock;

  JobId id = 0;
  Job job;
  EngineHost::OnEvent on_event;
  std::size_t bytes = 0;
  bool saved = false;  ///< its session is in the folder
  Clock::time_point submitted = Clock::now();

  std::mutex mutex;  ///< of the next three
  bool cancelled = false;
  bool taken = false;  ///< a worker reads the prompt
  std::vector<RequestId> requests;

  std::atomic<bool> queued = true;     ///< counted among the queued
  std::atomic<bool> running = false;   ///< counted among the running
  std::atomic<bool> over = false;      ///< no event follows, but for those of who set it
  std::atomic<bool> complete = false;  ///< what is written is the whole reply

  // Of the thread that works on it.
  std::vector<std::int32_t> tokens;
  std::unique_ptr<SessionLock> lock;
  std::optional<Clock::time_point> lock_asked;  ///< for the first time
  bool loads = false;                           ///< the file holds what this server does not know
  bool tried = false;                           ///< the file was looked at
  std::optional<Session> loaded;                ///< what the file held

  // Of the engine's thread.
  std::vector<std::int64_t> marks;  ///< cuts at which it is kept
  std::int64_t cached = 0;
  bool keeps = false;                        ///< uses the prefix cache
  bool started = false;                      ///< its first event was handed out
  int open = 0;                              ///< choices that are not over
  std::optional<Clock::time_point> reading;  ///< since then
  Clock::time_point reported{};
  std::vector<Clock::time_point> last_token;  ///< of each choice
  std::vector<std::vector<JobEvent>> pieces;  ///< of an echo, until the prompt's event can be made
  bool forked = false;                        ///< the other choices have their sessions
  std::vector<JobEvent> held;                 ///< until the session is saved
  std::optional<Session> to_save;
  std::string reply;              ///< of the choice that is saved
  RequestId first = 0;            ///< of the first choice
  bool left = false;              ///< its cache stays after it
  std::optional<FileStamp> file;  ///< in which it is saved

  bool is_cancelled() {
    const std::lock_guard guard(mutex);
    return cancelled;
  }
  /// Takes up the prompt; false: it was cancelled.
  bool take() {
    const std::lock_guard guard(mutex);
    taken = true;
    return !cancelled;
  }
};

struct EngineHost::State {
  using JobPtr = std::shared_ptr<HostJob>;

  State(std::shared_ptr<const Model> model, Context& context, HostOptions options);
  ~State();

  const std::shared_ptr<const Model> model;
  Context& context;
  const HostOptions options;
  const Tokenizer tokenizer;
  const std::optional<ChatTemplate> chat;
  TurnTokens turns;
  std::int64_t most_tokens = 0;
  std::optional<SessionStore> store;
  Engine engine;
  bool whole_prompts = false;  ///< summaries wait for the end of a prompt: nothing can be kept

  // Of the engine's thread.
  PrefixCache prefix;
  ReplyBook replies;

  std::int64_t evicted = 0;  ///< from `prefix`, when `live` was last told

  // Shared.
  LiveCaches live;
  mutable std::mutex mutex;
  std::condition_variable_any changed;
  std::deque<std::function<void()>> posted;  ///< to the engine's thread
  std::map<JobId, JobPtr> jobs;              ///< that are not over
  HostCounts counts;
  Rate token_rate;  ///< of reading prompts
  Rate job_rate;    ///< of jobs that end
  HostJob::Clock::time_point job_ended{};
  double tokens_per_byte = 0.25;
  int ending = 0;  ///< jobs whose last events are being handed out
  JobId last_id = 0;
  bool draining = false;

  std::optional<TaskQueue> workers;  ///< tokenising
  std::optional<TaskQueue> files;    ///< sessions, which must not wait for a long text
  std::jthread stepper;              ///< the last to begin, the first to end

  std::shared_ptr<HostJob> job_make(Job job, OnEvent on_event) const;
  bool cancel(JobId id);
  bool finish(JobId id);
  JobPtr job_find(JobId id) const;
  void drain(std::chrono::duration<double> most);
  void require_running() const;          ///< with the lock held
  void require_room(std::size_t bytes);  ///< with the lock held
  int retry_seconds() const;             ///< with the lock held
  void post(std::function<void()> task);
  void run(const std::stop_token& stop);
  std::vector<std::int32_t> prompt_tokens(const Job& job) const;
  std::optional<CacheLook> cache_look(std::string_view name, std::int64_t first, std::int64_t last);

  // host_job.cpp
  /// Works on a job; what is thrown ends it.
  void attempt(const JobPtr& job, const std::function<void()>& work);
  void prepare(const JobPtr& job);
  void length_check(const Job& job) const;
  void lock_session(const JobPtr& job);
  void load_session(HostJob& job);
  void load_again(const JobPtr& job);
  void start(const JobPtr& job);
  std::optional<Session> beginning(HostJob& job, std::span<const std::int64_t> cuts);
  void request(const JobPtr& job, int choice, std::optional<Session> session,
               std::vector<std::int64_t> cuts);

  // host_reply.cpp
  RequestCallbacks callbacks(const JobPtr& job, int choice);
  void begun(HostJob& job);
  bool report(HostJob& job, PrefillProgress progress);
  void at_cut(const JobPtr& job, Session& session);
  void show(HostJob& job);
  void remember_reply(const HostJob& job, std::span<const std::int32_t> reply);
  void piece(HostJob& job, int choice, const GeneratePiece& piece);
  void finished(const JobPtr& job, int choice, RequestResult result);
  void close(const JobPtr& job);
  void save(const JobPtr& job);
  void fail(const JobPtr& job, ApiError error);
  void end_cancelled(const JobPtr& job);
  void leave_queue(HostJob& job);
  /// Ends a job with these events; nothing happens where it is over.
  void end(HostJob& job, std::vector<JobEvent> last, std::int64_t HostCounts::*count);
};

inline ApiError refusal(int status, std::string message, std::string param = {},
                        int retry_after = 0) {
  return {status, {}, std::move(message), std::move(param), retry_after, {}};
}

}  // namespace lca::server
