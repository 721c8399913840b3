// Requests as clients send them, and the jobs they become.

#include "server/api/api_support.h"
#include "server/api/routes.h"

#include <gmock/gmock.h>

namespace lca::server::test {
namespace {

using testing::HasSubstr;

Job only_job(const ApiRequest& request) {
  EXPECT_EQ(request.jobs.size(), 1);
  return request.jobs.at(0);
}

const std::vector<Message>& messages_of(const Job& job) {
  return std::get<std::vector<Message>>(job.prompt);
}

Json chat_body(std::string_view more = "{}") {
  Json body = Json::parse(R"({"model":"m","messages":[{"role":"user","content":"hi"}]})");
  body.update(Json::parse(more));
  return body;
}

Json messages_body(std::string_view more = "{}") {
  Json body = chat_body(more);
  if (!body.contains("max_tokens")) body["max_tokens"] = 9;
  return body;
}

TEST(ParseChat, AShortRequestHasTheProtocolsDefaults) {
  const ApiRequest request = parse_chat(chat_body());
  EXPECT_EQ(request.model, "m");
  EXPECT_FALSE(request.stream);
  const Job job = only_job(request);
  EXPECT_EQ(messages_of(job).at(0).role, "user");
  EXPECT_EQ(messages_of(job).at(0).text, "hi");
  EXPECT_EQ(job.generate.sampling.temperature, 1);
  EXPECT_EQ(job.generate.sampling.top_p, 1);
  EXPECT_EQ(job.generate.max_tokens, kNoTokenLimit);
  EXPECT_FALSE(job.seeded);
  EXPECT_FALSE(job.generate.logprobs);
  EXPECT_EQ(job.n, 1);
  EXPECT_EQ(job.rule.kind, OutputRule::Kind::free);
}

TEST(ParseChat, EverySamplerArrives) {
  const Job job = only_job(parse_chat(chat_body(
      R"({"temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.05,"repetition_penalty":1.1,"seed":-1,
          "n":3,"stop":["a","b"],"max_tokens":7,"logprobs":true,"top_logprobs":4,"ignore_eos":true})")));
  EXPECT_EQ(job.generate.sampling.temperature, 0.5);
  EXPECT_EQ(job.generate.sampling.top_p, 0.9);
  EXPECT_EQ(job.generate.sampling.top_k, 40);
  EXPECT_EQ(job.generate.sampling.min_p, 0.05);
  EXPECT_EQ(job.generate.sampling.repetition_penalty, 1.1);
  EXPECT_TRUE(job.seeded);
  EXPECT_EQ(job.generate.sampling.seed, ~std::uint64_t{0});
  EXPECT_EQ(job.n, 3);
  EXPECT_THAT(job.generate.stops, testing::ElementsAre("a", "b"));
  EXPECT_EQ(job.generate.max_tokens, 7);
  EXPECT_TRUE(job.generate.logprobs);
  EXPECT_EQ(job.generate.top_logprobs, 4);
  EXPECT_TRUE(job.ignore_end);
}

TEST(ParseChat, MaxTokensIsMaxCompletionTokens) {
  EXPECT_EQ(only_job(parse_chat(chat_body(R"({"max_completion_tokens":5})"))).generate.max_tokens,
            5);
  EXPECT_EQ(only_job(parse_chat(chat_body(R"({"max_completion_tokens":5,"max_tokens":5})")))
                .generate.max_tokens,
            5);
  const ApiError error =
      error_from([] { parse_chat(chat_body(R"({"max_completion_tokens":5,"max_tokens":6})")); });
  EXPECT_EQ(error.param, "max_tokens");
}

TEST(ParseChat, DeveloperIsSystemAndTextPartsAreJoined) {
  const Job job = only_job(parse_chat(Json::parse(R"({"messages":[
      {"role":"developer","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function",
        "function":{"name":"f","arguments":"{\"x\":1}"}}]},
      {"role":"tool","tool_call_id":"c1","content":"42"},
      {"role":"user","content":"go on"}]})")));
  const std::vector<Message>& list = messages_of(job);
  ASSERT_EQ(list.size(), 4);
  EXPECT_EQ(list[0].role, "system");
  EXPECT_EQ(list[0].text, "ab");
  EXPECT_EQ(list[1].calls.at(0).name, "f");
  EXPECT_EQ(list[1].calls.at(0).arguments, R"({"x":1})");
  EXPECT_EQ(list[2].role, "tool");
  EXPECT_EQ(list[2].tool_call_id, "c1");
}

TEST(ParseChat, ArgumentsOfCallsAreObjectsOfFewKeys) {
  const auto chat = [](const std::string& arguments) {
    Json body = chat_body();
    body["messages"].push_back(
        {{"role", "assistant"},
         {"tool_calls",
          Json::array({{{"id", "c"}, {"function", {{"name", "f"}, {"arguments", arguments}}}}})}});
    return parse_chat(body);
  };
  const auto responses = [](const std::string& arguments) {
    const Json item = {
        {"type", "function_call"}, {"call_id", "c"}, {"name", "f"}, {"arguments", arguments}};
    return parse_responses({{"input", Json::array({item})}});
  };
  Json many;
  for (int i = 0; i < 513; ++i) many[std::to_string(i)] = 0;
  for (const std::string& arguments : {std::string("[]"), std::string("{"), many.dump()}) {
    EXPECT_THAT(error_from([&] { chat(arguments); }).param, HasSubstr("function.arguments"));
    EXPECT_EQ(error_from([&] { responses(arguments); }).param, "input[0].arguments");
  }
  for (const char* arguments : {"", " ", "{}", R"({"a":1,"a":2})"}) {
    EXPECT_EQ(messages_of(only_job(chat(arguments))).back().calls.at(0).arguments, arguments);
    EXPECT_EQ(messages_of(only_job(responses(arguments))).back().calls.at(0).arguments, arguments);
  }
}

TEST(ParseChat, OtherPartsThanTextAreRefused) {
  for (const char* type : {"image_url", "input_audio", "file", "refusal"}) {
    Json body = chat_body();
    body["messages"][0]["content"] = Json::array();
    body["messages"][0]["content"].push_back({{"type", type}, {"text", "x"}});
    const ApiError error = error_from([&] { parse_chat(body); });
    EXPECT_EQ(error.param, "messages[0].content[0].type");
    EXPECT_THAT(error.message, HasSubstr(type));
  }
}

TEST(ParseChat, BrokenMessagesAreRefusedWithTheirPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {R"([])", "messages"},
      {R"("hi")", "messages"},
      {R"([1])", "messages[0]"},
      {R"([{"content":"x"}])", "messages[0].role"},
      {R"([{"role":"robot","content":"x"}])", "messages[0].role"},
      {R"([{"role":"user"}])", "messages[0].content"},
      {R"([{"role":"user","content":null}])", "messages[0].content"},
      {R"([{"role":"assistant"}])", "messages[0].content"},
      {R"([{"role":"user","content":5}])", "messages[0].content"},
      {R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text"},
      {R"([{"role":"tool","content":"x"}])", "messages[0].tool_call_id"},
      {R"([{"role":"assistant","tool_calls":[{"id":"a"}]}])", "messages[0].tool_calls[0].function"},
  };
  for (const auto& [messages, param] : cases) {
    Json body;
    body["messages"] = Json::parse(messages);
    const ApiError error = error_from([&] { parse_chat(body); });
    EXPECT_EQ(error.status, 400) << messages;
    EXPECT_EQ(error.param, param) << messages;
  }
}

TEST(ParseChat, NumbersOutsideTheirRangeAreRefused) {
  for (const char* more :
       {R"({"temperature":2.1})", R"({"temperature":-0.1})", R"({"top_p":1.5})", R"({"n":0})",
        R"({"n":129})", R"({"max_tokens":0})", R"({"max_tokens":-1})", R"({"top_logprobs":21})",
        R"({"top_logprobs":1})", R"({"seed":1e30})", R"({"stop":""})", R"({"stop":[1]})",
        R"({"stream":"yes"})", R"({"logprobs":1})", R"({"temperature":"1"})",
        R"({"max_tokens":2.5})", R"({"max_tokens":99999999999999999999})"}) {
    EXPECT_EQ(error_from([&] { parse_chat(chat_body(more)); }).status, 400) << more;
  }
}

TEST(ParseChat, TopPOfZeroIsTheLikeliestToken) {
  const Job job = only_job(parse_chat(chat_body(R"({"top_p":0})")));
  EXPECT_EQ(job.generate.sampling.top_k, 1);
  EXPECT_EQ(job.generate.sampling.top_p, 1);
}

TEST(ParseChat, UsageIsForStreamsThatAskForIt) {
  EXPECT_TRUE(parse_chat(chat_body(R"({"stream":true,"stream_options":{"include_usage":true}})"))
                  .include_usage);
  EXPECT_FALSE(parse_chat(chat_body(R"({"stream":true})")).include_usage);
  EXPECT_FALSE(parse_chat(chat_body(R"({"stream_options":{"include_usage":true}})")).include_usage);
}

TEST(ParseChat, ResponseFormatIsARule) {
  const auto rule = [](const char* format) {
    Json body = chat_body();
    body["response_format"] = Json::parse(format);
    return only_job(parse_chat(body)).rule;
  };
  EXPECT_EQ(rule(R"({"type":"text"})").kind, OutputRule::Kind::free);
  EXPECT_EQ(rule(R"({"type":"json_object"})").kind, OutputRule::Kind::json_object);
  const OutputRule schema =
      rule(R"({"type":"json_schema","json_schema":{"name":"s","schema":{"type":"object"}}})");
  EXPECT_EQ(schema.kind, OutputRule::Kind::json_schema);
  EXPECT_EQ(schema.name, "s");
  EXPECT_EQ(schema.schema, Json::parse(R"({"type":"object"})"));
  for (const char* wrong : {R"({})", R"({"type":"xml"})", R"({"type":"json_schema"})",
                            R"({"type":"json_schema","json_schema":{"name":"s"}})",
                            R"({"type":"json_schema","json_schema":{"name":"s s","schema":{}}})",
                            R"({"type":"json_schema","json_schema":{"name":"s","schema":[]}})"}) {
    EXPECT_EQ(error_from([&] { rule(wrong); }).status, 400) << wrong;
  }
}

TEST(ParseChat, ToolChoiceIsARule) {
  const auto job = [](const char* choice) {
    Json body = chat_body(R"({"tools":[{"type":"function","function":{"name":"f","strict":true,
        "description":"d","parameters":{"type":"object"}}}],"parallel_tool_calls":false})");
    body["tool_choice"] = Json::parse(choice);
    return only_job(parse_chat(body));
  };
  const Job automatic = job("\"auto\"");
  EXPECT_EQ(automatic.tools.at(0).name, "f");
  EXPECT_TRUE(automatic.tools.at(0).strict);
  EXPECT_FALSE(automatic.parallel_calls);
  EXPECT_EQ(automatic.rule.kind, OutputRule::Kind::free);
  EXPECT_TRUE(job("\"none\"").tools.empty());
  EXPECT_EQ(job("\"required\"").rule.kind, OutputRule::Kind::tool_required);
  const Job named = job(R"({"type":"function","function":{"name":"f"}})");
  EXPECT_EQ(named.rule.kind, OutputRule::Kind::tool_named);
  EXPECT_EQ(named.rule.name, "f");
  for (const char* wrong : {"\"always\"", "5", R"({"type":"function","function":{"name":"g"}})",
                            R"({"type":"allowed_tools"})", R"({"type":"function"})"}) {
    EXPECT_EQ(error_from([&] { job(wrong); }).status, 400) << wrong;
  }
  EXPECT_EQ(error_from([] { parse_chat(chat_body(R"({"tool_choice":"required"})")); }).param,
            "tool_choice");
}

