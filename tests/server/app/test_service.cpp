// Requests through the whole server.

#include "server/app/service_bench.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace lca::test {
namespace {

using server::Json;
using server::test::holds_within;
using server::test::RawClient;
using server::test::RawReply;
using namespace std::chrono_literals;

server::HostOptions without_prefix() {
  server::HostOptions options = HostBench::usual();
  options.prefix_cache = false;
  return options;
}

std::string reply_text(const RawReply& reply) {
  return Json::parse(reply.body)["choices"][0]["message"]["content"];
}

double metric(const ServiceBench& bench, const std::string& name) {
  const std::string text = bench.get("/metrics").body;
  const std::size_t at = text.find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
}

TEST(Service, SaysThatItIsLoadingUntilItHasAModel) {
  ServiceBench bench(HostBench::usual(), false);
  for (const char* path : {"/health", "/v1/models", "/page-config"}) {
    const RawReply reply = bench.get(path);
    EXPECT_EQ(reply.status, 503) << path;
    EXPECT_TRUE(reply.headers.contains("retry-after")) << path;
  }
  EXPECT_EQ(bench.post("/v1/chat/completions", chat_body("hi")).status, 503);
  EXPECT_EQ(bench.get("/").status, 200);
  EXPECT_EQ(bench.get("/openapi.json").status, 200);
  bench.open();
  EXPECT_EQ(bench.get("/health").status, 200);
}

TEST(Service, ThePageIsToldOfTheGroupsThatACacheIsShownIn) {
  server::HostOptions options = HostBench::usual();
  Settings coarse = small_settings();
  coarse.group = 8;
  options.session.settings = {coarse, small_settings()};
  ServiceBench bench(options);
  const int group = Json::parse(bench.get("/page-config").body)["group"].get<int>();
  EXPECT_EQ(group, 4);
  Json body = chat_body(long_text(200));
  body["metadata"] = {{"session", "ada"}};
  ASSERT_EQ(bench.post("/v1/chat/completions", body).status, 200);
  const Json cache = Json::parse(bench.get("/cache/ada").body);
  const auto count = [&](const char* name) { return cache[name].get<int>(); };
  EXPECT_GT(count("groups"), 20);
  EXPECT_EQ(count("tokens"), count("sink") + count("groups") * group + count("window"));
}

TEST(Service, StreamsTheTextThatItSendsWhole) {
  ServiceBench bench(without_prefix());
  for (int turn = 0; turn < 3; ++turn) {
    Json body = chat_body("tell me number " + std::to_string(turn));
    const RawReply whole = bench.post("/v1/chat/completions", body);
    ASSERT_EQ(whole.status, 200) << whole.body;
    body["stream"] = true;
    const RawReply streamed = bench.post("/v1/chat/completions", body);
    EXPECT_EQ(stream_text(streamed.body), reply_text(whole));
    EXPECT_TRUE(streamed.body.ends_with("data: [DONE]\n\n"));
  }
}

TEST(Service, EveryProtocolAnswers) {
  ServiceBench bench;
  const RawReply completions =
      bench.post("/v1/completions", {{"prompt", {"ab", "cd"}}, {"max_tokens", 3}, {"n", 2}});
  ASSERT_EQ(completions.status, 200) << completions.body;
  EXPECT_EQ(Json::parse(completions.body)["choices"].size(), 4U);
  const RawReply messages = bench.post(
      "/v1/messages", {{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"max_tokens", 5}});
  ASSERT_EQ(messages.status, 200) << messages.body;
  EXPECT_EQ(Json::parse(messages.body)["type"], "message");
  const RawReply responses =
      bench.post("/v1/responses", {{"input", "hi"}, {"max_output_tokens", 16}});
  ASSERT_EQ(responses.status, 200) << responses.body;
  EXPECT_EQ(Json::parse(responses.body)["object"], "response");
  const Json counted =
      Json::parse(bench
                      .post("/v1/messages/count_tokens",
                            {{"messages", {{{"role", "user"}, {"content", "hi"}}}}})
                      .body);
  EXPECT_EQ(counted["input_tokens"].get<int>(),
            Json::parse(messages.body)["usage"]["input_tokens"].get<int>() +
                Json::parse(messages.body)["usage"]["cache_read_input_tokens"].get<int>());
}

TEST(Service, AnEchoWithScoresHasAnEntryForEveryTokenAndOneMore) {
  ServiceBench bench;
  for (int i = 0; i < 2; ++i) {  // the second time nothing is reused
    const Json reply = Json::parse(
        bench
            .post("/v1/completions",
                  {{"prompt", "abc def"}, {"max_tokens", 1}, {"echo", true}, {"logprobs", 2}})
            .body);
    const Json scores = reply["choices"][0]["logprobs"];
    const std::size_t prompt = reply["usage"]["prompt_tokens"].get<std::size_t>();
    ASSERT_EQ(scores["token_logprobs"].size(), prompt + 1);
    EXPECT_TRUE(scores["token_logprobs"][0].is_null());
    EXPECT_FALSE(scores["token_logprobs"][prompt].is_null());
    EXPECT_EQ(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  }
}

TEST(Service, AReplyFollowsItsSchema) {
  ServiceBench bench;  // a vocabulary without quotes
  Json body = chat_body("say it", 64);
  body["response_format"] = {{"type", "json_schema"},
                             {"json_schema", {{"name", "it"}, {"schema", {{"enum", {17, 42}}}}}}};
  const RawReply reply = bench.post("/v1/chat/completions", body);
  ASSERT_EQ(reply.status, 200) << reply.body;
  const std::string text = reply_text(reply);
  EXPECT_TRUE(text == "17" || text == "42") << text;
  EXPECT_EQ(Json::parse(reply.body)["choices"][0]["finish_reason"], "stop");
  body["response_format"]["json_schema"]["schema"] = {{"type", "string"}, {"pattern", "a"}};
  const RawReply refused = bench.post("/v1/chat/completions", body);
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.body.find("pattern"), std::string::npos);
}

TEST(Service, APromptBeyondTheContextIsRefusedWithBothNumbers) {
  server::HostOptions options = HostBench::usual();
  options.context = 200;
  ServiceBench bench(options);
  for (const bool stream : {false, true}) {
    Json body = chat_body(long_text(2000));
    body["stream"] = stream;
    const RawReply reply = bench.post("/v1/chat/completions", body);
    EXPECT_EQ(reply.status, 400);
    EXPECT_NE(reply.body.find("200"), std::string::npos) << reply.body;
    EXPECT_NE(reply.body.find("tokens"), std::string::npos) << reply.body;
  }
}

TEST(Service, APromptThatIsTooLongByItsBytesIsNotTokenised) {
  server::HostOptions options = HostBench::usual();
  options.context = 200;
  ServiceBench bench(options);
  // "<|im_start|>" is the longest token.
  const std::string text(12 * 200, 'a');
  for (const bool stream : {false, true}) {
    Json body = chat_body(text);
    body["stream"] = stream;
    const RawReply reply = bench.post("/v1/chat/completions", body);
    EXPECT_EQ(reply.status, 400);
    EXPECT_NE(reply.body.find("at least 200 tokens"), std::string::npos) << reply.body;
    EXPECT_NE(reply.body.find("holds 200,"), std::string::npos) << reply.body;
  }
  const RawReply plain = bench.post("/v1/completions", {{"prompt", text}, {"max_tokens", 1}});
  EXPECT_NE(plain.body.find("at least 200 tokens"), std::string::npos) << plain.body;
  // One byte less is tokenised, and counted.
  const RawReply counted =
      bench.post("/v1/completions", {{"prompt", text.substr(1)}, {"max_tokens", 1}});
  EXPECT_EQ(counted.status, 400);
  EXPECT_EQ(counted.body.find("at least 200 tokens"), std::string::npos) << counted.body;
}

TEST(Service, WhatIsOnlyCountedHasABoundToo) {
  ServiceBench bench;
  const std::string text((std::size_t{4} << 20) + 1, 'a');
  EXPECT_EQ(bench.post("/tokenize", {{"content", text}}).status, 413);
  EXPECT_EQ(bench
                .post("/v1/messages/count_tokens",
                      {{"messages", {{{"role", "user"}, {"content", text}}}}})
                .status,
            413);
  // 2,000,000 bytes of ids whose text is longer: token 1 has 12 bytes.
  const RawReply reply = bench.post("/detokenize", {{"tokens", std::vector<int>(1'000'000, 1)}});
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("4194304 bytes"), std::string::npos) << reply.body;
}

