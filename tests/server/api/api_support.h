#pragma once
/// What the tests of the API layer share.

#include "server/api/reply.h"
#include "server/api/request.h"
#include "server/api/request_json.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace lca::server::test {

/// The error that `work` throws; a failure where it throws none.
template <typename Work>
ApiError error_from(const Work& work) {
  try {
    work();
  } catch (const ApiException& exception) {
    return exception.error();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

inline JobEvent started(std::int64_t prompt, std::int64_t cached = 0) {
  JobEvent event;
  event.kind = JobEvent::Kind::started;
  event.usage.prompt = prompt;
  event.usage.cached = cached;
  return event;
}

inline JobEvent piece(std::string text, int choice = 0, std::vector<TokenDetail> tokens = {}) {
  JobEvent event;
  event.kind = JobEvent::Kind::piece;
  event.choice = choice;
  event.text = std::move(text);
  event.tokens = std::move(tokens);
  return event;
}

inline JobEvent call(ToolCallPiece part, int choice = 0) {
  JobEvent event;
  event.kind = JobEvent::Kind::call;
  event.choice = choice;
  event.call = std::move(part);
  return event;
}

inline JobEvent done(Usage usage, lca::StopReason reason = lca::StopReason::end_token,
                     int choice = 0, std::string stop = "") {
  JobEvent event;
  event.kind = JobEvent::Kind::done;
  event.choice = choice;
  event.usage = usage;
  event.reason = reason;
  event.stop = std::move(stop);
  return event;
}

inline JobEvent failed(int status, std::string message) {
  JobEvent event;
  event.kind = JobEvent::Kind::failed;
  event.error.emplace();
  event.error->status = status;
  event.error->message = std::move(message);
  return event;
}

inline TokenDetail token(std::string bytes, std::optional<float> logprob,
                         std::vector<TokenText> top = {}) {
  TokenDetail detail;
  detail.bytes = std::move(bytes);
  detail.logprob = logprob;
  detail.top = std::move(top);
  return detail;
}

inline ReplyInfo info() { return {.id = "1", .created = 1700000000, .model = "tiny"}; }

/// All that a stream sends for the events of one job.
inline std::string stream_of(Reply& reply, const std::vector<JobEvent>& events) {
  std::string text;
  for (const JobEvent& event : events) text += reply.feed(0, event);
  return text;
}

/// The JSON of every event; "[DONE]" as a string. Comments are left out.
inline std::vector<Json> stream_data(std::string_view text) {
  std::vector<Json> list;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    if (line.starts_with("data: ")) {
      const std::string_view data = line.substr(6);
      list.push_back(data == "[DONE]" ? Json("[DONE]") : Json::parse(data));
    }
    text = end == std::string_view::npos ? "" : text.substr(end + 1);
  }
  return list;
}

}  // namespace lca::server::test
