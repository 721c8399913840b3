// What a text's bytes say about its tokens, and what cutting it takes.
#include "formats/tokenizer/state.h"
#include "tokenizer_files.h"

#include <sys/resource.h>

#include <functional>

namespace lca {
namespace {

using nlohmann::json;
using Change = std::function<void(json&)>;

Tokenizer letters(const Change& change) {
  json tree = json::parse(R"({"added_tokens":[],"normalizer":null,"pre_tokenizer":null,
      "post_processor":null,"decoder":{"type":"Fuse"},"model":{"type":"BPE","dropout":null,
      "unk_token":"?","continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,
      "byte_fallback":false,"vocab":{"a":0,"b":1,"?":2,"ab":3,"abaabaa":4},"merges":["a b"]}})");
  change(tree);
  return tokenizer_from_json(tree.dump(), "t.json");
}

json one_added(const char* content, bool strips) {
  return {{"id", 5},          {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", strips}, {"normalized", false}, {"special", false}};
}

json replace(const char* kind, const char* pattern, const char* content) {
  return {{"type", "Replace"}, {"pattern", {{kind, pattern}}}, {"content", content}};
}

TEST(TokenBytes, TheLongestTokenBoundsThemAsFarAsNothingMakesTextsShorter) {
  const std::vector<std::pair<std::size_t, Change>> cases = {
      {7, [](json&) {}},
      {11, [](json& t) { t["added_tokens"].push_back(one_added("<long-token", false)); }},
      {0, [](json& t) { t["added_tokens"].push_back(one_added("<long-token", true)); }},
      {0, [](json& t) { t["model"]["unk_token"] = nullptr; }},
      {0, [](json& t) { t["model"]["fuse_unk"] = true; }},
      {28,
       [](json& t) {
         t["normalizer"] = {{"type", "NFC"}};
       }},
      {7, [](json& t) { t["normalizer"] = replace("String", " ", "__"); }},
      {21, [](json& t) { t["normalizer"] = replace("String", "abaab", "bb"); }},
      {0, [](json& t) { t["normalizer"] = replace("String", "a", ""); }},
      {0, [](json& t) { t["normalizer"] = replace("Regex", "a+", "a"); }},
      {0,
       [](json& t) {
         t["pre_tokenizer"] = {{"type", "Split"},
                               {"pattern", {{"String", " "}}},
                               {"behavior", "Removed"},
                               {"invert", false}};
       }},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(letters(cases[i].second).state().most_bytes, cases[i].first) << i;
  }
}

TEST(TokenBytes, NoTextHasFewerTokensThanItsBytesSay) {
  for (const char* name : {"llama3.json", "qwen2.json"}) {
    json tree = test::golden_json(name);
    for (json& token : tree["added_tokens"]) token["lstrip"] = token["rstrip"] = false;
    const Tokenizer tokenizer = tokenizer_from_json(tree.dump(), name);
    const std::size_t most = tokenizer.state().most_bytes;
    ASSERT_GT(most, 0u) << name;
    for (std::int32_t id = 0; id < tokenizer.size(); ++id) {
      const std::string text(tokenizer.bytes(id));
      for (const std::string& one : {text, text + text, std::string(64, ' ') + text}) {
        EXPECT_GE(tokenizer.encode(one).size() * most, one.size()) << one;
      }
    }
    EXPECT_GE(tokenizer.encode("\u212a\U0001d42c\u0323\u0307").size() * most, 11u);
  }
}

TEST(TokenBytes, CuttingDigitsTakesNoListOfThem) {
  const Tokenizer tokenizer = letters([](json& t) {
    t["model"]["vocab"] = {{"1", 0}, {"?", 1}};
    t["model"]["merges"] = json::array();
    t["pre_tokenizer"] = {{"type", "Sequence"},
                          {"pretokenizers",
                           {{{"type", "Digits"}, {"individual_digits", true}},
                            {{"type", "Split"},
                             {"pattern", {{"String", " "}}},
                             {"behavior", "MergedWithNext"},
                             {"invert", false}}}}};
  });
  const auto peak = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;  // KiB
  };
  constexpr std::size_t kDigits = std::size_t{4} << 20;
  const std::string text(kDigits, '1');
  const long before = peak();
  EXPECT_EQ(tokenizer.encode(text).size(), kDigits);
  // The text once more, and the ids while their vector grows; lists took more than 100 times the
  // text's bytes.
  EXPECT_LT(peak() - before, static_cast<long>(20 * kDigits / 1024));
}

}  // namespace
}  // namespace lca