TEST(Service, ErrorsAreInTheCallersDialect) {
  ServiceBench bench;
  const Json openai = Json::parse(bench.post_text("/v1/chat/completions", "{").body);
  EXPECT_EQ(openai["error"]["type"], "invalid_request_error");
  const Json anthropic = Json::parse(bench.post_text("/v1/messages", "{").body);
  EXPECT_EQ(anthropic["type"], "error");
  EXPECT_EQ(bench.get("/v1/chat/completions").status, 405);
  EXPECT_EQ(bench.get("/nowhere").status, 404);
  EXPECT_EQ(bench.post("/v1/sessions", Json::object()).status, 405);
  EXPECT_EQ(bench.get("/v1/sessions").status, 404);  // it keeps none
}

TEST(Service, AClientThatLeavesFreesItsPlace) {
  ServiceBench bench;
  Json body = chat_body("a long story", 3000);
  body["stream"] = true;
  {
    RawClient client(bench.port());
    client.send(ServiceBench::post_bytes("/v1/chat/completions", body.dump()));
    EXPECT_NE(client.bytes(), "");
    EXPECT_TRUE(holds_within(5s, [&] { return metric(bench, "lca_requests_running") == 1; }));
  }
  EXPECT_TRUE(holds_within(5s, [&] { return metric(bench, "lca_requests_running") == 0; }));
  EXPECT_EQ(metric(bench, "lca_requests_cancelled_total"), 1);
}

