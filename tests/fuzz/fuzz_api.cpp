// Any bytes as the body of every route. Besides the sanitizers' checks: only ApiException with
// status 400 is thrown, each a single printable line; what is accepted is what the JSON library's
// own parser makes of it and within its limits, and a reply to it is JSON, streamed or not. The
// first byte chooses the route and how the job ends.

#include "server/api/reply.h"
#include "server/api/request.h"
#include "server/api/request_json.h"
#include "server/api/token_text.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

using namespace lca::server;

void need(bool holds) {
  if (!holds) std::abort();
}

void check_refusal(const ApiError& error) {
  need(error.status == 400);
  need(!error.message.empty() && error.message.size() < 1000);
  for (const char c : error.message) need(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
}

void check_jobs(const ApiRequest& request) {
  need(!request.jobs.empty() && request.jobs.size() <= 1024);
  for (const Job& job : request.jobs) {
    const lca::Sampling& sampling = job.generate.sampling;
    need(job.n >= 1 && job.n <= 128 && job.generate.max_tokens >= 0);
    need(sampling.temperature >= 0 && sampling.temperature <= 2);
    need(sampling.top_p > 0 && sampling.top_p <= 1 && sampling.top_k >= 0);
    need(job.session.empty() || session_name_valid(job.session));
    need(job.generate.top_logprobs >= 0 && job.generate.top_logprobs <= 20);
    for (const std::string& stop : job.generate.stops) need(!stop.empty());
  }
}

/// Every line of a stream is a comment, a name, JSON data or empty.
void check_sse(std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    need(end != std::string_view::npos);
    const std::string_view line = text.substr(0, end);
    if (line.starts_with("data: ")) {
      const std::string_view data = line.substr(6);
      need(data == "[DONE]" || Json::accept(data));
    } else {
      need(line.empty() || line.starts_with("event: ") || line.starts_with(": "));
    }
    text.remove_prefix(end + 1);
  }
}

/// Events made from the same bytes: text, tokens and calls that may be anything.
void check_reply(const ApiRequest& request, std::string_view bytes, bool fails) {
  const auto reply = reply_begin(request, {.id = "1", .created = 1, .model = "m"});
  std::string sent;
  for (std::size_t job = 0; job < request.jobs.size() && job < 4; ++job) {
    JobEvent event;
    event.kind = JobEvent::Kind::started;
    sent += reply->feed(job, event);
    for (int choice = 0; choice < request.jobs[job].n && choice < 4; ++choice) {
      for (const char c : bytes.substr(0, 32)) {
        event = JobEvent{};
        event.choice = choice;
        event.kind = static_cast<JobEvent::Kind>(2 + (static_cast<unsigned char>(c) % 3));
        event.text = std::string(1, c);
        event.tokens.emplace_back();
        event.tokens.back().bytes = event.text;
        event.tokens.back().logprob = static_cast<float>(c) * 1e37F;
        event.call.index = c % 3;
        event.call.name = event.text;
        event.call.arguments = std::string(bytes.substr(0, 5));
        sent += reply->feed(job, event);
      }
      event = JobEvent{};
      event.choice = choice;
      event.kind = fails ? JobEvent::Kind::failed : JobEvent::Kind::done;
      event.stop = std::string(bytes.substr(0, 3));
      event.reason = static_cast<lca::StopReason>(bytes.size() % 4);
      sent += reply->feed(job, event);
    }
  }
  need(request.stream || sent.empty());
  check_sse(sent);
  if (reply->over() && !reply->error()) need(Json::accept(reply->body()));
}

/// Our reader makes what the library's parser makes, and refuses no more than what is too deep.
void check_read(std::string_view text) {
  const JsonRead read = json_read(text, kJsonOfModel);
  const Json value = Json::parse(text, nullptr, false);
  if (read.fault.empty()) {
    need(!value.is_discarded() && read.value.dump() == value.dump());
  } else {
    need(value.is_discarded() || read.fault.find("deeper") != std::string::npos);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const int route = data[0] % 8;
  const bool fails = data[0] >= 128;
  check_read(text);
  try {
    const Json body = json_parse_body(text);
    ApiRequest request;
    switch (route) {
      case 0:
        request = parse_chat(body);
        break;
      case 1:
        request = parse_completions(body);
        break;
      case 2:
        request = parse_responses(body);
        break;
      case 3:
        request = parse_messages(body);
        break;
      case 4:
        parse_count_tokens(body);
        return 0;
      case 5:
        parse_tokenize(body);
        return 0;
      case 6:
        parse_detokenize(body);
        return 0;
      default:
        parse_fork(body);
        return 0;
    }
    check_jobs(request);
    check_reply(request, text, fails);
  } catch (const ApiException& exception) {
    check_refusal(exception.error());
  }
  return 0;
}