TEST(ParseSession, ComesFromMetadataOrTheHeader) {
  EXPECT_EQ(only_job(parse_chat(chat_body(R"({"metadata":{"session":"a.b-c_1"}})"))).session,
            "a.b-c_1");
  EXPECT_EQ(only_job(parse_chat(chat_body(), "k")).session, "k");
  EXPECT_EQ(only_job(parse_chat(chat_body(R"({"metadata":{"session":"k"}})"), "k")).session, "k");
  EXPECT_EQ(
      error_from([] { parse_chat(chat_body(R"({"metadata":{"session":"j"}})"), "k"); }).status,
      400);
  EXPECT_EQ(error_from([] { parse_chat(chat_body(), "../etc"); }).status, 400);
}

TEST(ParseSession, NamesAreSafeAsFiles) {
  EXPECT_TRUE(session_name_valid(std::string(64, 'a')));
  for (const std::string_view name :
       {"", ".", "..", ".a", "a/b", "a b", "a\n", "\xc3\xa4", "a\\b"}) {
    EXPECT_FALSE(session_name_valid(name)) << name;
  }
  EXPECT_FALSE(session_name_valid(std::string(65, 'a')));
}

TEST(ParseCompletions, TakesTextIdsAndBatchesOfBoth) {
  const auto jobs = [](const char* prompt) {
    Json body;
    body["prompt"] = Json::parse(prompt);
    return parse_completions(body).jobs;
  };
  EXPECT_EQ(std::get<std::string>(jobs("\"hi\"").at(0).prompt), "hi");
  EXPECT_EQ(jobs("\"hi\"").at(0).generate.max_tokens, 16);
  EXPECT_THAT(std::get<std::vector<std::int32_t>>(jobs("[1,2]").at(0).prompt),
              testing::ElementsAre(1, 2));
  EXPECT_EQ(jobs(R"(["a","b","c"])").size(), 3);
  EXPECT_EQ(jobs("[[1],[2,3]]").size(), 2);
  for (const char* wrong : {"[]", "[[]]", "{}", "5", "[1,\"a\"]", "[-1]", "[1.5]", "[4294967296]",
                            "[null]", "[[\"a\"]]", "true"}) {
    EXPECT_EQ(error_from([&] { jobs(wrong); }).status, 400) << wrong;
  }
}