TEST(Service, TooManyRequestsAreToldWhenToComeAgain) {
  server::HostOptions options = HostBench::usual();
  options.engine.most_sessions = 1;
  options.most_queued = 1;
  ServiceBench bench(options);
  Json body = chat_body("a long story", 3000);
  body["stream"] = true;
  std::vector<RawClient> clients;
  for (int i = 0; i < 6; ++i) {
    clients.emplace_back(bench.port())
        .send(ServiceBench::post_bytes("/v1/chat/completions", body.dump()));
  }
  int refused = 0;
  for (RawClient& client : clients) {
    const std::string begin = client.bytes(10s);
    if (begin.find(" 429 ") == std::string::npos) continue;
    ++refused;
    EXPECT_NE(begin.find("Retry-After: "), std::string::npos);
  }
  EXPECT_GE(refused, 3);
}

TEST(Service, LargeBodiesAreParsedAsideAndOnlySoManyBytesOfThem) {
  HostGate gate;
  server::ServiceOptions wanted;
  wanted.log_prompts = true;
  wanted.log = [&gate](std::string_view line) {
    if (line.size() > 100'000) gate.pass();
  };
  wanted.most_aside_bytes = 150'000;
  ServiceBench bench(HostBench::usual(), true, std::move(wanted));
  Json large = chat_body("hi");
  large["user"] = std::string(200'000, 'x');  // ignored
  RawClient first(bench.port());
  first.send(ServiceBench::post_bytes("/v1/chat/completions", large.dump()));
  ASSERT_TRUE(gate.wait_arrival());
  const RawReply openai = bench.post("/v1/chat/completions", large);
  EXPECT_EQ(openai.status, 429);
  EXPECT_EQ(Json::parse(openai.body)["error"]["type"], "rate_limit_error") << openai.body;
  const RawReply anthropic = bench.post("/v1/messages", large);
  EXPECT_EQ(anthropic.status, 429);
  EXPECT_EQ(Json::parse(anthropic.body)["type"], "error");
  EXPECT_EQ(anthropic.headers.at("retry-after"), "2");
  // What needs no room is served all the while.
  EXPECT_EQ(bench.post("/v1/chat/completions", chat_body("hi")).status, 200);
  EXPECT_EQ(bench.get("/v1/sessions").status, 404);  // it keeps none
  gate.open();
  EXPECT_EQ(first.reply().status, 200);
  EXPECT_EQ(bench.post("/v1/chat/completions", large).status, 200);
}

TEST(Service, SessionsAreListedForkedAndDeleted) {
  const std::string folder = testing::TempDir() + "/lca_service_sessions";
  std::filesystem::remove_all(folder);
  server::HostOptions options = HostBench::usual();
  options.sessions = folder;
  ServiceBench bench(options);
  Json body = chat_body("remember me");
  body["metadata"] = {{"session", "one"}};
  ASSERT_EQ(bench.post("/v1/chat/completions", body).status, 200);
  Json listed = Json::parse(bench.get("/v1/sessions").body)["data"];
  ASSERT_EQ(listed.size(), 1U);
  EXPECT_EQ(listed[0]["name"], "one");
  const Json cache = Json::parse(bench.get("/cache/one").body);
  EXPECT_EQ(cache["tokens"], listed[0]["tokens"]);
  EXPECT_EQ(bench.post("/v1/sessions/one/fork", {{"to", "two"}}).status, 200);
  EXPECT_EQ(Json::parse(bench.get("/v1/sessions").body)["data"].size(), 2U);
  EXPECT_EQ(bench.get("/cache/three").status, 404);
  RawClient client(bench.port());
  EXPECT_EQ(client.ask(server::test::request_text("DELETE", "/v1/sessions/one")).status, 200);
  EXPECT_EQ(client.ask(server::test::request_text("DELETE", "/v1/sessions/one")).status, 404);
  EXPECT_EQ(Json::parse(bench.get("/v1/sessions").body)["data"].size(), 1U);
  std::filesystem::remove_all(folder);
}

TEST(Service, TextBecomesTokensAndBack) {
  ServiceBench bench;
  const Json ids = Json::parse(bench.post("/tokenize", {{"content", "then"}}).body);
  EXPECT_EQ(Json::parse(bench.post("/detokenize", ids).body)["content"], "then");
  EXPECT_EQ(bench.post("/detokenize", {{"tokens", {1000000}}}).status, 400);
}

TEST(Service, ABatchOfPromptsIsOneRequestToTheQueue) {
  server::HostOptions options = HostBench::usual();
  options.most_queued = 2;
  options.engine.most_sessions = 1;
  ServiceBench bench(options);
  const Json prompts = std::vector<Json>(40, Json("a"));
  const RawReply reply = bench.post("/v1/completions", {{"prompt", prompts}, {"max_tokens", 1}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(Json::parse(reply.body)["choices"].size(), 40u);
}

TEST(Service, AModelsNameIsPrintable) {
  for (const char* name : {"", "a\r\nb", "a\x1b[2J"}) {
    EXPECT_THROW(server::ServedModel(name, HostBench::shared_model(), 1, HostBench::usual()), Error)
        << name;
  }
}

}  // namespace
}  // namespace lca::test
