// The table of fields: every refused one is refused by name, by the parser of its route.

#include "server/api/api_support.h"
#include "server/api/fields.h"
#include "server/api/routes.h"

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

namespace lca::server::test {
namespace {

Json smallest(std::string_view route) {
  if (route == "chat") return Json::parse(R"({"messages":[{"role":"user","content":"hi"}]})");
  if (route == "completions") return Json::parse(R"({"prompt":"hi"})");
  if (route == "responses") return Json::parse(R"({"input":"hi"})");
  Json body = Json::parse(R"({"messages":[{"role":"user","content":"hi"}]})");
  if (route == "messages") body["max_tokens"] = 5;
  return body;
}

void parse_route(std::string_view route, const Json& body) {
  if (route == "chat") {
    parse_chat(body);
  } else if (route == "completions") {
    parse_completions(body);
  } else if (route == "responses") {
    parse_responses(body);
  } else if (route == "messages") {
    parse_messages(body);
  } else {
    parse_count_tokens(body);
  }
}

/// The body with a field of one of its objects set.
Json body_with(const FieldRule& rule, const Json& value) {
  const std::string_view route = rule.object.substr(0, rule.object.find('.'));
  const std::string_view inside =
      route.size() == rule.object.size() ? "" : rule.object.substr(route.size() + 1);
  const std::string name(rule.name);
  Json body = smallest(route);
  if (inside.empty()) {
    body[name] = value;
  } else if (inside == "messages[]") {
    body["messages"][0][name] = value;
  } else if (inside == "tools[]") {
    body["tools"] =
        Json::parse(R"([{"type":"function","name":"f","input_schema":{"type":"object"}}])");
    if (route == "messages") body["tools"][0]["type"] = "custom";
    body["tools"][0][name] = value;
  } else {
    body[std::string(inside)][name] = value;
  }
  return body;
}

TEST(Fields, EveryRefusedFieldIsRefusedByNameUnlessItSaysNothing) {
  int count = 0;
  for (const FieldRule& rule : field_rules()) {
    if (rule.use != FieldUse::refused) continue;
    const std::string_view route = rule.object.substr(0, rule.object.find('.'));
    SCOPED_TRACE(fmt::format("{}.{}", rule.object, rule.name));
    for (const Json& other : {Json("unheard of"), Json::parse(R"({"x":1})"), Json(7)}) {
      const ApiError error = error_from([&] { parse_route(route, body_with(rule, other)); });
      EXPECT_EQ(error.status, 400);
      EXPECT_NE(error.message.find(rule.name), std::string::npos) << error.message;
      EXPECT_TRUE(error.param.ends_with(rule.name)) << error.param;
    }
    EXPECT_NO_THROW(parse_route(route, body_with(rule, nullptr)));
    for (const Json& allowed : Json::parse(rule.allowed)) {
      EXPECT_NO_THROW(parse_route(route, body_with(rule, allowed))) << allowed;
    }
    ++count;
  }
  EXPECT_GT(count, 40);
}

TEST(Fields, IgnoredFieldsMayHaveAnyValue) {
  for (const FieldRule& rule : field_rules()) {
    if (rule.use != FieldUse::ignored || rule.object.find('.') != std::string_view::npos) continue;
    if (rule.name == "stream_options") continue;  // its type is checked
    SCOPED_TRACE(fmt::format("{}.{}", rule.object, rule.name));
    for (const Json& other : {Json("x"), Json(7), Json::array(), Json::object()}) {
      EXPECT_NO_THROW(parse_route(rule.object, body_with(rule, other)));
    }
  }
}

TEST(Fields, HonouredFieldsOfAWrongTypeAreRefused) {
  // A list of a list is a value that no field takes.
  const Json wrong = Json::parse("[[[]]]");
  for (const FieldRule& rule : field_rules()) {
    if (rule.use != FieldUse::honoured || rule.object.find('.') != std::string_view::npos) continue;
    if (rule.object == "tokenize" || rule.object == "detokenize") continue;
    SCOPED_TRACE(fmt::format("{}.{}", rule.object, rule.name));
    EXPECT_EQ(error_from([&] { parse_route(rule.object, body_with(rule, wrong)); }).status, 400);
  }
}

TEST(Fields, UnknownFieldsAreIgnored) {
  for (const std::string_view route :
       {"chat", "completions", "responses", "messages", "count_tokens"}) {
    Json body = smallest(route);
    body["nobody_defines_this"] = Json::parse(R"({"a":[1]})");
    EXPECT_NO_THROW(parse_route(route, body)) << route;
  }
}

TEST(Fields, NoFieldIsListedTwice) {
  std::set<std::string> seen;
  for (const FieldRule& rule : field_rules()) {
    EXPECT_TRUE(seen.insert(fmt::format("{}.{}", rule.object, rule.name)).second) << rule.name;
  }
}

TEST(Fields, TheDocumentIsMadeFromTheTable) {
  const std::string path = std::string(LCA_SOURCE_DIR) + "/docs/serving-fields.md";
  if (std::getenv("LCA_UPDATE_DOCS") != nullptr) std::ofstream(path) << fields_markdown();
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), fields_markdown()) << "run this test with LCA_UPDATE_DOCS=1";
}

TEST(OpenApi, HasEveryRouteAndEveryHonouredField) {
  const Json document = Json::parse(openapi_body());
  for (const RouteEntry& entry : route_table()) {
    std::string method(entry.method);
    for (char& c : method) c = static_cast<char>(std::tolower(c));
    EXPECT_TRUE(document["paths"][std::string(entry.path)].contains(method)) << entry.path;
  }
  const std::pair<std::string_view, const char*> requests[] = {
      {"chat", "ChatRequest"},
      {"completions", "CompletionsRequest"},
      {"responses", "ResponsesRequest"},
      {"messages", "MessagesRequest"},
      {"count_tokens", "CountTokensRequest"},
      {"tokenize", "TokenizeRequest"},
      {"detokenize", "DetokenizeRequest"}};
  for (const auto& [object, schema] : requests) {
    for (const FieldRule& rule : field_rules()) {
      if (rule.object != object || rule.use != FieldUse::honoured) continue;
      EXPECT_TRUE(document["components"]["schemas"][schema]["properties"].contains(rule.name))
          << object << " " << rule.name;
    }
  }
}

TEST(OpenApi, EveryReferenceHasItsSchema) {
  const std::string text = openapi_body();
  const Json schemas = Json::parse(text)["components"]["schemas"];
  constexpr std::string_view kStart = "\"#/components/schemas/";
  int count = 0;
  for (std::size_t at = text.find(kStart); at != std::string::npos;
       at = text.find(kStart, at + 1)) {
    const std::size_t begin = at + kStart.size();
    EXPECT_TRUE(schemas.contains(text.substr(begin, text.find('"', begin) - begin)));
    ++count;
  }
  EXPECT_GT(count, 50);
}

}  // namespace
}  // namespace lca::server::test
