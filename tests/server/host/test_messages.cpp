// The text of a session's conversation, kept beside it.

#include "server/host/conversation.h"
#include "server/host/host_bench.h"

namespace lca::test {
namespace {

using server::HostOptions;
using server::Job;
using server::Json;
using server::SessionStore;

Json text_of_talk(const Talk& talk) {
  Json list = Json::array();
  for (const auto& [role, text] : talk) list.push_back({{"role", role}, {"content", text}});
  return {{"messages", list}};
}

TEST(Messages, OutliveTheServerAndFollowTheLastReply) {
  const ScratchFolder folder;
  Talk talk = {{"system", "be brief"}, {"user", long_text(200)}};
  for (int turn = 0; turn < 3; ++turn) {
    HostBench bench(with_sessions(folder));
    const auto reply = bench.run(named(talk, "s", static_cast<std::uint64_t>(turn)));
    ASSERT_EQ(reply->status(), 200);
    talk.emplace_back("assistant", reply->text());
    EXPECT_EQ(bench.host.sessions()->messages("s"), text_of_talk(talk));
    EXPECT_EQ(SessionStore(folder / "sessions").messages("s"), text_of_talk(talk));
    talk.emplace_back("user", "and?");
  }
  // They are no session of their own.
  EXPECT_EQ(SessionStore(folder / "sessions").list().size(), 1u);
  EXPECT_FALSE(SessionStore(folder / "sessions").messages("t").has_value());
}

TEST(Messages, AreOnDiskBeforeTheLastEvent) {
  const ScratchFolder folder;
  HostBench bench(with_sessions(folder));
  auto events = std::make_shared<Events>();
  std::optional<Json> then;
  bench.host.submit(named({{"user", "a"}}, "s"), [&](server::JobEvent event) {
    if (event.kind == server::JobEvent::Kind::done) {
      then = SessionStore(folder / "sessions").messages("s");
    }
    events->add(std::move(event));
  });
  ASSERT_TRUE(events->wait());
  EXPECT_EQ(then, text_of_talk({{"user", "a"}, {"assistant", events->text()}}));
}

TEST(Messages, AForkHasTheFirstOfThemAndADeletedSessionNone) {
  const ScratchFolder folder;
  HostBench bench(with_sessions(folder));
  SessionStore& store = *bench.host.sessions();
  Talk talk = {{"system", long_text(60, 2)}, {"user", long_text(300)}, {"user", "why?"}};
  const auto reply = bench.run(named(talk, "a"));
  talk.emplace_back("assistant", reply->text());
  store.fork("a", "b", -1, bench.host.turns());
  EXPECT_EQ(store.messages("b"), text_of_talk(talk));
  store.fork("a", "c", 2, bench.host.turns());
  EXPECT_EQ(store.messages("c"), text_of_talk({talk[0], talk[1]}));
  EXPECT_TRUE(store.remove("a"));
  EXPECT_FALSE(store.messages("a").has_value());
  EXPECT_FALSE(std::filesystem::exists(folder / "sessions" / "a.messages.json"));
  EXPECT_TRUE(store.messages("b").has_value());
}

TEST(Messages, ATextPromptLeavesNone) {
  const ScratchFolder folder;
  HostBench bench(with_sessions(folder));
  bench.run(named({{"user", "a"}}, "s"));
  ASSERT_TRUE(bench.host.sessions()->messages("s").has_value());
  Job job = HostBench::ids(40, 3);
  job.session = "s";
  ASSERT_EQ(bench.run(job)->status(), 200);
  EXPECT_FALSE(bench.host.sessions()->messages("s").has_value());
}

TEST(Messages, ToolCallsComeFromTheHook) {
  const ScratchFolder folder;
  HostOptions options = with_sessions(folder);
  options.hooks.prompt = [](const Job&) { return some_tokens(30, 90, 2); };
  std::string text;
  options.hooks.reply = [&text](const Job&, const std::string& whole) {
    text = whole;
    return server::Message{"assistant", "look:", {{"call-1", "find", "{\"a\":1}"}}};
  };
  HostBench bench(options);
  Job job = named({{"user", "a"}, {"assistant", ""}, {"tool", "42"}}, "s");
  auto& messages = std::get<std::vector<server::Message>>(job.prompt);
  messages[1].calls = {{"call-0", "find", "{}"}};
  messages[2].tool_call_id = "call-0";
  const auto events = bench.run(job);
  ASSERT_EQ(events->status(), 200);
  EXPECT_EQ(text, events->text());
  const Json expected = Json::parse(R"({"messages": [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "", "tool_calls":
      [{"id": "call-0", "type": "function", "function": {"name": "find", "arguments": "{}"}}]},
    {"role": "tool", "content": "42", "tool_call_id": "call-0"},
    {"role": "assistant", "content": "look:", "tool_calls":
      [{"id": "call-1", "type": "function", "function": {"name": "find", "arguments": "{\"a\":1}"}}]}]})");
  EXPECT_EQ(bench.host.sessions()->messages("s"), expected);
}

TEST(Messages, AContinuedMessageIsOne) {
  Job job = HostBench::chat({{"user", "a"}, {"assistant", "Once "}});
  job.continue_last = true;
  EXPECT_EQ(server::conversation_json(job, {"assistant", "upon"}),
            text_of_talk({{"user", "a"}, {"assistant", "Once upon"}}));
}

TEST(Messages, ABrokenFileIsNone) {
  const ScratchFolder folder;
  HostBench bench(with_sessions(folder));
  bench.run(named({{"user", "a"}}, "s"));
  for (const char* bad : {"", "{", "[]", "{}", R"({"messages":{}})", R"({"messages":[1]})",
                          R"({"messages":[{"role":"user"}]})"}) {
    write_file(folder / "sessions" / "s.messages.json", bad);
    EXPECT_FALSE(bench.host.sessions()->messages("s").has_value()) << bad;
  }
  // A text that is cut inside a character can be kept.
  const Json whole = server::conversation_json(HostBench::chat({{"user", "\xc3"}}), {"", "b"});
  EXPECT_FALSE(server::conversation_read(server::conversation_text(whole)).is_null());
}

}  // namespace
}  // namespace lca::test
