// What is done beside the thread of connections: how much of it, for whom, and until when.

#include "server/app/service_bench.h"
#include "server/host/session_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <map>

namespace lca::test {
namespace {

using server::Json;
using server::test::holds_within;
using server::test::RawClient;
using server::test::RawReply;
using namespace std::chrono_literals;

/// Bodies that are parsed beside; those of `gated_body` hold the thread that does.
Json large_body() {
  Json body = chat_body("hi");
  body["user"] = std::string(100'000, 'x');  // ignored
  return body;
}
Json gated_body() {
  Json body = large_body();
  body["user"] = std::string(200'000, 'x');
  return body;
}

/// A server whose threads for works of that kind can be held.
struct HeldBench {
  HostGate gate;
  std::atomic<int> parsed{0};  ///< large bodies that are not gated
  std::unique_ptr<ServiceBench> bench;

  explicit HeldBench(server::ServiceOptions wanted = {},
                     server::HostOptions host = HostBench::usual()) {
    wanted.log_prompts = true;
    wanted.log = [this](std::string_view line) {
      if (line.size() > 200'000) return gate.pass();
      if (line.size() > 100'000) ++parsed;
    };
    bench = std::make_unique<ServiceBench>(std::move(host), true, std::move(wanted));
  }
  ~HeldBench() { gate.open(); }

  RawClient begin(const std::string& path, const Json& body) const {
    RawClient client(bench->port());
    client.send(ServiceBench::post_bytes(path, body.dump()));
    return client;
  }
  /// Both threads are held from now on.
  std::vector<RawClient> hold() {
    std::vector<RawClient> clients;
    for (int i = 0; i < 2; ++i) clients.push_back(begin("/v1/chat/completions", gated_body()));
    EXPECT_TRUE(gate.wait_arrival(2));
    return clients;
  }
  double metric(const std::string& name) const {
    const std::string text = bench->get("/metrics").body;
    const std::size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
  }
};

TEST(ThreadsAside, OnlySoManyRequestsWait) {
  server::ServiceOptions wanted;
  wanted.most_aside = 3;
  HeldBench held(std::move(wanted));
  std::vector<RawClient> clients = held.hold();
  clients.push_back(held.begin("/tokenize", {{"content", "then"}}));
  RawReply refused;
  EXPECT_TRUE(holds_within(10s, [&] {
    RawClient one = held.begin("/tokenize", {{"content", "then"}});
    refused = one.reply(false, 1s);
    return refused.status != 0;
  }));
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers["retry-after"], "2");
  EXPECT_EQ(held.bench->post("/v1/chat/completions", chat_body("hi")).status, 200);
  held.gate.open();
  for (RawClient& client : clients) EXPECT_EQ(client.reply().status, 200);
}

TEST(ThreadsAside, WhoLeavesIsNotWorkedFor) {
  HeldBench held;
  const std::vector<RawClient> clients = held.hold();
  {
    const RawClient leaves = held.begin("/v1/chat/completions", large_body());
    ASSERT_TRUE(holds_within(10s, [&] { return held.metric("lca_http_connections") == 4; }));
  }
  // Its coroutine ends while the threads are still held.
  EXPECT_TRUE(holds_within(10s, [&] { return held.metric("lca_http_connections") == 3; }));
  RawClient stays = held.begin("/v1/chat/completions", large_body());
  held.gate.open();
  EXPECT_EQ(stays.reply().status, 200);
  EXPECT_EQ(held.parsed, 1);
}

TEST(ThreadsAside, ASchemaThatWaitsHasItsPlaceInTheQueue) {
  server::HostOptions host = HostBench::usual();
  host.most_queued = 1;
  HeldBench held({}, host);
  std::vector<RawClient> clients = held.hold();
  Json body = chat_body("say it", 64);
  body["response_format"] = {{"type", "json_schema"},
                             {"json_schema", {{"name", "it"}, {"schema", {{"enum", {17}}}}}}};
  RawClient first = held.begin("/v1/chat/completions", body);
  ASSERT_TRUE(holds_within(10s, [&] { return held.metric("lca_requests_queued") == 1; }));
  EXPECT_EQ(held.bench->post("/v1/chat/completions", body).status, 429);
  {
    // One that leaves gives it back.
    const RawClient gone(std::move(first));
  }
  ASSERT_TRUE(holds_within(10s, [&] { return held.metric("lca_requests_queued") == 0; }));
  RawClient second = held.begin("/v1/chat/completions", body);
  ASSERT_TRUE(holds_within(10s, [&] { return held.metric("lca_requests_queued") == 1; }));
  clients.clear();
  held.gate.open();
  EXPECT_EQ(second.reply().status, 200);
  EXPECT_EQ(held.metric("lca_requests_queued"), 0);
}

TEST(ThreadsAside, WhatHasNotBegunAtTheEndNeverDoes) {
  HeldBench held;
  const std::vector<RawClient> clients = held.hold();
  const RawClient waits = held.begin("/v1/chat/completions", large_body());
  ASSERT_TRUE(holds_within(10s, [&] { return held.metric("lca_http_connections") == 4; }));
  std::thread closing([&] { held.bench->close(); });
  EXPECT_TRUE(holds_within(10s, [&] { return held.bench->get("/health").status == 503; }));
  held.gate.open();
  closing.join();
  EXPECT_EQ(held.parsed, 0);
}

TEST(ThreadsAside, LargeRepliesAreWrittenThere) {
  for (const bool stream : {false, true}) {
    HeldBench held;
    const Json body = {{"prompt", long_text(2000)},
                       {"max_tokens", 1},
                       {"echo", true},
                       {"logprobs", 5},
                       {"stream", stream}};
    const std::vector<RawClient> clients = held.hold();
    RawClient client = held.begin("/v1/completions", body);
    ASSERT_TRUE(holds_within(20s, [&] { return held.metric("lca_requests_finished_total") == 1; }));
    std::string text;
    for (std::string part = client.bytes(1s); !part.empty() && text.size() < 50'000;
         part = client.bytes(300ms)) {
      text += part;
    }
    EXPECT_EQ(text.find("\"tokens\""), std::string::npos) << "it was written all the same";
    EXPECT_EQ(held.bench->post("/v1/chat/completions", chat_body("hi")).status, 200);
    held.gate.open();
    const std::string last = stream ? "[DONE]" : "\"usage\"";
    EXPECT_TRUE(holds_within(10s, [&] {
      text += client.bytes(1s);
      return text.find(last) != std::string::npos;
    }));
    EXPECT_NE(text.find("text_offset"), std::string::npos);
    EXPECT_GT(text.size(), 100'000U);
  }
}

TEST(ThreadsAside, WhoWaitsForASessionKeepsNobodyElseWaiting) {
  const ScratchFolder folder;
  server::HostOptions host = with_sessions(folder);
  host.lock_seconds = 120;
  ServiceBench bench(host);
  for (const char* name : {"a", "b"}) {
    Json body = chat_body("remember me");
    body["metadata"] = {{"session", name}};
    ASSERT_EQ(bench.post("/v1/chat/completions", body).status, 200);
  }
  const server::SessionStore store(folder / "sessions");
  auto lock = store.lock("a");
  std::vector<RawClient> waiting;
  for (int i = 0; i < 6; ++i) {
    waiting.emplace_back(bench.port());
    if (i % 2 == 0) {
      waiting.back().send(server::test::request_text("DELETE", "/v1/sessions/a"));
    } else {
      waiting.back().send(ServiceBench::post_bytes("/v1/sessions/a/fork", R"({"to": "c"})"));
    }
  }
  EXPECT_TRUE(waiting.front().bytes(100ms).empty());
  EXPECT_EQ(bench.post("/tokenize", {{"content", "then"}}).status, 200);
  EXPECT_EQ(Json::parse(bench.get("/v1/sessions").body)["data"].size(), 2U);
  EXPECT_EQ(bench.get("/cache/a").status, 200);
  EXPECT_EQ(bench.post("/v1/sessions/b/fork", {{"to", "d"}}).status, 200);
  RawClient client(bench.port());
  EXPECT_EQ(client.ask(server::test::request_text("DELETE", "/v1/sessions/b")).status, 200);
  waiting.pop_back();  // one that waits may leave
  lock.reset();
  std::map<int, int> statuses;
  for (RawClient& one : waiting) ++statuses[one.reply().status];
  EXPECT_EQ(statuses[200] + statuses[404] + statuses[409], 5);
  EXPECT_GE(statuses[200], 1);
  EXPECT_EQ(bench.get("/cache/a").status, 404);
}

TEST(ThreadsAside, ASessionInUseIsRefusedAfterAWhile) {
  const ScratchFolder folder;
  server::HostOptions host = with_sessions(folder);
  host.lock_seconds = 0.1;
  ServiceBench bench(host);
  Json body = chat_body("remember me");
  body["metadata"] = {{"session", "a"}};
  ASSERT_EQ(bench.post("/v1/chat/completions", body).status, 200);
  const server::SessionStore store(folder / "sessions");
  {
    const auto lock = store.lock("a");
    EXPECT_THROW(store.lock("a"), server::SessionHeld);
    RawClient client(bench.port());
    const RawReply refused = client.ask(server::test::request_text("DELETE", "/v1/sessions/a"));
    EXPECT_EQ(refused.status, 409);
    EXPECT_NE(refused.body.find("is in use"), std::string::npos) << refused.body;
    EXPECT_EQ(bench.post("/v1/sessions/a/fork", {{"to", "b"}}).status, 409);
  }
  EXPECT_EQ(bench.post("/v1/sessions/a/fork", {{"to", "b"}}).status, 200);
}

TEST(ServiceSessions, TheListReadsNoCaches) {
  const ScratchFolder folder;
  ServiceBench bench(with_sessions(folder));
  Json body = chat_body(long_text(300));
  body["metadata"] = {{"session", "a"}};
  ASSERT_EQ(bench.post("/v1/chat/completions", body).status, 200);
  const server::SessionStore store(folder / "sessions");
  const std::int64_t tokens = store.list().at(0).tokens;
  EXPECT_GT(tokens, 100);
  std::fstream file(store.path("a"), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-200, std::ios::end);
  file.write("damaged", 7);
  file.close();
  EXPECT_EQ(server::SessionStore(folder / "sessions").list().at(0).tokens, tokens);
  EXPECT_THROW(store.facts("a"), Error);
}

}  // namespace
}  // namespace lca::test
