// Replies that go on with the conversation's last message.

#include "server/api/request.h"
#include "server/host/host_bench.h"

namespace lca::test {
namespace {

using server::Job;
using server::Json;

Job continued(const Talk& talk, std::int64_t tokens = 12) {
  Job job = HostBench::chat(talk, tokens);
  job.continue_last = true;
  return job;
}

/// Replies of digits, which have one spelling.
server::HostOptions digits_only() {
  server::HostOptions options = HostBench::usual();
  options.hooks.adjust = [](const Job&, int, std::int64_t) {
    return [](std::span<const std::int32_t>, std::span<float> logits) {
      const std::int32_t zero = HostBench::usual().tokenizer->encode("0").at(0);
      for (std::int32_t id = 0; id < std::ssize(logits); ++id) {
        if (id >= zero && id < zero + 10) continue;
        logits[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
      }
    };
  };
  return options;
}

TEST(Continue, TheReplyGoesOnWhereTheMessageEnds) {
  HostBench bench(digits_only());
  EXPECT_TRUE(bench.host.continues());
  const Tokenizer tokenizer = *HostBench::usual().tokenizer;
  const Talk asked = {{"user", "tell me"}};
  const auto prompt = bench.host.prompt_tokens(HostBench::chat(asked));
  ASSERT_TRUE(tokenizer.decode(prompt, true).ends_with("assistant\n"));

  Job job = HostBench::chat(asked, 30);
  job.generate.sampling.temperature = 0;
  const std::string whole = bench.run(job)->text();
  ASSERT_EQ(whole.size(), 30u);
  for (const std::size_t cut : {1u, 10u, 29u}) {
    const std::string first = whole.substr(0, cut);
    Job rest = continued({asked[0], {"assistant", first}}, 30 - static_cast<std::int64_t>(cut));
    rest.generate.sampling.temperature = 0;
    EXPECT_EQ(tokenizer.decode(bench.host.prompt_tokens(rest), true),
              tokenizer.decode(prompt, true) + first);
    const auto went_on = bench.run(rest);
    ASSERT_EQ(went_on->status(), 200);
    EXPECT_EQ(first + went_on->text(), whole);
    EXPECT_EQ(went_on->last().usage.prompt, std::ssize(prompt) + static_cast<std::int64_t>(cut));
  }
}

TEST(Continue, TheWholeMessageIsFoundAgainInTheNextTurn) {
  const ScratchFolder folder;
  server::HostOptions options = with_sessions(folder);
  options.sessions.clear();
  HostBench bench(options);
  Talk talk = {{"user", long_text(300)}, {"assistant", "it was th"}};
  const auto reply = bench.run(continued(talk));
  ASSERT_EQ(reply->status(), 200);
  talk[1].second += reply->text();
  talk.emplace_back("user", "and?");
  const auto next = bench.run(HostBench::chat(talk));
  EXPECT_GE(next->last().usage.cached, reply->last().usage.prompt + 12);
}

TEST(Continue, ASessionKeepsOneMessage) {
  const ScratchFolder folder;
  HostBench bench(with_sessions(folder));
  Job job = continued({{"user", "a"}, {"assistant", "Once "}});
  job.session = "s";
  const auto events = bench.run(job);
  ASSERT_EQ(events->status(), 200);
  const Json kept = *bench.host.sessions()->messages("s");
  ASSERT_EQ(kept["messages"].size(), 2u);
  EXPECT_EQ(kept["messages"][1]["content"], "Once " + events->text());
}

TEST(Continue, WhatCannotBeContinuedIsRefused) {
  HostBench bench;
  EXPECT_EQ(bench.run(continued({{"user", "a"}}))->status(), 400);
  EXPECT_EQ(bench.run(continued({{"assistant", "a"}}))->status(), 400);
  Job text = HostBench::ids(10, 1);
  text.continue_last = true;
  EXPECT_THROW(bench.submit(text), server::ApiException);

  const auto parsed = [](const char* more) {
    Json body = Json::parse(R"({"messages": [{"role": "user", "content": "a"},
                                {"role": "assistant", "content": "b"}],
                                "continue_final_message": true})");
    body.update(Json::parse(more));
    return server::parse_chat(body, "").jobs.at(0);
  };
  EXPECT_TRUE(parsed("{}").continue_last);
  EXPECT_FALSE(parsed(R"({"continue_final_message": false})").continue_last);
  EXPECT_FALSE(parsed(R"({"continue_final_message": null})").continue_last);
  for (
      const char* bad :
      {R"({"messages": [{"role": "assistant", "content": "b"}]})",
       R"({"messages": [{"role": "assistant", "content": "b"}, {"role": "user", "content": "a"}]})",
       R"({"messages": [{"role": "user", "content": "b"}, {"role": "assistant", "tool_calls":
            [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]})",
       R"({"response_format": {"type": "json_object"}})",
       R"({"tools": [{"type": "function", "function": {"name": "f"}}]})",
       R"({"continue_final_message": 1})"}) {
    try {
      parsed(bad);
      FAIL() << bad;
    } catch (const server::ApiException& error) {
      EXPECT_EQ(error.error().status, 400);
      EXPECT_NE(std::string(error.what()).find("continue_final_message"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace lca::test
