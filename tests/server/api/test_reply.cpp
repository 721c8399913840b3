// Events of jobs, and the replies and streams they become. With LCA_REPLY_SAMPLES=DIR the replies
// are written there too: check_clients.py parses them with the real clients' types.

#include "server/api/api_support.h"
#include "server/api/routes.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>
#include <new>
#include <stdexcept>

namespace lca::server::test {
namespace {

using testing::HasSubstr;
constexpr lca::StopReason kCut = lca::StopReason::length;

ApiRequest ask(Protocol protocol, bool stream, int n = 1) {
  ApiRequest request;
  request.protocol = protocol;
  request.stream = stream;
  if (protocol == Protocol::responses) {
    request = parse_responses(Json::parse(R"({"input":"hi"})"));
    request.stream = stream;
  } else {
    request.jobs.emplace_back();
  }
  request.jobs[0].n = n;
  return request;
}

/// Keeps a reply for check_clients.py.
void sample(const std::string& name, const std::string& text) {
  if (const char* folder = std::getenv("LCA_REPLY_SAMPLES")) {
    std::ofstream(std::string(folder) + "/" + name) << text;
  }
}

const std::vector<JobEvent>& hello() {
  static const std::vector<JobEvent> events = {started(9, 4), piece("Hel"), piece(""),
                                               piece("lo\n\"\xc3\xa4\""),
                                               done({.prompt = 9, .cached = 4, .completion = 3})};
  return events;
}

const std::vector<JobEvent>& calling() {
  static const std::vector<JobEvent> events = {
      started(5),
      piece("Let me see."),
      call({.index = 0, .id = "c1", .name = "f", .arguments = ""}),
      call({.index = 0, .arguments = "{\"x\":"}),
      call({.index = 0, .arguments = "1}"}),
      call({.index = 1, .id = "c2", .name = "g", .arguments = "{}"}),
      done({.prompt = 5, .cached = 0, .completion = 12})};
  return events;
}

std::string whole(const ApiRequest& request, const std::vector<JobEvent>& events) {
  const auto reply = reply_begin(request, info());
  EXPECT_EQ(stream_of(*reply, events), "");
  EXPECT_TRUE(reply->over());
  EXPECT_FALSE(reply->error());
  return reply->body();
}

std::string streamed(const ApiRequest& request, const std::vector<JobEvent>& events) {
  const auto reply = reply_begin(request, info());
  std::string text = stream_of(*reply, events);
  EXPECT_TRUE(reply->over());
  return text;
}

const char* const kNames[] = {"chat", "completions", "responses", "messages"};

TEST(Reply, SamplesOfEveryProtocol) {
  for (int i = 0; i < 4; ++i) {
    const auto protocol = static_cast<Protocol>(i);
    const std::string name = kNames[i];
    sample(name + ".text.json", whole(ask(protocol, false), hello()));
    sample(name + ".text.sse", streamed(ask(protocol, true), hello()));
    const std::vector<JobEvent> empty = {started(1), done({.prompt = 1}, kCut)};
    sample(name + ".empty.json", whole(ask(protocol, false), empty));
    sample(name + ".empty.sse", streamed(ask(protocol, true), empty));
    sample(name + ".failed.sse",
           streamed(ask(protocol, true), {started(1), piece("a"), failed(503, "stopping")}));
    const std::vector<JobEvent> object = {started(1), piece("{\"x\":"), piece("1}"),
                                          done({.prompt = 1, .completion = 4})};
    sample(name + ".object.json", whole(ask(protocol, false), object));
    sample(name + ".object.sse", streamed(ask(protocol, true), object));
    if (protocol == Protocol::completions) continue;
    sample(name + ".calls.json", whole(ask(protocol, false), calling()));
    sample(name + ".calls.sse", streamed(ask(protocol, true), calling()));
  }
  sample("openai.models.json", models_body(Dialect::openai, {{"tiny", 1, 2048}}));
  sample("anthropic.models.json", models_body(Dialect::anthropic, {{"tiny", 1, 2048}}));
  sample("anthropic.count.json", count_body(7));
  sample("openapi.json", openapi_body());
}

TEST(Reply, ChatIsOneMessage) {
  EXPECT_EQ(
      whole(ask(Protocol::chat, false), hello()),
      R"({"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"tiny",)"
      R"("choices":[{"index":0,"message":{"role":"assistant","content":"Hello\n\"ä\"",)"
      R"("refusal":null},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":9,)"
      R"("completion_tokens":3,"total_tokens":12,"prompt_tokens_details":{"cached_tokens":4}}})");
}