TEST(ParseCompletions, EchoWithLogprobsAsksForThePromptsToo) {
  const Job job = only_job(
      parse_completions(Json::parse(R"({"prompt":"x","echo":true,"logprobs":0,"max_tokens":0})")));
  EXPECT_TRUE(job.echo);
  EXPECT_TRUE(job.generate.logprobs);
  EXPECT_TRUE(job.generate.prompt_logprobs);
  EXPECT_EQ(job.generate.top_logprobs, 0);
  EXPECT_EQ(job.generate.max_tokens, 0);
}

TEST(ParseCompletions, BestOfMayOnlyBeN) {
  EXPECT_NO_THROW(parse_completions(Json::parse(R"({"prompt":"x","n":2,"best_of":2})")));
  EXPECT_EQ(
      error_from([] { parse_completions(Json::parse(R"({"prompt":"x","best_of":2})")); }).param,
      "best_of");
}

TEST(ParseResponses, ItemsBecomeMessages) {
  const ApiRequest request = parse_responses(Json::parse(R"({"instructions":"be short","input":[
      {"role":"user","content":[{"type":"input_text","text":"q"}]},
      {"type":"message","role":"assistant","content":[{"type":"output_text","text":"a"}]},
      {"type":"function_call","call_id":"c","name":"f","arguments":"{}"},
      {"type":"function_call_output","call_id":"c","output":"r"}],"max_output_tokens":3})"));
  const Job job = only_job(request);
  const std::vector<Message>& list = messages_of(job);
  ASSERT_EQ(list.size(), 4);
  EXPECT_EQ(list[0].role, "system");
  EXPECT_EQ(list[2].text, "a");
  EXPECT_EQ(list[2].calls.at(0).id, "c");
  EXPECT_EQ(list[3].role, "tool");
  EXPECT_EQ(list[3].text, "r");
  EXPECT_EQ(request.shown["instructions"], "be short");
  EXPECT_EQ(request.shown["store"], false);
}

