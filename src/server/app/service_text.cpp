// Requests for text: jobs, their events, and the reply.

#include "server/api/request_json.h"
#include "server/app/on_gone.h"
#include "server/app/service_state.h"
#include "server/headers.h"
#include "server/tools/tool_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace lca::server {
namespace {

using namespace std::chrono_literals;

/// How long a refusal may still be told by the status of a streamed reply.
constexpr auto kStatusPatience = 2500ms;
constexpr auto kPatience = 1h;

/// Larger bodies are parsed beside: all connections share a thread.
constexpr std::size_t kQuickBody = 64 << 10;
/// Larger replies, and larger events of streams, are written beside.
constexpr std::size_t kQuickReply = 64 << 10;

ApiRequest request_parse(Route route, const HttpRequest& request) {
  const Json body = json_parse_body(request.body);
  const std::string_view key = header_value(request, "x-smg-routing-key");
  switch (route) {
    case Route::chat:
      return parse_chat(body, key);
    case Route::completions:
      return parse_completions(body, key);
    case Route::responses:
      return parse_responses(body, key);
    default:
      return parse_messages(body, key);
  }
}

/// A body as one line of a log.
std::string body_text(const std::string& body) {
  return Json(body).dump(-1, ' ', true, Json::error_handler_t::replace);
}

/// An event of one of a request's jobs.
struct Arrived {
  std::size_t job = 0;
  JobEvent event;
};
using Arrivals = Mailbox<Arrived>;

/// The jobs of one request. Leaving it cancels those that are not over.
class Jobs {
 public:
  Jobs(EngineHost& host, std::shared_ptr<Arrivals> box) : host_(host), box_(std::move(box)) {}
  ~Jobs() { cancel(); }
  Jobs(const Jobs&) = delete;
  Jobs& operator=(const Jobs&) = delete;

  void submit(Job job, EngineHost::Admission& admitted) {
    const std::size_t number = ids_.size();
    const auto push = [box = box_, number](JobEvent event) {
      box->push({number, std::move(event)});
    };
    ids_.push_back(host_.submit(std::move(job), push, admitted));
  }
  void cancel() {
    for (const JobId id : ids_) host_.cancel(id);
  }
  void finish(std::size_t job) { host_.finish(ids_[job]); }

 private:
  EngineHost& host_;
  std::shared_ptr<Arrivals> box_;
  std::vector<JobId> ids_;
};

/// What a stream's comments say while nothing else does.
struct Waiting {
  std::string text = "queued";

  void take(const JobEvent& event) {
    if (event.kind == JobEvent::Kind::progress) {
      text = progress_text(event);
    } else if (event.kind == JobEvent::Kind::started) {
      text = "reading";
    } else {
      text = "waiting";
    }
  }
};

/// The events of one request as the text of its reply.
class Writing {
 public:
  Writing(const ApiRequest& request, const ServedModel& model, ReplyInfo info)
      : reply_(reply_begin(request, info)) {
    for (const Job& job : request.jobs) {
      choices_.push_back(job.n);
      if (job.tools.empty()) {
        tools_.emplace_back();
      } else {
        tools_.emplace_back(std::in_place, model.tool_format(), job, job.call_ids);
      }
    }
  }

  std::string take(Arrived arrived) {
    std::optional<ToolEvents>& tools = tools_[arrived.job];
    if (!tools) return reply_->feed(arrived.job, std::move(arrived.event));
    // A reply that was cut after its only call is whole.
    JobEvent& event = arrived.event;
    if (event.kind == JobEvent::Kind::done && tools->is_over(event.choice)) {
      event.reason = StopReason::end_token;
    }
    std::string text;
    for (JobEvent& each : tools->take(std::move(event))) {
      text += reply_->feed(arrived.job, std::move(each));
    }
    return text;
  }
  /// Whether nothing more of a job will be shown.
  bool is_over(std::size_t job) const {
    if (!tools_[job]) return false;
    for (int choice = 0; choice < choices_[job]; ++choice) {
      if (!tools_[job]->is_over(choice)) return false;
    }
    return true;
  }
  const Reply& reply() const { return *reply_; }