TEST(Reply, AChatStreamSaysTheRoleOnceAndEndsWithDone) {
  const std::vector<Json> data = stream_data(streamed(ask(Protocol::chat, true), hello()));
  ASSERT_EQ(data.size(), 5);
  EXPECT_EQ(data[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(data[1]["choices"][0]["delta"], Json::parse(R"({"content":"Hel"})"));
  EXPECT_EQ(data[2]["choices"][0]["finish_reason"], nullptr);
  EXPECT_EQ(data[3]["choices"][0]["finish_reason"], "stop");
  EXPECT_FALSE(data[3].contains("usage"));
  EXPECT_EQ(data[4], "[DONE]");
}

TEST(Reply, UsageComesInAChunkOfItsOwnBeforeTheEnd) {
  ApiRequest request = ask(Protocol::chat, true);
  request.include_usage = true;
  const std::vector<Json> data = stream_data(streamed(request, hello()));
  EXPECT_TRUE(data[0].contains("usage") && data[0]["usage"].is_null());
  const Json& last = data[data.size() - 2];
  EXPECT_TRUE(last["choices"].empty());
  EXPECT_EQ(last["usage"]["total_tokens"], 12);
  EXPECT_EQ(last["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
}

TEST(Reply, StreamedTextIsTheWholeText) {
  for (const Protocol protocol : {Protocol::chat, Protocol::completions}) {
    std::string sum;
    for (const Json& data : stream_data(streamed(ask(protocol, true), hello()))) {
      if (!data.is_object()) continue;
      const Json& choice = data["choices"][0];
      sum += protocol == Protocol::chat ? choice["delta"].value("content", "")
                                        : choice["text"].get<std::string>();
    }
    EXPECT_EQ(sum, "Hello\n\"ä\"");
  }
}

TEST(Reply, ChoicesOfJobsAreNumberedThrough) {
  ApiRequest request = ask(Protocol::completions, false, 2);
  request.jobs.push_back(request.jobs[0]);
  const auto reply = reply_begin(request, info());
  reply->feed(1, started(3));
  reply->feed(0, started(2));
  reply->feed(1, piece("d", 1));
  reply->feed(0, piece("a", 0));
  reply->feed(0, piece("b", 1));
  reply->feed(1, piece("c", 0));
  reply->feed(0, done({2, 0, 1}, kCut, 0));
  reply->feed(0, done({2, 0, 1}, kCut, 1));
  reply->feed(1, done({3, 1, 1}, kCut, 1));
  EXPECT_FALSE(reply->over());
  reply->feed(1, done({3, 1, 1}, kCut, 0));
  EXPECT_TRUE(reply->over());
  const Json body = Json::parse(reply->body());
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["text"], std::string(1, static_cast<char>('a' + i)));
    EXPECT_EQ(body["choices"][i]["finish_reason"], "length");
  }
  EXPECT_EQ(body["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(body["usage"]["completion_tokens"], 4);
  EXPECT_EQ(reply->feed(0, piece("late")), "");
}

TEST(Reply, EchoWithLogprobsHasThePromptsTokensFirst) {
  ApiRequest request = ask(Protocol::completions, false);
  request.jobs[0].echo = true;
  request.jobs[0].generate.logprobs = true;
  const float likely = -0.3333333F;
  JobEvent prompt = piece("ab\xc3\xa4");
  prompt.kind = JobEvent::Kind::prompt;
  prompt.tokens = {token("ab", std::nullopt), token("\xc3", -2.5F, {token("x", likely)}),
                   token("\xa4", likely, {token("\xa4", likely)})};
  const std::vector<JobEvent> events = {started(3), prompt,
                                        piece("", 0, {token("</s>", -1.0F, {token("y", likely)})}),
                                        done({3, 0, 1}, lca::StopReason::end_token)};
  const Json choice = Json::parse(whole(request, events))["choices"][0];
  EXPECT_EQ(choice["text"], "abä");
  const Json& numbers = choice["logprobs"];
  EXPECT_EQ(numbers["tokens"], Json::parse(R"(["ab","bytes:\\xc3","bytes:\\xa4","</s>"])"));
  EXPECT_EQ(numbers["token_logprobs"].size(), 4);
  EXPECT_TRUE(numbers["token_logprobs"][0].is_null());
  EXPECT_TRUE(numbers["top_logprobs"][0].is_null());
  EXPECT_EQ(numbers["text_offset"], Json::parse("[0,2,3,3]"));
  // The likeliest comes with the same bits, and the token that was taken is always there.
  EXPECT_EQ(numbers["top_logprobs"][2]["bytes:\\xa4"], numbers["token_logprobs"][2]);
  EXPECT_EQ(numbers["token_logprobs"][2].get<float>(), likely);
  EXPECT_EQ(numbers["top_logprobs"][1].size(), 2);

  request.stream = true;
  const std::vector<Json> data = stream_data(streamed(request, events));
  EXPECT_EQ(data[0]["choices"][0]["logprobs"]["tokens"].size(), 3);
  EXPECT_EQ(data[1]["choices"][0]["logprobs"]["text_offset"], Json::parse("[3]"));
}

TEST(Reply, ChatLogprobsHaveBytes) {
  ApiRequest request = ask(Protocol::chat, false);
  request.jobs[0].generate.logprobs = true;
  const std::vector<JobEvent> events = {
      started(1), piece("", 0, {token("\xc3", -0.5F, {token("\xc3", -0.5F)})}),
      piece("\xc3\xa4", 0, {token("\xa4", -std::numeric_limits<float>::infinity())}),
      done({1, 0, 2})};
  const std::string text = whole(request, events);
  sample("chat.logprobs.json", text);
  const Json list = Json::parse(text)["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(list.size(), 2);
  EXPECT_EQ(list[0]["bytes"], Json::parse("[195]"));
  EXPECT_EQ(list[0]["top_logprobs"][0]["logprob"], -0.5);
  EXPECT_EQ(list[1]["logprob"], -9999.0);
  request.stream = true;
  sample("chat.logprobs.sse", streamed(request, events));
  ApiRequest other = ask(Protocol::responses, true);
  other.jobs[0].generate.logprobs = true;
  sample("responses.logprobs.sse", streamed(other, events));
}

TEST(Reply, CallsEndAChatWithToolCalls) {
  const Json choice = Json::parse(whole(ask(Protocol::chat, false), calling()))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "Let me see.");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"x\":1}");
  EXPECT_EQ(choice["message"]["tool_calls"][1]["id"], "c2");
  const std::vector<JobEvent> only = {started(1), call({.index = 0, .id = "c", .name = "f"}),
                                      done({1, 0, 1})};
  EXPECT_TRUE(
      Json::parse(whole(ask(Protocol::chat, false), only))["choices"][0]["message"]["content"]
          .is_null());
}

TEST(Reply, AMessageHasBlocksAndCountsWhatWasRead) {
  const Json reply = Json::parse(whole(ask(Protocol::messages, false), calling()));
  EXPECT_EQ(reply["content"].size(), 3);
  EXPECT_EQ(reply["content"][1]["input"], Json::parse(R"({"x":1})"));
  EXPECT_EQ(reply["stop_reason"], "tool_use");
  const Json plain = Json::parse(whole(ask(Protocol::messages, false), hello()));
  EXPECT_EQ(plain["usage"]["input_tokens"], 5);
  EXPECT_EQ(plain["usage"]["cache_read_input_tokens"], 4);
  EXPECT_EQ(plain["stop_reason"], "end_turn");
  const Json stopped =
      Json::parse(whole(ask(Protocol::messages, false),
                        {started(1), done({1, 0, 1}, lca::StopReason::stop_string, 0, "END")}));
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "END");
}

TEST(Reply, AMessageStreamOpensAndClosesItsBlocks) {
  std::vector<std::string> types;
  for (const Json& data : stream_data(streamed(ask(Protocol::messages, true), calling()))) {
    types.push_back(data["type"]);
  }
  EXPECT_THAT(types, testing::ElementsAre("message_start", "content_block_start",
                                          "content_block_delta", "content_block_stop",
                                          "content_block_start", "content_block_delta",
                                          "content_block_delta", "content_block_stop",
                                          "content_block_start", "content_block_delta",
                                          "content_block_stop", "message_delta", "message_stop"));
}

TEST(Reply, CutArgumentsAreAnEmptyInput) {
  const Json reply = Json::parse(
      whole(ask(Protocol::messages, false),
            {started(1), call({.index = 0, .id = "c", .name = "f", .arguments = "{\"x\":"}),
             done({1, 0, 9}, kCut)}));
  EXPECT_EQ(reply["content"][0]["input"], Json::object());
  EXPECT_EQ(reply["stop_reason"], "max_tokens");
}

TEST(Reply, AResponseStreamNumbersItsEventsAndEndsWithTheWhole) {
  const std::vector<Json> data = stream_data(streamed(ask(Protocol::responses, true), calling()));
  for (std::size_t i = 0; i < data.size(); ++i) EXPECT_EQ(data[i]["sequence_number"], i);
  EXPECT_EQ(data.front()["type"], "response.created");
  EXPECT_EQ(data.back()["type"], "response.completed");
  const Json body = Json::parse(whole(ask(Protocol::responses, false), calling()));
  EXPECT_EQ(data.back()["response"], body);
  EXPECT_EQ(body["output"][1]["arguments"], "{\"x\":1}");
  EXPECT_EQ(body["store"], false);
  const Json cut = Json::parse(
      whole(ask(Protocol::responses, false), {started(1), piece("a"), done({1, 0, 1}, kCut)}));
  EXPECT_EQ(cut["status"], "incomplete");
  EXPECT_EQ(cut["incomplete_details"]["reason"], "max_output_tokens");
}

TEST(Reply, AnErrorIsTheLastEventOfAStream) {
  const std::vector<JobEvent> events = {started(1), piece("a"), failed(503, "stopping")};
  for (int i = 0; i < 4; ++i) {
    const auto reply = reply_begin(ask(static_cast<Protocol>(i), true), info());
    std::string last;
    for (const JobEvent& event : events) last = reply->feed(0, event);
    EXPECT_THAT(last, HasSubstr("stopping")) << kNames[i];
    EXPECT_TRUE(reply->over());
    EXPECT_EQ(reply->error()->status, 503);
    EXPECT_EQ(reply->feed(0, piece("late")), "");
    EXPECT_EQ(last.find("[DONE]"), std::string::npos);
  }
}

TEST(Reply, ProgressIsAComment) {
  JobEvent event;
  event.kind = JobEvent::Kind::progress;
  event.prefill = {.done = 512, .total = 7000};
  event.seconds_left = 12.34;
  EXPECT_EQ(reply_begin(ask(Protocol::chat, true), info())->feed(0, event),
            ": reading 512 of 7000 tokens, 12.3 s left\n\n");
  EXPECT_EQ(reply_begin(ask(Protocol::chat, false), info())->feed(0, event), "");
}

TEST(Reply, ErrorsSpeakTheCallersDialect) {
  ApiError error;
  error.status = 429;
  error.message = "too many";
  EXPECT_EQ(error_body(Dialect::openai, error),
            R"({"error":{"message":"too many","type":"rate_limit_error","param":null,)"
            R"("code":"rate_limit_exceeded"}})");
  EXPECT_EQ(error_body(Dialect::anthropic, error),
            R"({"type":"error","error":{"type":"rate_limit_error","message":"too many"}})");
  error.status = 503;
  EXPECT_EQ(error_type(Dialect::anthropic, error), "overloaded_error");
  EXPECT_EQ(error_type(Dialect::openai, error), "server_error");
  EXPECT_EQ(error_of(lca::Error(lca::ErrorKind::bad_input, "x")).status, 400);
  EXPECT_EQ(error_of(lca::Error(lca::ErrorKind::busy, "x")).status, 409);
  EXPECT_EQ(error_of(lca::Error(lca::ErrorKind::incompatible, "x")).status, 409);
  EXPECT_EQ(error_of(lca::Error(lca::ErrorKind::out_of_memory, "x")).status, 503);
  EXPECT_GT(error_of(lca::Error(lca::ErrorKind::out_of_memory, "x")).retry_after, 0);
}

TEST(ErrorNow, OfMemoryThatRanOutIs503WithATimeToComeBack) {
  const auto error_for = [](const auto& thrown) {
    try {
      throw thrown;
    } catch (...) {
      return error_now();
    }
  };
  const ApiError memory = error_for(std::bad_alloc());
  EXPECT_EQ(memory.status, 503);
  EXPECT_GT(memory.retry_after, 0);
  EXPECT_THAT(memory.message, HasSubstr("memory"));
  EXPECT_EQ(error_for(std::runtime_error("x")).status, 500);
  EXPECT_EQ(error_for(lca::Error(lca::ErrorKind::busy, "x")).status, 409);
  ApiError later;
  later.retry_after = 3;
  EXPECT_EQ(error_for(ApiException(later)).retry_after, 3);
}

TEST(Reply, BytesThatAreNotUtf8AreReplaced) {
  const std::string text =
      whole(ask(Protocol::chat, false), {started(1), piece("a\xff"), done({1, 0, 1})});
  EXPECT_EQ(Json::parse(text)["choices"][0]["message"]["content"], "a\xef\xbf\xbd");
}

TEST(Reply, TokensAndTexts) {
  TokenizeRequest request;
  const std::vector<std::int32_t> ids = {1, 2, 3};
  const auto bytes_of = [](std::int32_t id) -> std::string_view {
    return id == 1 ? "a" : id == 2 ? "\xc3" : "\"\n";
  };
  EXPECT_EQ(tokenize_body(request, {}, bytes_of), R"({"tokens":[]})");
  EXPECT_EQ(tokenize_body(request, ids, bytes_of), R"({"tokens":[1,2,3]})");
  request.with_pieces = true;
  EXPECT_EQ(tokenize_body(request, ids, bytes_of),
            R"({"tokens":[{"id":1,"piece":"a"},{"id":2,"piece":[195]},{"id":3,"piece":"\"\n"}]})");
  EXPECT_EQ(detokenize_body("x"), R"({"content":"x"})");
  EXPECT_EQ(count_body(3), R"({"input_tokens":3})");
}

}  // namespace
}  // namespace lca::server::test
