#include "formats/byte_files.h"
#include "formats/tokenizer/normalise.h"
#include "support/compare.h"
#include "tokenizer_files.h"

#include <array>
#include <random>
#include <thread>

namespace lca {
namespace {

using nlohmann::json;
using test::expect_error;

using Ids = std::vector<std::int32_t>;

/// A tokenizer.json with a small vocabulary of letters, changed by `change`.
json small_json(const std::function<void(json&)>& change = {}) {
  json tree = json::parse(R"({"added_tokens":[],"normalizer":null,"pre_tokenizer":null,
      "post_processor":null,"decoder":{"type":"Fuse"},"model":{"type":"BPE","dropout":null,
      "unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,
      "byte_fallback":false,"vocab":{"a":0,"b":1,"c":2,"ab":3,"abc":4," ":5,"<s>":6},
      "merges":["a b","ab c"]}})");
  if (change) change(tree);
  return tree;
}

Tokenizer small(const std::function<void(json&)>& change = {}) {
  return tokenizer_from_json(small_json(change).dump(), "t.json");
}

void expect_bad(const std::function<void(json&)>& change, std::vector<std::string> parts) {
  parts.insert(parts.begin(), "t.json: ");
  expect_error([&] { small(change); }, parts);
}

json added(int id, const char* content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", false}};
}

TEST(Tokenizer, MergesPairsInTheirOrder) {
  const Tokenizer tokenizer = small();
  EXPECT_EQ(tokenizer.encode("abcab"), (Ids{4, 3}));
  EXPECT_EQ(tokenizer.encode("cba"), (Ids{2, 1, 0}));
  EXPECT_EQ(tokenizer.encode(""), Ids{});
  EXPECT_EQ(tokenizer.encode("axb"), Ids{3}) << "characters without a token vanish";
  EXPECT_EQ(tokenizer.decode(Ids{4, 3}), "abcab");
  EXPECT_EQ(tokenizer.size(), 7);
  EXPECT_EQ(tokenizer.find("abc"), 4);
  EXPECT_EQ(tokenizer.find("abcd"), std::nullopt);
  EXPECT_EQ(tokenizer.token(3), "ab");
  EXPECT_EQ(tokenizer.token(99), "");
  EXPECT_EQ(tokenizer.describe(), "SentencePiece-style BPE, 7 tokens");
}

TEST(Tokenizer, LongWordsMergeLikeShortOnes) {
  const Tokenizer tokenizer = small();
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    std::string text;
    Ids expected;
    for (int i = 0; i < 30; ++i) {
      const std::string part = std::string("abc").substr(0, 1 + random() % 3) + "c ";
      text += part;
      const Ids ids = tokenizer.encode(part);
      expected.insert(expected.end(), ids.begin(), ids.end());
    }
    EXPECT_EQ(tokenizer.encode(text), expected);
  }
}

TEST(Tokenizer, UnknownCharactersBecomeOneUnknownOrSeveral) {
  for (const bool fuses : {false, true}) {
    const Tokenizer tokenizer = small([&](json& tree) {
      tree["model"]["unk_token"] = "<s>";
      tree["model"]["fuse_unk"] = fuses;
    });
    EXPECT_EQ(tokenizer.encode("axya"), fuses ? (Ids{0, 6, 0}) : (Ids{0, 6, 6, 0}));
  }
  const Tokenizer without = small([](json& tree) { tree["model"]["unk_token"] = "<none>"; });
  EXPECT_EQ(without.encode("ab"), Ids{3});
  expect_error([&] { without.encode("x"); }, {"t.json: ", "\"x\" has no token"});
}

TEST(Tokenizer, NamesTheKindsItDoesNotKnow) {
  const auto kind = [](const char* part, const char* type) {
    return [=](json& tree) { tree[part] = {{"type", type}}; };
  };
  expect_bad(kind("pre_tokenizer", "BertPreTokenizer"),
             {"pre-tokenizer \"BertPreTokenizer\" is not supported", "ByteLevel"});
  expect_bad(kind("normalizer", "BertNormalizer"), {"normalizer \"BertNormalizer\""});
  expect_bad(kind("decoder", "WordPiece"), {"decoder \"WordPiece\""});
  expect_bad(kind("post_processor", "BertProcessing"), {"post-processor \"BertProcessing\""});
  for (const char* type : {"Unigram", "WordPiece", "WordLevel"}) {
    expect_bad([&](json& tree) { tree["model"]["type"] = type; },
               {"model \"" + std::string(type) + "\" is not supported", "BPE"});
  }
}