 private:
  std::unique_ptr<Reply> reply_;
  std::vector<int> choices_;
  std::vector<std::optional<ToolEvents>> tools_;
};

}  // namespace

asio::awaitable<void> Service::State::answer_text(HttpRequest& request, ResponseWriter& writer,
                                                  Route route) {
  require_open();
  const std::size_t bytes = request.body.size();
  ApiRequest asked;
  const std::function<void()> parse = [&] {
    if (options.log_prompts && options.log) options.log(body_text(request.body));
    asked = request_parse(route, request);
  };
  if (bytes > kQuickBody) {
    const Aside::Place place(aside, bytes);
    const bool here = co_await aside.run(parse, writer);
    if (!here) co_return;
  } else {
    parse();
  }
  std::string().swap(request.body);  // as long as the reply takes, it would be held
  ServedModel& chosen = served(asked.model);
  bool slow = false;
  for (Job& job : asked.jobs) {
    job.body_bytes = bytes / asked.jobs.size();
    if (&chosen != model.get()) job.session.clear();  // sessions are the model's alone
    slow = slow || has_grammar(job);
  }
  // Before anything that costs. A schema that waits for its turn has its place in the queue.
  EngineHost::Admission admitted = chosen.host().admit(asked.jobs);
  const std::function<void()> prepare = [&] {
    for (Job& job : asked.jobs) chosen.prepare(job);
  };
  if (slow) {
    const bool here = co_await aside.run(prepare, writer);
    if (!here) co_return;
  } else {
    prepare();
  }

  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string id = random_id();
  for (Job& job : asked.jobs) job.call_ids = "call_" + id.substr(0, 8);
  Writing writing(asked, chosen,
                  {.id = id,
                   .created = std::chrono::duration_cast<std::chrono::seconds>(now).count(),
                   .model = chosen.name()});
  const auto inbox = Arrivals::make(writer.executor());
  Jobs jobs(chosen.host(), inbox.box());
  for (Job& job : asked.jobs) jobs.submit(std::move(job), admitted);
  const auto leave = [&jobs, box = inbox.box()] {
    jobs.cancel();
    box->close();
  };
  std::optional<OnGone> leaving(std::in_place, writer, leave);
  const auto waiting = std::make_shared<Waiting>();
  writer.idle_comment([waiting] { return waiting->text; });

  bool begun = false;
  const auto deadline = std::chrono::steady_clock::now() + kStatusPatience;
  while (!writing.reply().over() && !writer.gone()) {
    auto patience = std::chrono::steady_clock::duration(kPatience);
    if (asked.stream && !begun) {
      patience = std::max(deadline - std::chrono::steady_clock::now(),
                          std::chrono::steady_clock::duration(1ms));
    }
    std::optional<Arrived> arrived = co_await inbox.pop(patience);
    std::string text;
    if (arrived) {
      waiting->take(arrived->event);
      const std::size_t job = arrived->job;
      const bool large = asked.stream && event_bytes(arrived->event) > kQuickReply;
      const std::function<void()> render = [&] { text = writing.take(std::move(*arrived)); };
      if (large) {
        leaving.reset();
        const bool here = co_await aside.run(render, writer);
        if (!here) co_return;
        leaving.emplace(writer, leave);
      } else {
        render();
      }
      if (writing.is_over(job)) jobs.finish(job);
    } else if (!asked.stream || begun) {
      continue;
    }
    const bool failed = writing.reply().error().has_value();
    if (!asked.stream || (failed && !begun)) continue;
    if (!begun) {
      begun = true;
      co_await writer.begin_stream();
    }
    if (!text.empty()) co_await writer.write(std::move(text));
  }
  if (writer.gone()) co_return;
  if (begun) {
    co_await writer.end_stream();
    co_return;
  }
  if (writing.reply().error()) throw ApiException(*writing.reply().error());
  std::string body;
  const std::function<void()> render = [&] { body = writing.reply().body(); };
  leaving.reset();
  if (writing.reply().body_bytes() > kQuickReply) {
    const bool here = co_await aside.run(render, writer);
    if (!here) co_return;
  } else {
    render();
  }
  co_await writer.send(200, "application/json", std::move(body));
}

}  // namespace lca::server
