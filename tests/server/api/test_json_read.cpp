// What clients and models write as JSON: the values a parser finds, in time linear in the text.

#include "server/api/api_support.h"
#include "server/json_read.h"

#include <gmock/gmock.h>

#include <chrono>
#include <random>
#include <string>
#include <string_view>

namespace lca::server::test {
namespace {

using testing::HasSubstr;

/// Quadratic time would be minutes for these texts.
template <typename Work>
void expect_soon(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

/// `part` again and again between brackets, `bytes` in all.
std::string list_of(std::string_view part, std::size_t bytes) {
  std::string text = "[";
  while (text.size() < bytes) text.append(part).append(",");
  text.back() = ']';
  return text;
}

std::string object_of(std::size_t keys) {
  std::string text = "{";
  for (std::size_t i = 0; i < keys; ++i) text += fmt::format("{}\"k{}\":0", i ? "," : "", i);
  return text + "}";
}

Json random_value(std::mt19937_64& random, int depth) {
  switch (random() % (depth > 0 ? 9 : 7)) {
    case 0:
      return nullptr;
    case 1:
      return random() % 2 == 0;
    case 2:
      return static_cast<std::int64_t>(random());
    case 3:
      return random();
    case 4:
      return static_cast<double>(random() % 1000) / 7;
    case 5:
      return "";
    case 6:
      return "é\n\"" + std::to_string(random());
    case 7: {
      Json list = Json::array();
      for (std::size_t i = random() % 6; i > 0; --i)
        list.push_back(random_value(random, depth - 1));
      return list;
    }
    default: {
      Json object = Json::object();
      for (std::size_t i = random() % 40; i > 0; --i) {
        object[std::to_string(random() % 100)] = random_value(random, depth - 1);
      }
      return object;
    }
  }
}

TEST(JsonRead, MakesWhatTheLibrarysParserMakes) {
  std::mt19937_64 random(18);
  for (int i = 0; i < 300; ++i) {
    const std::string text = random_value(random, 4).dump(i % 3 - 1);
    const JsonRead read = json_read(text);
    EXPECT_EQ(read.fault, "");
    EXPECT_EQ(read.value.dump(), Json::parse(text).dump());  // the order of keys too
  }
}

TEST(JsonRead, AKeyThatComesTwiceHasItsLastValueWhereItIsNoFault) {
  std::string text = R"({"a":1,"b":[1,{"c":2}],"a":{"b":[3]},"d":4)";
  for (int i = 0; i < 100; ++i) text += fmt::format(R"(,"k{}":[{}])", i % 50, i);
  text += "}";
  const JsonRead read = json_read(text, {.unique = false});
  EXPECT_EQ(read.fault, "");
  EXPECT_EQ(read.value.dump(), Json::parse(text).dump());
  EXPECT_EQ(read.value["k49"], Json({99}));
  EXPECT_THAT(json_read(text).fault, HasSubstr("\"a\" twice"));
  EXPECT_THAT(json_read(object_of(40) + object_of(40)).fault, HasSubstr("not JSON"));
  EXPECT_THAT(json_read(R"({"x":)" + object_of(40) + R"(,"k39":{"k39":1,"k39":2}})").fault,
              HasSubstr("\"k39\" twice"));
}

TEST(JsonRead, TakesTimeForTheTextAndNotForItsSquare) {
  constexpr std::size_t many = std::size_t{2} << 20;
  expect_soon(
      [&] { EXPECT_EQ(json_parse_body(R"({"a":)" + list_of("{}", many) + "}").size(), 1); });
  expect_soon([&] { EXPECT_EQ(json_read(list_of(object_of(512), many)).fault, ""); });
  expect_soon(
      [&] { EXPECT_EQ(json_read(object_of(300'000), kJsonOfModel).value.size(), 300'000); });
  expect_soon([&] { EXPECT_EQ(json_read(list_of("[[]]", many)).fault, ""); });
}

TEST(JsonRead, ArgumentsAreObjectsWithinTheLimitsOfABody) {
  EXPECT_EQ(json_read_arguments(" \n").value, Json::object());
  EXPECT_EQ(json_read_arguments(R"({"a":1,"a":2})").value, Json({{"a", 2}}));
  EXPECT_EQ(json_read_arguments(object_of(kJsonKeys)).fault, "");
  EXPECT_THAT(json_read_arguments(object_of(kJsonKeys + 1)).fault, HasSubstr("512 keys"));
  for (const char* text : {"[]", "{", "1", "\"{}\"", "{}x", "{\"a\":1e999}", "{\"a\":\"\xff\"}"}) {
    EXPECT_NE(json_read_arguments(text).fault, "") << text;
  }
  const std::string deep(kJsonDepth, '[');
  EXPECT_THAT(json_read_arguments("{\"a\":" + deep).fault, HasSubstr("deeper"));
}

TEST(JsonRead, RefusesMoreValuesThanMemoryShouldHold) {
  const JsonLimits limits = {.values = 4};
  EXPECT_EQ(json_read("[{}, [], 1]", limits).fault, "");
  EXPECT_THAT(json_read("[{}, [], 1, null]", limits).fault,
              HasSubstr("has more than 4 values; send less at once"));
  EXPECT_THAT(json_read(list_of("{}", std::size_t{16} << 20)).fault, HasSubstr("4194304 values"));
}

}  // namespace
}  // namespace lca::server::test
