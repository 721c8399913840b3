// What users are told about the length a model was trained for: by inspect, plan, and a warning
// where it is exceeded; and perplexity by ranges of positions.

#include "apps/program.h"
#include "apps/tiny_model.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace lca::test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

// The model is trained for 256 tokens. With this it reads more: 218 representatives fit beside 38
// exact tokens, the most there are, and one more until the window has refilled but for one token.
const Words kEntry = {"--positions", "entry", "--group", "8", "--window", "28", "--sink", "3"};
constexpr std::int64_t kLongest = 31 + (256 - 38 + 2) * 8 - 2;
static_assert(kLongest == 1789);

class TrainedLengthTold : public testing::Test {
 protected:
  TrainedLengthTold() { model.write(); }

  Words words(const Words& command, const Words& more) const {
    Words all = command;
    all.push_back(model.path());
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Finished done(const Words& command, const Words& more) const {
    Finished finished = program_run(words(command, more));
    EXPECT_EQ(finished.code, 0) << finished.err;
    return finished;
  }
  json printed(const Words& command, Words more) const {
    more.push_back("--json");
    return json::parse(done(command, more).out);
  }
  /// A text of exactly as many tokens: a token of this tokenizer is at most a digit.
  std::string digits(std::int64_t tokens) const {
    write_file(model / "digits.txt", std::string(static_cast<std::size_t>(tokens), '7'));
    return (model / "digits.txt").string();
  }
  Words evaluation(std::int64_t tokens, const Words& more) const {
    Words all = {"--file", digits(tokens), "--length", std::to_string(tokens)};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  TinyModel model;
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_F(TrainedLengthTold, InspectShowsBothLengths) {
  const std::string out = done({"inspect"}, kEntry).out;
  EXPECT_TRUE(has(out, "trained for 256 tokens; about 1,780 tokens with g 8, w 28\n")) << out;
  EXPECT_EQ(printed({"inspect"}, kEntry)["longest_in_range"], kLongest);
  EXPECT_EQ(printed({"inspect"}, kEntry)["context"], 256);

  const std::string token = done({"inspect"}, {"--positions", "token"}).out;
  EXPECT_TRUE(has(token, "trained for 256 tokens\n")) << token;
  EXPECT_EQ(printed({"inspect"}, {"--positions", "token"})["longest_in_range"], 256);

  const Words window = {"--positions", "entry", "--method", "window", "--window", "28"};
  const std::string any = done({"inspect"}, window).out;
  EXPECT_TRUE(has(any, "trained for 256 tokens; any number of tokens with w 28\n")) << any;
  EXPECT_TRUE(printed({"inspect"}, window)["longest_in_range"].is_null());
}

TEST_F(TrainedLengthTold, TheLayerThatReachesLeastIsShown) {
  model.config["lca"] = {{"group", json::array({8, 4})}, {"window", 28}, {"positions", "entry"}};
  model.write();
  const std::string out = done({"inspect"}, {}).out;
  EXPECT_TRUE(has(out, "tokens with g 4, w 28 of its narrowest layer\n")) << out;
  EXPECT_EQ(printed({"inspect"}, {})["longest_in_range"], 28 + (256 - 31 + 2) * 4 - 2);
}

TEST_F(TrainedLengthTold, PlanShowsBothLengths) {
  const std::string out = done({"plan"}, with({"--length", "1K"}, kEntry)).out;
  EXPECT_TRUE(has(out, "trained for 256 tokens; about 1,780 tokens with g 8, w 28\n")) << out;
  EXPECT_TRUE(has(out, "| longest context within those ")) << out;
  const json plan = printed({"plan"}, with({"--length", "1K"}, kEntry));
  EXPECT_EQ(plan["context"], 256);
  EXPECT_EQ(plan["lca"]["longest_in_range"], kLongest);
  EXPECT_EQ(plan["dense"]["longest_in_range"], 256);
  EXPECT_EQ(plan["dense"]["positions"], 1024);
  EXPECT_EQ(plan["lca"]["positions"], 161);  // 124 groups; before the last, 38 exact tokens
  // A shape has no trained length.
  EXPECT_FALSE(
      json::parse(program_run({"plan", "--shape", "smollm2", "--positions", "entry", "--json"}).out)
          .contains("context"));
}

TEST_F(TrainedLengthTold, TheWarningComesOnlyWherePositionsExceed) {
  const auto warnings = [&](std::int64_t tokens, const Words& more) {
    return printed({"eval", "perplexity"}, evaluation(tokens, more))["warnings"];
  };
  EXPECT_EQ(warnings(256, {"--positions", "token"}).size(), 0u);
  const json token =
      warnings(257, {"--positions", "token", "--group", "8", "--window", "28", "--sink", "3"});
  ASSERT_EQ(token.size(), 1u);
  for (const char* part : {"257 tokens", "256 this model", "--positions entry", "1789 tokens"}) {
    EXPECT_TRUE(has(token[0], part)) << token[0];
  }
  EXPECT_EQ(warnings(kLongest, kEntry).size(), 0u);
  const json entry = warnings(kLongest + 1, kEntry);
  ASSERT_EQ(entry.size(), 1u);
  for (const char* part : {"1790 tokens", "257 positions", "the 256 this model", "1789 tokens"}) {
    EXPECT_TRUE(has(entry[0], part)) << entry[0];
  }
  // Dense attention has no entries to count.
  const json dense = warnings(257, {"--method", "dense", "--positions", "entry"});
  ASSERT_EQ(dense.size(), 1u);
  EXPECT_FALSE(has(dense[0], "--positions")) << dense[0];
}

TEST_F(TrainedLengthTold, RunChatAndBenchWarnByTheSameRule) {
  const std::string text(600, '7');
  const Words reply = {"-p", text, "-n", "2"};
  EXPECT_EQ(printed({"run"}, with(reply, kEntry))["warnings"].size(), 0u);
  EXPECT_EQ(printed({"run"}, with(reply, {"--positions", "token"}))["warnings"].size(), 1u);

  write_file(model / "turns.txt", text + "\n/stats\n");
  const auto chat = [&](const Words& more) {
    return program_run_with((model / "turns.txt").string(),
                            words({"chat"}, with({"-n", "2"}, more)));
  };
  const Finished quiet = chat(kEntry);
  EXPECT_FALSE(has(quiet.err, "warning")) << quiet.err;
  EXPECT_TRUE(has(quiet.out, "trained for 256 tokens; about 1,780 tokens")) << quiet.out;
  EXPECT_TRUE(has(chat({"--positions", "token"}).err, "lca: warning: ")) << quiet.err;

  const Words bench = {"--prompt", "600", "--depths", "none", "--repeat", "1"};
  EXPECT_EQ(printed({"bench", "model"}, with(bench, kEntry))["warnings"].size(), 0u);
  EXPECT_EQ(printed({"bench", "model"}, with(bench, {"--positions", "token"}))["warnings"].size(),
            1u);
}

TEST_F(TrainedLengthTold, PerplexityIsToldByRangesOfPositions) {
  const auto ranges = [&](std::int64_t tokens, const Words& more) {
    std::string text;
    const json report = printed({"eval", "perplexity"}, evaluation(tokens, more));
    for (const json& range : report["by_range"]) {
      text += std::to_string(range["from"].get<int>()) + "-" +
              std::to_string(range["to"].get<int>()) + " ";
    }
    return text;
  };
  EXPECT_EQ(ranges(100, {}), "1-100 ");
  EXPECT_EQ(ranges(5000, kEntry), "1-2048 2048-4096 4096-5000 ");
  EXPECT_EQ(ranges(300, {"--ranges", "50,100,200"}), "1-50 50-100 100-200 200-300 ");
  EXPECT_EQ(ranges(200, {"--ranges", "50,100,200,400"}), "1-50 50-100 100-200 ");
  const std::string table =
      done({"eval", "perplexity"}, evaluation(5000, with({"--ranges", "1K,4K"}, kEntry))).out;
  for (const char* part : {"| 0 – 1K ", "| 1K – 4K ", "| 4K – 5000 ", "| all "}) {
    EXPECT_TRUE(has(table, part)) << table;
  }
}

TEST_F(TrainedLengthTold, RangesOfOnePassAreThoseOfTheWhole) {
  // A range's sum is the difference of two shorter readings: nothing after a token changes it.
  const auto sum = [&](std::int64_t tokens) {
    const json report = printed({"eval", "perplexity"}, evaluation(tokens, kEntry));
    return report["nll"].get<double>() * static_cast<double>(tokens - 1);
  };
  const json report =
      printed({"eval", "perplexity"}, evaluation(900, with({"--ranges", "300,700"}, kEntry)));
  const json& middle = report["by_range"][1];
  EXPECT_NEAR(middle["nll"].get<double>() * 400, sum(700) - sum(300), 1e-2);
}

}  // namespace
}  // namespace lca::test
