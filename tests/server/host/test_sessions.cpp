// Named sessions: they outlive their server, are shared by two, and are never a second truth.

#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "server/host/conversation.h"
#include "server/host/host_bench.h"

namespace lca::test {
namespace {

using server::HostOptions;
using server::Job;
using server::Json;
using server::SessionStore;

TEST(HostSessions, NamesCannotLeaveTheFolder) {
  for (const char* good : {"a", "A-1_b.c", "-x", "_", "0..1"}) {
    EXPECT_TRUE(SessionStore::is_name(good)) << good;
  }
  for (const char* bad : {"", ".", "..", ".a", "a/b", "a b", "ä", "a\n"}) {
    EXPECT_FALSE(SessionStore::is_name(bad)) << bad;
  }
  EXPECT_TRUE(SessionStore::is_name(std::string(64, 'x')));
  EXPECT_FALSE(SessionStore::is_name(std::string(65, 'x')));
  const ScratchFolder folder;
  HostBench bench(with_sessions(folder));
  EXPECT_THROW(bench.submit(named({{"user", "a"}}, "../a")), server::ApiException);
}

TEST(HostSessions, AConversationGoesOnInAnotherServer) {
  const ScratchFolder folder;
  Talk talk = {{"user", long_text(500)}};
  for (int turn = 0; turn < 4; ++turn) {
    HostBench bench(with_sessions(folder));
    const auto reply = bench.run(named(talk, "talk", static_cast<std::uint64_t>(turn)));
    ASSERT_EQ(reply->status(), 200) << reply->last().error->message;
    if (turn > 0) {
      EXPECT_LT(reply->last().usage.prompt - reply->last().usage.cached, 45) << turn;
      EXPECT_LT(bench.host.counts().engine.prefilled_tokens, 45);
    }
    const auto rows = bench.host.sessions()->list();
    ASSERT_EQ(rows.size(), 1u);
    EXPECT_EQ(rows[0].name, "talk");
    EXPECT_EQ(rows[0].tokens, reply->last().usage.prompt + reply->last().usage.completion);
    talk.emplace_back("assistant", reply->text());
    talk.emplace_back("user", "more");
  }
}

TEST(HostSessions, WhatTheWindowHoldsIsOnDiskOnce) {
  const ScratchFolder folder;
  HostOptions options = with_sessions(folder);
  for (Settings& layer : options.session.settings) layer.window = 2000;  // nothing is condensed
  Talk talk = {{"user", long_text(300)}};
  Talk first;
  for (int turn = 0; turn < 4; ++turn) {
    HostBench bench(options);
    const auto reply = bench.run(named(talk, "s", static_cast<std::uint64_t>(turn)));
    ASSERT_EQ(reply->status(), 200) << reply->last().error->message;
    const auto rows = bench.host.sessions()->list();
    const std::size_t held = bench.host.sessions()->facts("s").bytes;
    EXPECT_LT(rows.at(0).bytes, held + (std::size_t{64} << 10)) << turn;
    talk.emplace_back("assistant", reply->text());
    if (turn == 0) first = talk;
    talk.emplace_back("user", "more of it");
  }
  // Another end of the same conversation goes back to where it parts, without a mark.
  first.emplace_back("user", "something else");
  HostBench bench(options);
  const auto reply = bench.run(named(first, "s"));
  EXPECT_LT(reply->last().usage.prompt - reply->last().usage.cached, 45);
}

TEST(HostSessions, TwoServersTakeTurnsOnOneSession) {
  const ScratchFolder folder;
  HostBench one(with_sessions(folder));
  HostBench two(with_sessions(folder));
  Talk talk = {{"user", long_text(400)}};
  for (int turn = 0; turn < 6; ++turn) {
    HostBench& bench = turn % 2 == 0 ? one : two;
    const auto reply = bench.run(named(talk, "s", static_cast<std::uint64_t>(turn)));
    ASSERT_EQ(reply->status(), 200) << reply->last().error->message;
    if (turn > 0) {
      EXPECT_LT(reply->last().usage.prompt - reply->last().usage.cached, 45) << turn;
    }
    talk.emplace_back("assistant", reply->text());
    talk.emplace_back("user", "on " + std::to_string(turn));
  }
  // What the session holds and the request does not say is not used.
  const auto other = two.run(named({{"user", "something else"}}, "s"));
  HostOptions plain = with_sessions(folder);
  plain.sessions.clear();
  HostBench alone(plain);
  EXPECT_EQ(other->text(), alone.run(HostBench::chat({{"user", "something else"}}))->text());
}

TEST(HostSessions, RepliesFromBeforeARestartKeepTheirIds) {
  // Letters of which some pairs are one token: most replies have another spelling.
  const auto letters = [](const Job&, int, std::int64_t) {
    return [](std::span<const std::int32_t>, std::span<float> logits) {
      const Tokenizer tokenizer = *HostBench::usual().tokenizer;
      for (std::int32_t id = 0; id < std::ssize(logits); ++id) {
        const std::string_view text = tokenizer.bytes(id);
        if (text == "t" || text == "h" || text == "th" || text == "e" || text == "n") continue;
        logits[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
      }
    };
  };
  for (const std::size_t kept : {std::size_t{0}, std::size_t{1}}) {  // 1: nothing stays in memory
    const ScratchFolder folder;
    HostOptions options = with_sessions(folder);
    options.hooks.adjust = letters;
    options.prefix_bytes = kept;
    options.cut_distance = kept == 0 ? 512 : 32;
    Talk talk = {{"user", long_text(60)}};
    bool differed = false;
    std::optional<HostBench> bench;
    for (int turn = 0; turn < 5; ++turn) {
      if (turn < 2) bench.emplace(options);  // one restart, after the first turn
      Job job = named(talk, "s", static_cast<std::uint64_t>(turn));
      job.generate.max_tokens = 30;
      const auto reply = bench->run(job);
      ASSERT_EQ(reply->status(), 200) << reply->last().error->message;
      if (turn > 0 && kept == 0) {
        EXPECT_LT(reply->last().usage.prompt - reply->last().usage.cached, 45) << turn;
      }
      EXPECT_EQ(reply->last().usage.cached > 0, turn > 0) << turn;
      const Tokenizer& tokenizer = *options.tokenizer;
      differed = differed || std::ssize(tokenizer.encode(reply->text())) != 30;
      talk.emplace_back("assistant", reply->text());
      talk.emplace_back("user", "on");
    }
    EXPECT_TRUE(differed) << "no reply has another spelling: the test shows nothing";
  }
}

TEST(HostSessions, WhatTheCacheHasDroppedIsTakenFromTheFile) {
  const ScratchFolder folder;
  HostOptions options = with_sessions(folder);
  options.prefix_bytes = 1;  // nothing stays
  HostBench bench(options);
  Talk talk = {{"user", long_text(500)}};
  for (int turn = 0; turn < 3; ++turn) {
    const auto reply = bench.run(named(talk, "s", static_cast<std::uint64_t>(turn)));
    ASSERT_EQ(reply->status(), 200) << reply->last().error->message;
    EXPECT_EQ(bench.host.counts().prefix.entries, 0);
    if (turn > 0) {
      EXPECT_LT(reply->last().usage.prompt - reply->last().usage.cached, 45) << turn;
    }
    talk.emplace_back("assistant", reply->text());
    talk.emplace_back("user", "on");
  }
}

TEST(HostSessions, ASessionInUseIsRefusedAfterAWhile) {
  const ScratchFolder folder;
  HostOptions options = with_sessions(folder);
  options.lock_seconds = 0.2;
  HostBench bench(options);
  bench.run(named({{"user", "a"}}, "s"));
  {
    const auto held = bench.host.sessions()->lock("s");
    EXPECT_EQ(bench.run(named({{"user", "a"}}, "s"))->status(), 409);
    EXPECT_EQ(bench.run(named({{"user", "a"}}, "t"))->status(), 200);
    // One that waits can be cancelled.
    const auto waiting = bench.submit(named({{"user", "a"}}, "s"));
    bench.host.cancel(bench.last_id);
    ASSERT_TRUE(waiting->wait());
    EXPECT_EQ(waiting->last().reason, StopReason::cancelled);
  }
  EXPECT_EQ(bench.run(named({{"user", "a"}}, "s"))->status(), 200);
  // Requests to one session wait for each other.
  std::vector<std::shared_ptr<Events>> all;
  for (int i = 0; i < 4; ++i) all.push_back(bench.submit(named({{"user", "b"}}, "s")));
  for (const auto& one : all) {
    ASSERT_TRUE(one->wait());
    EXPECT_EQ(one->status(), 200);
  }
}

TEST(HostSessions, ForksAndDeletesAndTellsWhatASessionHolds) {
  const ScratchFolder folder;
  HostBench bench(with_sessions(folder));
  SessionStore& store = *bench.host.sessions();
  Talk talk = {{"system", long_text(60, 2)}, {"user", long_text(300)}, {"user", "why?"}};
  const auto reply = bench.run(named(talk, "a"));
  const auto facts = store.facts("a");
  EXPECT_EQ(facts.tokens, reply->last().usage.prompt + 12);
  EXPECT_GT(facts.groups, 50);
  EXPECT_EQ(facts.sink, 2);
  EXPECT_GT(facts.window, 0);
  EXPECT_LT(facts.bytes, facts.dense_bytes);

  store.fork("a", "b", -1, bench.host.turns());
  EXPECT_EQ(store.facts("b").tokens, facts.tokens);
  store.fork("a", "c", 2, bench.host.turns());
  const auto cut = store.facts("c").tokens;
  EXPECT_LT(cut, facts.tokens);
  EXPECT_GT(cut, 300);
  // A server that has nothing in memory goes on from the fork.
  HostBench other(with_sessions(folder));
  talk[2].second = "who was it?";
  const auto next = other.run(named(talk, "c"));
  ASSERT_EQ(next->status(), 200) << next->last().error->message;
  EXPECT_GE(next->last().usage.cached, cut - 1);

  EXPECT_THROW(store.fork("a", "d", 9, bench.host.turns()), Error);
  EXPECT_THROW(store.fork("none", "d", -1, bench.host.turns()), Error);
  const auto before = store.stamp("c");
  EXPECT_THROW(store.fork("a", "c", -1, bench.host.turns()), Error);  // it would be lost
  EXPECT_EQ(store.stamp("c"), before);
  EXPECT_THROW(store.facts("none"), Error);
  EXPECT_TRUE(store.remove("b"));
  EXPECT_FALSE(store.remove("b"));
  EXPECT_EQ(store.list().size(), 2u);
}

TEST(HostSessions, AReplyThatIsFinishedEarlyIsSaved) {
  const ScratchFolder folder;
  HostBench bench(with_sessions(folder));
  Job job = named({{"user", "a"}}, "s");
  job.generate.max_tokens = 2000;
  auto events = std::make_shared<Events>();
  std::atomic<server::JobId> id = 0;
  std::atomic<bool> asked = false;
  id = bench.host.submit(job, [&](server::JobEvent event) {
    const bool piece = event.kind == server::JobEvent::Kind::piece;
    events->add(std::move(event));
    if (piece && id != 0 && !asked.exchange(true)) {
      EXPECT_TRUE(bench.host.finish(id));
    }
  });
  ASSERT_TRUE(events->wait());
  const auto& last = events->last();
  EXPECT_EQ(last.reason, StopReason::end_token);
  EXPECT_LT(last.usage.completion, 2000);
  EXPECT_FALSE(bench.host.finish(id));
  EXPECT_EQ(bench.host.sessions()->facts("s").tokens, last.usage.prompt + last.usage.completion);
  EXPECT_TRUE(bench.host.sessions()->messages("s").has_value());
  EXPECT_EQ(bench.host.counts().finished, 1);
  EXPECT_EQ(bench.host.counts().cancelled, 0);
}

TEST(HostSessions, AForkAtAMessageCountsTurnsAsTheTemplateWritesThem) {
  using server::message_turns;
  const auto talk = [](const std::vector<std::string>& roles) {
    Json list = Json::array();
    for (const std::string& role : roles) list.push_back({{"role", role}, {"content", "a"}});
    return Json{{"messages", list}};
  };
  using Turns = std::vector<std::int64_t>;
  EXPECT_EQ(message_turns(talk({"system", "user", "assistant"}), 1, 3), (Turns{0, 1, 2, 3}));
  // The template writes its own message of the system.
  EXPECT_EQ(message_turns(talk({"user", "assistant"}), 1, 3), (Turns{1, 2, 3}));
  const Json called = talk({"user", "assistant", "tool", "tool", "assistant"});
  EXPECT_EQ(message_turns(called, 0, 5), (Turns{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(message_turns(called, 0, 4), (Turns{0, 1, 2, 3, 3, 4}));  // it joins results of tools
  EXPECT_EQ(message_turns(nullptr, 1, 3), (Turns{1, 2, 3}));
  EXPECT_EQ(message_turns(nullptr, 3, 1), (Turns{1}));
  EXPECT_EQ(message_turns(talk({}), 0, 1), (Turns{0}));
}

TEST(HostSessions, AnEchoKeepsNoneAndSummariesOfWholePromptsNeither) {
  const ScratchFolder folder;
  HostOptions options = with_sessions(folder);
  {
    HostBench bench(options);
    Job job = HostBench::ids(40, 3);
    job.echo = true;
    job.session = "s";
    EXPECT_THROW(bench.submit(job), server::ApiException);
    EXPECT_TRUE(bench.host.sessions()->list().empty());
  }
  for (Settings& layer : options.session.settings) layer.summary = Summary::prompt;
  try {
    const HostBench bench(options);
    FAIL() << "sessions would not be kept";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    EXPECT_THAT(error.what(), testing::HasSubstr("--summary"));
  }
}

TEST(HostSessions, AFileOfAnotherModelIsRefusedAndStays) {
  const ScratchFolder folder;
  HostBench bench(with_sessions(folder));
  write_file(bench.host.sessions()->path("s"), "no session");
  const auto reply = bench.run(named({{"user", "a"}}, "s"));
  ASSERT_EQ(reply->status(), 409);
  // By its name: where the server keeps it is nothing to the client.
  const std::string message = reply->last().error->message;
  EXPECT_NE(message.find("\"s\""), std::string::npos) << message;
  EXPECT_EQ(message.find('/'), std::string::npos) << message;
  EXPECT_EQ(read_file(bench.host.sessions()->path("s")), "no session");
}

TEST(HostSessions, AFolderThatIsGoneIsNoFaultOfTheRequest) {
  const ScratchFolder folder;
  HostBench bench(with_sessions(folder));
  std::filesystem::remove_all(folder / "sessions");
  const auto reply = bench.run(named({{"user", "a"}}, "s"));
  ASSERT_EQ(reply->status(), 500);
  EXPECT_EQ(reply->last().error->message.find('/'), std::string::npos);
}

/// In a child process: talks for ever, and reports every completed turn to the parent.
[[noreturn]] void talk_until_killed(const HostOptions& options, int to) {
  HostBench bench(options);
  for (std::uint32_t turn = 0;; ++turn) {
    const std::string name = "s" + std::to_string(turn % 3);
    Talk talk = {{"user", long_text(200 + 10 * turn, turn % 3 + 1)}};
    const auto reply = bench.run(named(talk, name, turn));
    if (reply->status() != 200) ::_exit(3);
    const std::string line = name + " " + std::to_string(200 + 10 * turn) + " " +
                             std::to_string(turn) + " " +
                             std::to_string(reply->last().usage.prompt + 12) + "\n";
    if (::write(to, line.data(), line.size()) < 0) ::_exit(4);
  }
}

TEST(HostSessions, KillingAServerKeepsEveryCompletedTurn) {
  const ScratchFolder folder;
  unsigned delay = 99;
  for (int round = 0; round < 8; ++round) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) talk_until_killed(with_sessions(folder), ends[1]);
    ::close(ends[1]);
    std::string told;
    char buffer[4096];
    const ssize_t first = ::read(ends[0], buffer, sizeof(buffer));
    ASSERT_GT(first, 0);
    told.append(buffer, static_cast<std::size_t>(first));
    delay = delay * 1664525u + 1013904223u;
    std::this_thread::sleep_for(std::chrono::microseconds((delay >> 8) % 60000));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    for (ssize_t got; (got = ::read(ends[0], buffer, sizeof(buffer))) > 0;) {
      told.append(buffer, static_cast<std::size_t>(got));
    }
    ::close(ends[0]);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself";

    // The last turn that was told of each session, or one that was saved after it.
    std::map<std::string, std::int64_t> turns;
    std::istringstream lines(told);
    std::string name;
    std::int64_t length = 0;
    std::int64_t turn = 0;
    std::int64_t tokens = 0;
    while (lines >> name >> length >> turn >> tokens) turns[name] = turn;
    SessionStore store(folder / "sessions");
    Context context(1);
    for (const auto& [session, last] : turns) {
      const auto lock = store.lock(session);
      const auto held = store.load(session, HostBench::shared_model(), context, {});
      ASSERT_TRUE(held.has_value());
      ASSERT_FALSE(held->logits().empty());
      // Reading the same tokens again leads to the same logits, so nothing is half written.
      const Talk talk = {{"user", long_text(static_cast<std::size_t>(200 + 10 * last),
                                            static_cast<unsigned>(last % 3 + 1))}};
      HostOptions plain = with_sessions(folder);
      plain.sessions.clear();
      HostBench alone(plain);
      const auto prompt = alone.host.prompt_tokens(HostBench::chat(talk));
      const auto next_prompt = [&] {
        const Talk later = {{"user", long_text(static_cast<std::size_t>(200 + 10 * (last + 3)),
                                               static_cast<unsigned>(last % 3 + 1))}};
        return alone.host.prompt_tokens(HostBench::chat(later));
      }();
      const auto begins = [&](const std::vector<std::int32_t>& wanted) {
        return held->length() == std::ssize(wanted) + 12 &&
               std::equal(wanted.begin(), wanted.end(), held->tokens().begin());
      };
      EXPECT_TRUE(begins(prompt) || begins(next_prompt)) << session << " in round " << round;
    }
  }
}

}  // namespace
}  // namespace lca::test