TEST(ParseResponses, StateIsRefused) {
  for (const char* more : {R"({"store":true})", R"({"previous_response_id":"resp_1"})",
                           R"({"conversation":"c"})", R"({"background":true})"}) {
    Json body = Json::parse(R"({"input":"x"})");
    body.update(Json::parse(more));
    EXPECT_EQ(error_from([&] { parse_responses(body); }).status, 400) << more;
  }
  EXPECT_NO_THROW(parse_responses(Json::parse(R"({"input":"x","store":false})")));
  for (const char* item : {R"({"type":"item_reference","id":"x"})", R"({"type":"reasoning"})",
                           R"({"role":"user","content":[{"type":"input_image","text":""}]})"}) {
    Json body;
    body["input"] = Json::array();
    body["input"].push_back(Json::parse(item));
    EXPECT_EQ(error_from([&] { parse_responses(body); }).status, 400) << item;
  }
}

TEST(ParseMessages, BlocksBecomeMessages) {
  const Job job = only_job(parse_messages(Json::parse(R"({"max_tokens":9,
      "system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}],
      "stop_sequences":["END"],"messages":[
      {"role":"user","content":"q"},
      {"role":"assistant","content":[{"type":"text","text":"let me see"},
        {"type":"tool_use","id":"t","name":"f","input":{"x":1}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[
        {"type":"text","text":"42"}]},{"type":"text","text":"and?"}]}]})")));
  const std::vector<Message>& list = messages_of(job);
  ASSERT_EQ(list.size(), 5);
  EXPECT_EQ(list[0].role, "system");
  EXPECT_EQ(list[2].calls.at(0).arguments, R"({"x":1})");
  EXPECT_EQ(list[3].role, "tool");
  EXPECT_EQ(list[3].text, "42");
  EXPECT_EQ(list[4].text, "and?");
  EXPECT_THAT(job.generate.stops, testing::ElementsAre("END"));
}

TEST(ParseMessages, RefusesWhatItCannotDo) {
  EXPECT_EQ(error_from([] { parse_messages(chat_body()); }).param, "max_tokens");
  for (const char* more :
       {R"({"temperature":1.5})", R"({"tools":[{"type":"bash_20250124","name":"bash"}]})",
        R"({"thinking":{"type":"enabled","budget_tokens":2000}})",
        R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})",
        R"({"messages":[{"role":"user","content":[{"type":"image","source":{}}]}]})",
        R"({"tool_choice":{"type":"any"}})", R"({"tools":[{"name":"f"}]})"}) {
    EXPECT_EQ(error_from([&] { parse_messages(messages_body(more)); }).status, 400) << more;
  }
}