TEST(Tokenizer, RefusesWhatItWouldGetWrong) {
  expect_bad([](json& t) { t["model"].erase("merges"); }, {"model.merges is missing", "\"ab\""});
  expect_bad([](json& t) { t["model"]["merges"] = json::array(); }, {"model.merges is empty"});
  expect_bad([](json& t) { t["model"]["merges"] = {"a b c"}; }, {"merge 0 must be two tokens"});
  expect_bad([](json& t) { t["model"]["merges"] = {"a z"}; }, {"needs the token \"z\""});
  expect_bad([](json& t) { t["model"]["merges"] = {{"a", "b", "c"}}; }, {"merge"});
  expect_bad([](json& t) { t["model"]["continuing_subword_prefix"] = "##"; },
             {"continuing_subword_prefix"});
  expect_bad([](json& t) { t["model"]["end_of_word_suffix"] = "</w>"; }, {"end_of_word_suffix"});
  expect_bad([](json& t) { t["model"]["dropout"] = 0.1; }, {"dropout"});
  expect_bad([](json& t) { t["model"]["vocab"]["far"] = 2000000000; }, {"far", "2000000000"});
  expect_bad([](json& t) { t["model"]["vocab"]["minus"] = -1; }, {"minus", "-1"});
  expect_bad([](json& t) { t["model"]["vocab"]["real"] = 1.5; }, {"real", "1.5"});
  expect_bad([](json& t) { t["model"]["vocab"] = "text"; }, {"model.vocab"});
  expect_bad([](json& t) { t.erase("model"); }, {"\"model\" is missing"});
  expect_bad([](json& t) { t["added_tokens"] = {added(100000000, "far")}; }, {"far"});
  expect_bad([](json& t) { t["added_tokens"] = {added(9, std::string(5000, 'x').c_str())}; },
             {"longer than"});
  expect_bad(
      [](json& t) {
        t["decoder"] = json::parse(R"({"type":"Sequence","decoders":[{"type":"Fuse"},
            {"type":"Replace","pattern":{"String":"a"},"content":"b"}]})");
      },
      {"\"Replace\"", "behind one that fuses"});
  expect_bad(
      [](json& t) {
        t["post_processor"] = json::parse(R"({"type":"TemplateProcessing","single":[
            {"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],"special_tokens":{}})");
      },
      {"\"<s>\"", "special_tokens"});
  expect_error([] { tokenizer_from_json("{", "t.json"); }, {"t.json: ", "JSON"});
  expect_error([] { tokenizer_from_json("[]", "t.json"); }, {"t.json: "});
}

