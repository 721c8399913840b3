// The host's edge: admission, cancelling, draining, and the thread that steps.

#include "server/host/host.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "core/error.h"
#include "engine/engine_state.h"
#include "engine/session_state.h"
#include "models/model_state.h"
#include "server/host/host_state.h"

namespace lca::server {
namespace {

constexpr int kWorkers = 2;
constexpr double kLongestRetry = 120;

/// Most prompt tokens of a step on the CPU, and sessions that run together there. Who streams waits
/// for a step between two tokens, so that it must be short; 1,024 tokens are read a sixth faster
/// and take a second. The number is the same whatever runs: other chunks lead to other bits.
constexpr std::int64_t kStepPromptCpu = 192;
constexpr std::int64_t kSessionsCpu = 64;

std::size_t prompt_bytes(const Job& job) {
  if (const auto* text = std::get_if<std::string>(&job.prompt)) return text->size();
  if (const auto* ids = std::get_if<std::vector<std::int32_t>>(&job.prompt)) {
    return ids->size() * sizeof(std::int32_t);
  }
  std::size_t bytes = 0;
  for (const Message& message : std::get<std::vector<Message>>(job.prompt)) {
    bytes += message.role.size() + message.text.size();
    for (const ToolCall& call : message.calls) bytes += call.name.size() + call.arguments.size();
  }
  return bytes;
}

/// What is queued besides the prompt (tools, schemas) came in the body too.
std::size_t bytes_of(const Job& job) { return std::max(prompt_bytes(job), job.body_bytes); }

std::optional<ChatTemplate> chat_of(const Model& model, const HostOptions& options) {
  if (options.chat) return options.chat;
  if (options.tokenizer) return std::nullopt;  // the model's would write other tokens
  try {
    return model.chat();
  } catch (const Error&) {
    return std::nullopt;  // jobs with messages are refused
  }
}

/// Kept beginnings lie outside the engine's memory.
HostOptions options_complete(const Model& model, HostOptions options) {
  std::size_t all = options.engine.memory_bytes;
  if (all == 0) all = model.state().backend->memory_free();
  if (!options.prefix_cache) {
    options.prefix_bytes = 0;
  } else if (options.prefix_bytes == 0) {
    options.prefix_bytes = all / 4;
  }
  if (options.prefix_bytes >= all) {
    fail_input("{} MiB for kept beginnings of prompts leave nothing of {} MiB for requests",
               options.prefix_bytes >> 20, all >> 20);
  }
  options.engine.memory_bytes = all - options.prefix_bytes;
  if (options.cut_distance < 1) fail_input("cut_distance must be 1 or more");
  EngineOptions& engine = options.engine;
  if (model.info().device == "cpu" && engine.step_tokens == 0) {
    if (engine.most_sessions == 0) engine.most_sessions = kSessionsCpu;
    engine.step_tokens =
        engine.most_sessions + (options.session.chunk > 0 ? options.session.chunk : kStepPromptCpu);
  }
  return options;
}

}  // namespace

EngineHost::State::State(std::shared_ptr<const Model> the_model, Context& the_context,
                         HostOptions wanted)
    : model(std::move(the_model)),
      context(the_context),
      options(options_complete(*model, std::move(wanted))),
      tokenizer(options.tokenizer ? *options.tokenizer : model->tokenizer()),
      chat(chat_of(*model, options)),
      most_tokens(options.context > 0 ? options.context : model->info().context),
      engine(model, context, options.engine),
      prefix(options.prefix_bytes) {
  if (chat) turns = turn_tokens(tokenizer, *chat);
  if (!options.sessions.empty()) store.emplace(options.sessions);
  engine.state().tokenizer = options.tokenizer;
  whole_prompts = waits_for_prompt(settings_per_layer(*model, options.session));
  if (store && whole_prompts) {
    fail_input(
        "sessions cannot be kept where a group is scored at the prompt's end; use --summary "
        "streaming, or leave out the folder for sessions");
  }
  workers.emplace(kWorkers);
  files.emplace(kWorkers);
  stepper = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

EngineHost::State::~State() {
  drain({});
  stepper.request_stop();
  stepper.join();
  workers.reset();
  files.reset();
}

// --- the engine's thread ------------------------------------------------------------------------

void EngineHost::State::post(std::function<void()> task) {
  {
    const std::lock_guard guard(mutex);
    posted.push_back(std::move(task));
  }
  changed.notify_all();
}

void EngineHost::State::run(const std::stop_token& stop) {
  bool more = false;
  while (!stop.stop_requested()) {
    std::deque<std::function<void()>> tasks;
    {
      std::unique_lock lock(mutex);
      if (!more) changed.wait(lock, stop, [this] { return !posted.empty(); });
      tasks.swap(posted);
    }
    for (const std::function<void()>& task : tasks) task();
    const auto begin = HostJob::Clock::now();
    try {
      more = engine.step();
    } catch (const Error&) {
      // Someone else uses the context, against the rules: the step is repeated.
      more = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    const double seconds = std::chrono::duration<double>(HostJob::Clock::now() - begin).count();
    const EngineCounts now = engine.counts();
    const PrefixCounts kept = prefix.counts();
    if (std::exchange(evicted, kept.evicted) != kept.evicted) {
      live.prune([this](std::uint64_t hash) { return prefix.holds_hash(hash); });
    }
    const std::lock_guard guard(mutex);
    if (now.step_prefilled > 0) token_rate.add(static_cast<double>(now.step_prefilled), seconds);
    counts.prefix = kept;
  }
}

// --- the edge -----------------------------------------------------------------------------------

int EngineHost::State::retry_seconds() const {
  const double tokens = static_cast<double>(counts.queued_bytes) * tokens_per_byte;
  const double reading = token_rate.value() > 0 ? tokens / token_rate.value() : 0;
  const double leaving =
      job_rate.value() > 0 ? static_cast<double>(counts.queued) / job_rate.value() : 0;
  // Until half of what is queued is taken up.
  return static_cast<int>(
      std::ceil(std::clamp(std::max(reading, leaving) / 2, 1.0, kLongestRetry)));
}

void EngineHost::State::require_running() const {
  if (!draining) return;
  throw ApiException(refusal(503, "the server is shutting down and takes no more requests", {}, 5));
}

void EngineHost::State::require_room(std::size_t bytes) {
  require_running();
  const bool full = counts.queued >= options.most_queued ||
                    (counts.queued > 0 && counts.queued_bytes + bytes > options.most_queued_bytes);
  if (!full) return;
  ++counts.refused;
  const int seconds = retry_seconds();
  throw ApiException(refusal(
      429, fmt::format("{} requests are waiting; try again in {} s", counts.queued, seconds), {},
      seconds));
}

EngineHost::State::JobPtr EngineHost::State::job_make(Job job, OnEvent on_event) const {
  auto made = std::make_shared<HostJob>();
  made->bytes = bytes_of(job);
  if (job.n < 1) throw ApiException(refusal(400, "n must be 1 or more", "n"));
  if (job.continue_last && !std::holds_alternative<std::vector<Message>>(job.prompt)) {
    throw ApiException(refusal(400, "only a message can be continued", "continue_final_message"));
  }
  if (store && !job.session.empty() && job.echo) {
    throw ApiException(refusal(400,
                               "an echo reads all of its prompt and keeps nothing: send it "
                               "without a session",
                               "echo"));
  }
  if (!job.session.empty() && !SessionStore::is_name(job.session)) {
    throw ApiException(refusal(400,
                               "the session's name takes 1 to 64 letters, digits, '_', '-' and "
                               "'.', and does not begin with '.'",
                               "metadata.session"));
  }
  if (!job.seeded) {
    std::random_device device;
    job.generate.sampling.seed = (std::uint64_t{device()} << 32) | device();
  }
  made->saved = store && !job.session.empty();
  made->job = std::move(job);
  made->on_event = std::move(on_event);
  return made;
}

EngineHost::State::JobPtr EngineHost::State::job_find(JobId id) const {
  const std::lock_guard guard(mutex);
  const auto found = jobs.find(id);
  return found == jobs.end() ? nullptr : found->second;
}

bool EngineHost::State::cancel(JobId id) {
  const JobPtr job = job_find(id);
  if (!job) return false;
  Job unread;  // its memory goes with its place in the queue, and without the lock
  leave_queue(*job);
  const std::lock_guard guard(job->mutex);
  job->cancelled = true;
  if (!job->taken) {
    std::swap(unread.prompt, job->job.prompt);
    std::swap(unread.tools, job->job.tools);
    std::swap(unread.rule, job->job.rule);
    std::swap(unread.grammar, job->job.grammar);
  }
  for (const RequestId request : job->requests) engine.cancel(request);
  return true;
}

bool EngineHost::State::finish(JobId id) {
  const JobPtr job = job_find(id);
  if (!job) return false;
  const std::lock_guard guard(job->mutex);
  job->complete = true;
  for (const RequestId request : job->requests) engine.cancel(request);
  return true;
}

void EngineHost::State::drain(std::chrono::duration<double> most) {
  std::vector<JobId> left;
  {
    std::unique_lock lock(mutex);
    draining = true;
    const auto is_over = [this] { return jobs.empty() && ending == 0; };
    if (changed.wait_for(lock, most, is_over)) return;
    for (const auto& [id, job] : jobs) left.push_back(id);
  }
  for (const JobId id : left) cancel(id);
  std::unique_lock lock(mutex);
  changed.wait(lock, [this] { return jobs.empty() && ending == 0; });
}

std::vector<std::int32_t> EngineHost::State::prompt_tokens(const Job& job) const {
  if (options.hooks.prompt) {
    std::vector<std::int32_t> ids = options.hooks.prompt(job);
    if (!ids.empty()) return ids;
  }
  if (const auto* ids = std::get_if<std::vector<std::int32_t>>(&job.prompt)) return *ids;
  if (const auto* text = std::get_if<std::string>(&job.prompt)) {
    return tokenizer.encode(*text, {.add_special = true});
  }
  if (!chat) {
    fail_input("this model's chat template is of no known kind: use completions instead");
  }
  if (!job.tools.empty()) fail_input("this model's chat format has no tools");
  std::vector<ChatMessage> messages;
  for (const Message& message : std::get<std::vector<Message>>(job.prompt)) {
    ChatMessage made{ChatMessage::Role::user, message.text};
    if (message.role == "system") {
      made.role = ChatMessage::Role::system;
    } else if (message.role == "assistant") {
      made.role = ChatMessage::Role::assistant;
    } else if (message.role != "user") {
      fail_input("this model's chat format has no role \"{}\"", message.role);
    }
    messages.push_back(std::move(made));
  }
  return job.continue_last ? chat->prompt_open(messages) : chat->prompt(messages);
}

std::optional<CacheLook> EngineHost::State::cache_look(std::string_view name, std::int64_t first,
                                                       std::int64_t last) {
  if (!SessionStore::is_name(name)) return std::nullopt;
  if (auto found = live.running(name, first, last)) return found;
  const std::optional<FileStamp> file = store ? store->stamp(name) : std::nullopt;
  if (file || !store) {
    if (auto found = live.kept(name, file, first, last)) return found;
  }
  if (file) {
    try {
      std::vector<std::int32_t> tokens;
      CacheLook look{store->facts(name, &tokens), {}};
      look.text = tokens_between(tokens, first, last);
      live.keep(name, look.view, std::move(tokens), *file);
      return look;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::not_found) throw;  // it was just deleted
    }
  }
  const std::lock_guard guard(mutex);
  const auto is_its = [&](const auto& row) { return row.second->job.session == name; };
  if (std::ranges::any_of(jobs, is_its)) return CacheLook();
  return std::nullopt;
}

EngineHost::EngineHost(std::shared_ptr<const Model> model, Context& context, HostOptions options)
    : state_(std::make_unique<State>(std::move(model), context, std::move(options))) {}
EngineHost::~EngineHost() = default;

EngineHost::Admission::Admission(Admission&& other) noexcept
    : host_(other.host_),
      jobs_(std::exchange(other.jobs_, 0)),
      bytes_(std::exchange(other.bytes_, 0)) {}

EngineHost::Admission::~Admission() {
  if (jobs_ == 0 && bytes_ == 0) return;
  const std::lock_guard guard(host_->mutex);
  host_->counts.queued -= jobs_;
  host_->counts.queued_bytes -= bytes_;
}

EngineHost::Admission EngineHost::admit(std::span<const Job> jobs) {
  std::size_t bytes = 0;
  for (const Job& job : jobs) bytes += bytes_of(job);
  Admission made(*state_);
  const std::lock_guard guard(state_->mutex);
  state_->require_room(bytes);
  made.jobs_ = std::ssize(jobs);
  made.bytes_ = bytes;
  state_->counts.queued += made.jobs_;
  state_->counts.queued_bytes += bytes;
  return made;
}

JobId EngineHost::submit(Job job, OnEvent on_event, Admission& admitted) {
  const auto made = state_->job_make(std::move(job), std::move(on_event));
  {
    const std::lock_guard guard(state_->mutex);
    state_->require_running();
    made->id = ++state_->last_id;
    state_->jobs.emplace(made->id, made);
    // It takes over its place, and its bytes, which preparing it may have changed.
    --admitted.jobs_;
    made->bytes = std::min(made->bytes, admitted.bytes_);
    admitted.bytes_ -= made->bytes;
  }
  state_->workers->post([state = state_.get(), made] { state->prepare(made); });
  return made->id;
}

JobId EngineHost::submit(Job job, OnEvent on_event) {
  Admission admitted = admit(std::span(&job, 1));
  return submit(std::move(job), std::move(on_event), admitted);
}
bool EngineHost::cancel(JobId id) { return state_->cancel(id); }
bool EngineHost::finish(JobId id) { return state_->finish(id); }
void EngineHost::drain(std::chrono::duration<double> most) { state_->drain(most); }
SessionStore* EngineHost::sessions() { return state_->store ? &*state_->store : nullptr; }
std::optional<CacheView> EngineHost::cache_view(std::string_view session) const {
  const auto found = state_->cache_look(session, 0, -1);
  return found ? std::optional(found->view) : std::nullopt;
}
std::optional<TokenRange> EngineHost::cache_text(std::string_view session, std::int64_t first,
                                                 std::int64_t last) const {
  auto found = state_->cache_look(session, first, last);
  return found ? std::optional(std::move(found->text)) : std::nullopt;
}
bool EngineHost::continues() const { return state_->chat.has_value(); }
const TurnTokens& EngineHost::turns() const { return state_->turns; }
std::int64_t EngineHost::context_tokens() const { return state_->most_tokens; }
double EngineHost::lock_seconds() const { return state_->options.lock_seconds; }
std::vector<std::int32_t> EngineHost::prompt_tokens(const Job& job) const {
  return state_->prompt_tokens(job);
}

HostCounts EngineHost::counts() const {
  HostCounts made;
  {
    const std::lock_guard guard(state_->mutex);
    made = state_->counts;
    made.prefill_rate = state_->token_rate.value();
  }
  made.engine = state_->engine.counts();
  return made;
}

}  // namespace lca::server
