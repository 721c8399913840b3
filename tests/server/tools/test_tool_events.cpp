#include "server/tools/tool_events.h"

#include <gtest/gtest.h>

namespace lca::server {
namespace {

using EventKind = JobEvent::Kind;

Job job_of(int n, bool is_parallel) {
  Job job;
  job.tools = {{.name = "f", .description = ""}};
  job.n = n;
  job.parallel_calls = is_parallel;
  return job;
}

JobEvent event_of(EventKind kind, int choice = 0, std::string text = {}) {
  JobEvent event;
  event.kind = kind;
  event.choice = choice;
  event.text = std::move(text);
  return event;
}

std::string shown(const std::vector<JobEvent>& events) {
  std::string line;
  for (const JobEvent& event : events) {
    line += std::to_string(event.choice);
    if (event.kind == EventKind::piece) line += "'" + event.text + "' ";
    if (event.kind == EventKind::call) line += "[" + event.call.id + " " + event.call.name + "] ";
    if (event.kind == EventKind::done) line += "done ";
    if (event.kind == EventKind::progress) line += "progress ";
    if (event.kind == EventKind::failed) line += "failed ";
  }
  return line;
}

const std::string kCallText = "<tool_call>{\"name\": \"f\"}</tool_call>";

TEST(ToolEventStreams, TurnPiecesIntoPiecesAndCallsPerChoice) {
  ToolEvents events(ToolFormat::qwen25, job_of(2, true), "call_x");
  EXPECT_EQ(shown(events.take(event_of(EventKind::progress))), "0progress ");
  EXPECT_EQ(shown(events.take(event_of(EventKind::piece, 0, "Hi <tool_call>{\"na"))), "0'Hi ' ");
  EXPECT_EQ(shown(events.take(event_of(EventKind::piece, 1, kCallText + "\n" + kCallText))),
            "1[call_x1_0 f] 1[call_x1_1 f] ");
  EXPECT_EQ(shown(events.take(event_of(EventKind::piece, 0, "me\": \"f\"}"))), "0[call_x0_0 f] ");
  EXPECT_EQ(shown(events.take(event_of(EventKind::piece, 0, "\n"))), "");
  EXPECT_EQ(shown(events.take(event_of(EventKind::done, 0))), "0done ");
  EXPECT_EQ(shown(events.take(event_of(EventKind::piece, 1, " and <tool_"))), "1' and ' ");
  EXPECT_EQ(shown(events.take(event_of(EventKind::done, 1))), "1'<tool_' 1done ");
  EXPECT_EQ(shown(events.take(event_of(EventKind::failed))), "0failed ");
}

TEST(ToolEventStreams, ShowOneCallWhereOneIsWanted) {
  ToolEvents events(ToolFormat::qwen25, job_of(1, false), "");
  EXPECT_EQ(shown(events.take(event_of(EventKind::piece, 0, "A\n"))), "0'A' ");
  EXPECT_FALSE(events.is_over(0));
  EXPECT_EQ(shown(events.take(event_of(EventKind::piece, 0, kCallText + kCallText + "B"))),
            "0[0_0 f] ");
  EXPECT_TRUE(events.is_over(0));
  EXPECT_EQ(shown(events.take(event_of(EventKind::piece, 0, "C" + kCallText))), "");
  EXPECT_EQ(shown(events.take(event_of(EventKind::done, 0))), "0done ");
}

TEST(ToolEventStreams, KeepTokensOfWithheldText) {
  ToolEvents events(ToolFormat::qwen25, job_of(1, true), "");
  const auto take = [&](std::string text) {
    JobEvent event = event_of(EventKind::piece, 0, std::move(text));
    event.tokens.resize(1);
    return events.take(event);
  };
  for (const char* text : {"a", "<tool_call>", "{\"name\": \"f\"}", "</tool_call>"}) {
    const std::vector<JobEvent> made = take(text);
    ASSERT_FALSE(made.empty()) << text;
    EXPECT_EQ(made[0].kind, EventKind::piece);
    EXPECT_EQ(made[0].tokens.size(), 1U);
  }
}

}  // namespace
}  // namespace lca::server