Tokenizer split_by(const std::string& pattern) {
  return small([&](json& tree) {
    tree["pre_tokenizer"] = {
        {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
  });
}

TEST(Tokenizer, AHostileTextEndsInAnErrorHoweverItsStepsAreSpread) {
  // Each position takes as many steps as the text is long, and there are as many positions:
  // quadratic time, minutes in total.
  const Tokenizer quadratic = split_by("(?:a|b)*[cd]");
  EXPECT_NO_THROW(quadratic.encode("aabac and aaaad"));
  expect_error([&] { quadratic.encode(std::string(200'000, 'a')); },
               {"t.json: pre_tokenizer: the regular expression", "too many steps"});
  // A few steps in each of many words add up as well.
  std::string words;
  for (int i = 0; i < 400; ++i) words += std::string(500, 'a') + "x";
  expect_error([&] { split_by("(?:a|b)*(?:a|b)*[cd]|x").encode(words); }, {"too many steps"});
}

TEST(Tokenizer, ExpressionsThatGoBackOverLongRunsAreNotRefused) {
  // From DeepSeek: at each position of a run of spaces the match could try all of the rest.
  const Tokenizer tokenizer = split_by("\\s+$");
  const std::string text = std::string(300'000, ' ') + "a";
  EXPECT_EQ(tokenizer.encode(text).size(), 300'001u);
  EXPECT_EQ(split_by("[ab]*[ac][de]").encode(std::string(300'000, 'a')).size(), 300'000u);
}

TEST(Tokenizer, LongRunsOfOneKindAreNotRefused) {
  for (const char* name : {"qwen2", "llama3"}) {
    const Tokenizer tokenizer = test::golden_tokenizer(name);
    for (const char* run : {" ", "\n", "\t ", "a", "1", "!", "中", " ", "'"}) {
      std::string text = "x";
      while (text.size() < 200'000) text += run;
      EXPECT_NO_THROW(tokenizer.encode(text + "y")) << name << " \"" << run << '"';
    }
  }
}

TEST(Tokenizer, HostileExpressionsEnd) {
  const Tokenizer tokenizer = small([](json& tree) {
    tree["pre_tokenizer"] =
        json::parse(R"({"type":"Split","pattern":{"Regex":"(a|aa)+$"},"behavior":"Isolated"})");
  });
  expect_error([&] { tokenizer.encode(std::string(200, 'a') + "b"); },
               {"t.json: pre_tokenizer: the regular expression"});
  const Tokenizer grows = small([](json& tree) {
    json steps = json::array();
    for (int i = 0; i < 40; ++i) {
      steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
    }
    tree["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  });
  expect_error([&] { grows.encode("a"); }, {"too long"});
}

TEST(Tokenizer, SplitsInEveryWay) {
  const auto split = [](const char* behaviour, bool invert) {
    const Tokenizer tokenizer = small([&](json& tree) {
      tree["pre_tokenizer"] = {{"type", "Split"},
                               {"pattern", {{"String", "a"}}},
                               {"behavior", behaviour},
                               {"invert", invert}};
      tree["model"]["vocab"] = {{"x", 0},  {"a", 1},  {"y", 2}, {"xa", 3},
                                {"aa", 4}, {"ay", 5}, {"ya", 6}};
      tree["model"]["merges"] = {"x a", "a a", "a y", "y a"};
    });
    std::string pieces;
    for (const std::int32_t id : tokenizer.encode("xaaya")) {
      pieces += std::string(tokenizer.token(id)) + " ";
    }
    return pieces;
  };
  EXPECT_EQ(split("Isolated", false), "x a a y a ");
  EXPECT_EQ(split("Isolated", true), "x a a y a ");
  EXPECT_EQ(split("Removed", false), "x y ");
  EXPECT_EQ(split("Removed", true), "a a a ");
  EXPECT_EQ(split("MergedWithPrevious", false), "xa a ya ");
  EXPECT_EQ(split("MergedWithPrevious", true), "x a ay a ");
  EXPECT_EQ(split("MergedWithNext", false), "x a ay a ");
  EXPECT_EQ(split("MergedWithNext", true), "xa a ya ");
  EXPECT_EQ(split("Contiguous", false), "x aa y a ");
  expect_bad(
      [](json& tree) {
        tree["pre_tokenizer"] = {
            {"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Other"}};
      },
      {"pre_tokenizer.behavior", "Isolated", "\"Other\""});
}

TEST(Tokenizer, AddedTokensObeyTheirFlags) {
  const Tokenizer tokenizer = small([](json& tree) {
    json word = added(10, "ab");
    word["single_word"] = true;
    json strips = added(11, "<x>");
    strips["lstrip"] = true;
    strips["rstrip"] = true;
    json special = added(6, "<s>");
    special["special"] = true;
    tree["added_tokens"] = {word, strips, special, added(12, "<x>y")};
  });
  EXPECT_EQ(tokenizer.encode("ab"), Ids{3}) << "the model's own id goes first";
  EXPECT_EQ(tokenizer.encode("a <x> b"), (Ids{0, 11, 1}));
  EXPECT_EQ(tokenizer.encode("a <x>y b"), (Ids{0, 5, 12, 5, 1})) << "the longest goes first";
  EXPECT_EQ(tokenizer.encode("a<s>b"), (Ids{0, 6, 1}));
  EXPECT_EQ(tokenizer.encode("a<s>b", {.parse_special = false}), Ids{3});
  EXPECT_TRUE(tokenizer.is_special(6));
  EXPECT_FALSE(tokenizer.is_special(11));
  EXPECT_FALSE(tokenizer.is_special(-1));
  EXPECT_EQ(tokenizer.decode(Ids{0, 6, 11}), "a<x>");
  EXPECT_EQ(tokenizer.decode(Ids{0, 6, 11}, true), "a<s><x>");
  expect_error([&] { tokenizer.decode(Ids{13}); }, {"t.json: there is no token 13"});
  expect_error([&] { tokenizer.decode(Ids{-1}); }, {"there is no token -1"});
}

TEST(Tokenizer, TheConfigNamesBeginAndEndAndMayOverrideTheTemplate) {
  const std::string text = test::file_text(test::golden_tokenizers() / "sentencepiece.json");
  const auto with = [&](const char* config) {
    return tokenizer_from_json(text, "t.json", config, "c.json");
  };
  EXPECT_EQ(with("{}").prefix(), Ids{1});
  EXPECT_EQ(with("{}").suffix(), Ids{2});
  const Tokenizer tokenizer = with(
      R"({"bos_token":"<s>","eos_token":{"content":"</s>"},"add_bos_token":true,
          "add_eos_token":false})");
  EXPECT_EQ(tokenizer.prefix(), Ids{1});
  EXPECT_EQ(tokenizer.suffix(), Ids{});
  EXPECT_EQ(tokenizer.begin_token(), 1);
  EXPECT_EQ(tokenizer.end_token(), 2);
  EXPECT_EQ(with(R"({"add_bos_token":false,"bos_token":null})").prefix(), Ids{});
  expect_error([&] { with(R"({"add_bos_token":true})"); }, {"c.json: ", "bos_token"});
  expect_error([&] { with(R"({"eos_token":"<none>"})"); }, {"c.json: ", "<none>"});
  expect_error([&] { with("{"); }, {"c.json: "});
}

TEST(Tokenizer, GgufTablesAreChecked) {
  const test::GgufForm form;
  const auto expect_bad_tables = [&](const std::function<void(GgufTokenizer&)>& change,
                                     std::vector<std::string> parts) {
    GgufTokenizer tables = form.tables;
    change(tables);
    parts.insert(parts.begin(), "f.gguf: ");
    expect_error([&] { tokenizer_from_tables(tables, "f.gguf"); }, parts);
  };
  expect_bad_tables([](auto& t) { t.model = "bert"; }, {"\"bert\" is not supported"});
  expect_bad_tables([](auto& t) { t.tokens.clear(); }, {"tokens"});
  expect_bad_tables([](auto& t) { t.scores.clear(); }, {"scores is missing"});
  expect_bad_tables([](auto& t) { t.scores.pop_back(); }, {"scores has"});
  expect_bad_tables([](auto& t) { t.types.pop_back(); }, {"token_type has"});
  expect_bad_tables([](auto& t) { t.begin = 1 << 20; }, {"bos_token_id"});
  expect_bad_tables([](auto& t) { t.unknown = -1; }, {"unknown_token_id"});
  expect_bad_tables([](auto& t) { t.model = "gpt2"; }, {"merges is missing"});
  expect_bad_tables(
      [](auto& t) {
        t.model = "gpt2";
        t.pre = "tekken";
      },
      {"\"tekken\" is not supported"});
  expect_bad_tables(
      [](auto& t) {
        t.model = "gpt2";
        t.merges = {"ab"};
      },
      {"not two tokens"});
}

/// The tables of byte-level BPE with a token for every byte and one for each merge.
struct ByteTables {
  explicit ByteTables(std::vector<std::string> pairs) : merges(std::move(pairs)) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string token;
      const bool is_printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
      utf8_append(token, is_printable
                             ? static_cast<std::uint32_t>(byte)
                             : 0x100u + static_cast<std::uint32_t>(byte < 0x21   ? byte
                                                                   : byte < 0xa1 ? byte - 0x7f + 33
                                                                                 : 67));
      texts.push_back(token);
    }
    for (std::string merge : merges) texts.push_back(merge.erase(merge.find(' '), 1));
    tables.model = "gpt2";
    tables.tokens = {texts.begin(), texts.end()};
    tables.merges = {merges.begin(), merges.end()};
  }
  std::vector<std::string> merges, texts;
  GgufTokenizer tables;
};

/// The text of each token of `text`, between bars.
std::string cut(const Tokenizer& tokenizer, const std::string& text) {
  std::string parts = "|";
  for (const std::int32_t id : tokenizer.encode(text)) {
    parts.append(tokenizer.bytes(id)).append("|");
  }
  return parts;
}

TEST(Tokenizer, DeepSeekCoderSplitsLettersPunctuationAndDigitsApart) {
  // Every pair can merge: what stays separate was split before.
  ByteTables form({"a b", "b !", "! !", "\u0120 !", "1 2", "b 1", "\u010a \u010a", "! $", "$ $"});
  form.tables.pre = "deepseek-coder";
  const Tokenizer coder = tokenizer_from_tables(form.tables, "f.gguf");
  EXPECT_EQ(cut(coder, "ab!! !"), "|ab|!!| !|");
  EXPECT_EQ(cut(coder, "12 ab12"), "|1|2| |ab|1|2|");
  EXPECT_EQ(cut(coder, "\n\n"), "|\n|\n|");
  EXPECT_EQ(cut(coder, "!$$"), "|!|$$|") << "a currency sign is no punctuation";
  form.tables.pre = "deepseek-llm";
  const Tokenizer llm = tokenizer_from_tables(form.tables, "f.gguf");
  EXPECT_EQ(cut(llm, "!$$"), "|!$|$|") << "but is to the other one";
}

TEST(Tokenizer, GgufPreTokenizersAreAllThere) {
  ByteTables form({"1 2"});
  GgufTokenizer& tables = form.tables;
  for (const char* pre :
       {"smollm", "gpt-2", "default", "", "qwen2", "deepseek-llm", "deepseek-coder",
        "deepseek-r1-qwen", "llama-bpe", "llama3", "llama-v3", "starcoder", "refact"}) {
    tables.pre = pre;
    const Tokenizer tokenizer = tokenizer_from_tables(tables, "f.gguf");
    const std::string name = pre;
    const bool is_whole = name == "gpt-2" || name == "default" || name.empty() ||
                          name == "llama-bpe" || name == "llama3" || name == "llama-v3";
    EXPECT_EQ(tokenizer.encode("12").size(), is_whole ? 1u : 2u) << pre;
    for (const std::string& text : test::golden_texts()) {
      const std::string clean = utf8_clean(text);
      const bool is_normal = name == "qwen2" || name == "deepseek-r1-qwen";
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)),
                is_normal ? normal_form(clean, NormalForm::nfc) : clean);
    }
  }
}

TEST(Tokenizer, GgufAddsTheSpaceAndTakesItAway) {
  test::GgufForm form;
  const Tokenizer with = tokenizer_from_tables(form.tables, "f");
  EXPECT_EQ(with.prefix(), Ids{1});
  EXPECT_EQ(with.suffix(), Ids{});
  form.tables.add_space_prefix = false;
  form.tables.add_begin = false;
  form.tables.add_end = true;
  const Tokenizer without = tokenizer_from_tables(form.tables, "f");
  EXPECT_EQ(without.prefix(), Ids{});
  EXPECT_EQ(without.suffix(), Ids{2});
  EXPECT_NE(with.encode("the"), without.encode("the"));
  EXPECT_EQ(with.encode("the"), without.encode(" the"));
  EXPECT_EQ(with.decode(with.encode("the")), "the");
  EXPECT_EQ(without.decode(with.encode("the")), " the");
  EXPECT_EQ(
      with.encode("x<|user|>y</s>", {.parse_special = false}).size(),
      with.encode("x<|user|>y").size() + with.encode("</s>", {.parse_special = false}).size() - 1)
      << "user-defined tokens are still matched";
}

TEST(ThreadsTokenizer, OneTokenizerServesManyThreads) {
  const Tokenizer tokenizer = test::golden_tokenizer("qwen2");
  std::vector<Ids> expected;
  for (const std::string& text : test::golden_texts()) expected.push_back(tokenizer.encode(text));
  std::vector<std::thread> threads;
  std::array<std::vector<Ids>, 4> found;
  for (auto& list : found) {
    threads.emplace_back([&] {
      for (const std::string& text : test::golden_texts()) list.push_back(tokenizer.encode(text));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& list : found) EXPECT_EQ(list, expected);
}

TEST(Tokenizer, AMegabyteOfAnythingTakesLinearTime) {
  // Quadratic work on a megabyte would take minutes and run into the test's time limit.
  const auto size = static_cast<std::size_t>(test::scaled(1'000'000));
  for (const char* name : {"qwen2", "llama3", "sentencepiece"}) {
    const Tokenizer tokenizer = test::golden_tokenizer(name);
    for (const std::string part :
         {"a", " ", "\n", "the model's cache ", "的", "\u0301", "<", "7"}) {
      std::string text;
      while (text.size() < size) text += part;
      EXPECT_FALSE(tokenizer.encode(text).empty());
    }
  }
}

}  // namespace
}  // namespace lca
