// Bodies that are hostile or broken: each is 400 with one line, none is a crash.

#include "server/api/api_support.h"

namespace lca::server::test {
namespace {

ApiError body_error(std::string_view body) {
  const ApiError error = error_from([&] { json_parse_body(body); });
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.message.find('\n'), std::string::npos);
  return error;
}

TEST(RequestJson, ReadsAnObject) {
  const Json body = json_parse_body(R"({"a":1,"b":[true,null,"x"]})");
  EXPECT_EQ(body["a"], 1);
  EXPECT_EQ(body["b"].size(), 3);
}

TEST(RequestJson, RefusesWhatIsNotJson) {
  for (const std::string_view body :
       {"", " ", "{", "nul", "{\"a\":NaN}", "{\"a\":Infinity}", "{\"a\":-Infinity}", "{'a':1}",
        "{\"a\":1,}", "{\"a\":01}", "{\"a\":\"\x01\"}", "{} {}", "{\"a\":\"\\ud800\"}"}) {
    EXPECT_NE(body_error(body).message.find("not JSON"), std::string::npos) << body;
  }
}

TEST(RequestJson, RefusesWhatIsNoObject) {
  for (const std::string_view body : {"1", "[]", "null", "\"text\"", "true"}) {
    EXPECT_NE(body_error(body).message.find("must be a JSON object"), std::string::npos) << body;
  }
}

TEST(RequestJson, RefusesBytesThatAreNotUtf8) {
  for (const std::string_view body :
       {"{\"a\":\"\xff\"}", "{\"a\":\"\xc3\"}", "{\"a\":\"\xed\xa0\x80\"}", "{\"\xc0\x80\":1}"}) {
    EXPECT_NE(body_error(body).message.find("UTF-8"), std::string::npos);
  }
}

TEST(RequestJson, RefusesANumberThatNoDoubleHolds) {
  EXPECT_NE(body_error("{\"a\":1e400}").message.find("too large"), std::string::npos);
}

TEST(RequestJson, RefusesDuplicateKeysAtAnyDepth) {
  EXPECT_NE(body_error(R"({"a":1,"a":2})").message.find("twice"), std::string::npos);
  EXPECT_NE(body_error(R"({"x":[{"b":1,"b":1}]})").message.find("\"b\""), std::string::npos);
  EXPECT_NO_THROW(json_parse_body(R"({"a":{"b":1},"c":{"b":1}})"));
}

TEST(RequestJson, RefusesDeepNestingWithoutUsingTheStack) {
  const std::string deep(1'000'000, '[');
  EXPECT_NE(body_error("{\"a\":" + deep).message.find("nested deeper"), std::string::npos);
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_NE(body_error(objects).message.find("nested deeper"), std::string::npos);
  std::string legal = "{\"a\":";
  legal += std::string(kJsonDepth - 1, '[') + std::string(kJsonDepth - 1, ']') + "}";
  EXPECT_NO_THROW(json_parse_body(legal));
}

TEST(RequestJson, RefusesAnObjectWithVeryManyKeys) {
  const auto with_keys = [](std::size_t count) {
    std::string body = "{";
    for (std::size_t i = 0; i < count; ++i) body += fmt::format("{}\"k{}\":0", i ? "," : "", i);
    return body + "}";
  };
  EXPECT_NO_THROW(json_parse_body(with_keys(kJsonKeys)));
  EXPECT_NE(body_error(with_keys(kJsonKeys + 1)).message.find("keys"), std::string::npos);
}

TEST(RequestJson, AnIntegerIsOneWhateverItIsWrittenAs) {
  EXPECT_EQ(json_integer(Json(3.0), "x", 0, 9), 3);
  EXPECT_EQ(json_integer(Json(-2), "x", -9, 9), -2);
  for (const char* text : {"3.5", "1e300", "\"3\"", "true", "[]", "null", "18446744073709551615",
                           "99999999999999999999999", "10", "-1"}) {
    const ApiError error = error_from([&] { json_integer(Json::parse(text), "x", 0, 9); });
    EXPECT_EQ(error.status, 400) << text;
    EXPECT_EQ(error.param, "x") << text;
  }
}

TEST(RequestJson, ShowsValuesOnOnePrintableLine) {
  EXPECT_EQ(json_shown(Json("a\nb")), R"("a\nb")");
  EXPECT_EQ(json_shown(Json(std::string(1000, 'x'))).size(), 65);
  EXPECT_EQ(json_shown(Json("\x7f")), R"("\u007f")");
  EXPECT_EQ(json_shown(Json::parse(R"({"secret":1})")), "an object");
}

}  // namespace
}  // namespace lca::server::test