TEST(ParseMessages, ToolChoiceIsARule) {
  const auto job = [](const char* choice) {
    Json body = messages_body(R"({"tools":[{"name":"f","input_schema":{"type":"object"}}]})");
    body["tool_choice"] = Json::parse(choice);
    return only_job(parse_messages(body));
  };
  EXPECT_EQ(job(R"({"type":"any"})").rule.kind, OutputRule::Kind::tool_required);
  EXPECT_EQ(job(R"({"type":"tool","name":"f"})").rule.name, "f");
  EXPECT_TRUE(job(R"({"type":"none"})").tools.empty());
  EXPECT_FALSE(job(R"({"type":"auto","disable_parallel_tool_use":true})").parallel_calls);
}

TEST(ParseTokens, TokenizeAndDetokenize) {
  const TokenizeRequest request =
      parse_tokenize(Json::parse(R"({"content":"x","add_special":true,"with_pieces":true})"));
  EXPECT_TRUE(request.add_special && request.with_pieces && request.parse_special);
  EXPECT_THAT(parse_detokenize(Json::parse(R"({"tokens":[0,5]})")), testing::ElementsAre(0, 5));
  EXPECT_TRUE(parse_detokenize(Json::parse(R"({"tokens":[]})")).empty());
  EXPECT_EQ(error_from([] { parse_tokenize(Json::object()); }).param, "content");
  EXPECT_EQ(error_from([] { parse_detokenize(Json::parse(R"({"tokens":[-1]})")); }).param,
            "tokens[0]");
  EXPECT_EQ(parse_fork(Json::parse(R"({"to":"b","at_message":2})")).at_message, 2);
  EXPECT_EQ(error_from([] { parse_fork(Json::parse(R"({"to":"../b"})")); }).param, "to");
}

TEST(ParseModel, AStrictServerKnowsOneName) {
  EXPECT_NO_THROW(model_check("", "tiny"));
  EXPECT_NO_THROW(model_check("tiny", "tiny"));
  const ApiError error = error_from([] { model_check("gpt", "tiny"); });
  EXPECT_EQ(error.status, 404);
  EXPECT_THAT(error.message, HasSubstr("\"tiny\""));
}

TEST(Routes, AreFoundByMethodAndPath) {
  const auto match = [](const char* method, const char* path) {
    HttpRequest request;
    request.method = method;
    request.path = path;
    return route_match(request);
  };
  EXPECT_EQ(match("POST", "/v1/chat/completions").route, Route::chat);
  EXPECT_EQ(match("HEAD", "/health").route, Route::health);
  EXPECT_EQ(match("POST", "/v1/messages").dialect, Dialect::anthropic);
  EXPECT_EQ(match("GET", "/v1/models/org/name").name, "org/name");
  EXPECT_EQ(match("POST", "/v1/sessions/a/fork").name, "a");
  EXPECT_EQ(match("DELETE", "/v1/sessions/a").route, Route::session_delete);
  EXPECT_EQ(match("GET", "/cache/a").name, "a");
  const std::pair<const char*, const char*> nowhere[] = {
      {"GET", "/nothing"}, {"GET", "/v1/models/"},         {"GET", "/cache/a/b"},
      {"GET", ""},         {"POST", "/v1/sessions//fork"}, {"GET", "/v1/chat/completions/"}};
  for (const auto& [method, path] : nowhere) {
    EXPECT_EQ(error_from([&] { match(method, path); }).status, 404) << path;
  }
  const ApiError error = error_from([&] { match("POST", "/v1/models"); });
  EXPECT_EQ(error.status, 405);
  EXPECT_EQ(error.allow, "GET, HEAD");
}

TEST(Routes, TheDialectIsTheCallers) {
  HttpRequest request;
  request.method = "GET";
  request.path = "/v1/models";
  EXPECT_EQ(route_match(request).dialect, Dialect::openai);
  request.headers.emplace_back("Anthropic-Version", "2023-06-01");
  EXPECT_EQ(route_match(request).dialect, Dialect::anthropic);
}

}  // namespace
}  // namespace lca::server::test
