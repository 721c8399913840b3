// A reply with calls as it is kept beside a session: what the client was told.

#include "server/app/served_model.h"

#include <gtest/gtest.h>

namespace lca::server {
namespace {

const std::string kOneCall = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";

Job calling_job(bool is_parallel) {
  Job job;
  job.tools = {{.name = "f", .description = ""}};
  job.parallel_calls = is_parallel;
  job.call_ids = "call_1234";
  return job;
}

TEST(ReplyMessage, HasTheIdsThatWereSent) {
  const Message message =
      reply_message(ToolFormat::qwen25, calling_job(true), "Look:\n" + kOneCall + "\n" + kOneCall);
  EXPECT_EQ(message.role, "assistant");
  EXPECT_EQ(message.text, "Look:");
  ASSERT_EQ(message.calls.size(), 2U);
  EXPECT_EQ(message.calls[0].id, "call_12340_0");
  EXPECT_EQ(message.calls[1].id, "call_12340_1");
  EXPECT_EQ(message.calls[0].name, "f");
}

TEST(ReplyMessage, EndsWithTheOnlyCallThatWasWanted) {
  for (const std::string& rest : {kOneCall, kOneCall.substr(0, 15), std::string("more")}) {
    const Message message =
        reply_message(ToolFormat::qwen25, calling_job(false), "Look:\n" + kOneCall + "\n" + rest);
    EXPECT_EQ(message.text, "Look:") << rest;
    EXPECT_EQ(message.calls.size(), 1U) << rest;
  }
}

TEST(ReplyMessage, WithoutCallsIsItsText) {
  const Message message = reply_message(ToolFormat::qwen25, calling_job(false), "a <tool_call> b");
  EXPECT_EQ(message.text, "a <tool_call> b");
  EXPECT_TRUE(message.calls.empty());
}

}  // namespace
}  // namespace lca::server
