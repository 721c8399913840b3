#include "byte_files.h"
#include "formats/tokenizer/bpe.h"
#include "formats/tokenizer/normalise.h"
#include "formats/tokenizer/regex.h"
#include "tokenizer_files.h"

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
  return Tokenizer::from_json(small_json(change).dump(), "t.json");
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
  expect_error([] { Tokenizer::from_json("{", "t.json"); }, {"t.json: ", "JSON"});
  expect_error([] { Tokenizer::from_json("[]", "t.json"); }, {"t.json: "});
}

TEST(Tokenizer, RefusesExpressionsOfAnotherMeaning) {
  for (const char* pattern :
       {R"(\h)", R"([[:alpha:]])", R"([a&&b])", R"(a{,3})", R"(a{1,2}+)", R"((?m:.))", R"(\bword)",
        R"(\1)", R"(\xff)", R"(\w)", R"((?P<n>x))", R"((*UTF))", R"(x(?i)y)"}) {
    expect_error([&] { regex_translate(pattern, "r"); }, {"r: ", "not supported"});
  }
  expect_error([] { Regex("(", "r"); }, {"r: bad regular expression \"(\""});
  EXPECT_NO_THROW(Regex(R"([^\S\r\n]+\p{Han}|(?<=x)\u0041\x{1F600}\x41)", "r"));
}

TEST(Tokenizer, SpaceIsWhiteSpaceAndLinesEndAtLineFeeds) {
  const auto matches = [](const char* pattern, const std::string& text) {
    std::vector<std::string> found;
    Regex(pattern, "r").each(text, [&](std::size_t begin, std::size_t end) {
      found.push_back(text.substr(begin, end - begin));
    });
    return found;
  };
  using List = std::vector<std::string>;
  EXPECT_EQ(matches(R"(\s+)", "a\u0085\u00a0\u2028\u3000b\u180ec\u200bd"),
            (List{"\u0085\u00a0\u2028\u3000"}));
  EXPECT_EQ(matches(R"([^\s]+)", "a\u0085b\u180ec"), (List{"a", "b\u180ec"}));
  EXPECT_EQ(matches(R"([^\S\n]+)", "a \n\tb"), (List{" ", "\t"}));
  EXPECT_EQ(matches(R"(\s+$)", "a  \nb \t"), (List{"  ", " \t"}));
  EXPECT_EQ(matches(R"(^.)", "ab\r\ncd\n"), (List{"a", "c"}));
  EXPECT_EQ(matches(R"(x*)", "axb"), (List{"", "x", ""}));
  EXPECT_EQ(matches(R"((?i:'s))", "'s'S'\u017f"), (List{"'s", "'S", "'\u017f"}));
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
    const Tokenizer tokenizer =
        Tokenizer::from_json(small_json([&](json& tree) {
                               tree["pre_tokenizer"] = {{"type", "Split"},
                                                        {"pattern", {{"String", "a"}}},
                                                        {"behavior", behaviour},
                                                        {"invert", invert}};
                               // Each piece is one unknown token when unknowns are fused.
                               tree["model"]["vocab"] = {{"<u>", 0}, {"a", 1}};
                               tree["model"]["merges"] = {};
                               tree["model"]["unk_token"] = "<u>";
                               tree["model"]["fuse_unk"] = true;
                               tree["added_tokens"] = {added(0, "<u>")};
                             }).dump(),
                             "t.json");
    return tokenizer.encode("xaaya");
  };
  // 0: a run of other letters; pieces show where runs end.
  EXPECT_EQ(split("Isolated", false), (Ids{0, 1, 1, 0, 1}));
  EXPECT_EQ(split("Removed", false), (Ids{0, 0}));
  EXPECT_EQ(split("Removed", true), (Ids{1, 1, 1}));
  EXPECT_EQ(split("MergedWithPrevious", false), (Ids{0, 1, 1, 0, 1}));
  EXPECT_EQ(split("MergedWithNext", false), (Ids{0, 1, 1, 0, 1}));
  EXPECT_EQ(split("Contiguous", false), (Ids{0, 1, 1, 0, 1}));
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
    return Tokenizer::from_json(text, "t.json", config, "c.json");
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
    expect_error([&] { Tokenizer::from_gguf(tables, "f.gguf"); }, parts);
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

TEST(Tokenizer, GgufPreTokenizersAreAllThere) {
  std::vector<std::string> texts;
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
  texts.push_back("12");
  GgufTokenizer tables;
  tables.model = "gpt2";
  tables.tokens = {texts.begin(), texts.end()};
  tables.merges = {"1 2"};
  for (const char* pre : {"smollm", "gpt-2", "default", "", "qwen2", "deepseek-llm",
                          "deepseek-r1-qwen", "llama-bpe", "llama3"}) {
    tables.pre = pre;
    const Tokenizer tokenizer = Tokenizer::from_gguf(tables, "f.gguf");
    const std::string name = pre;
    const bool is_whole = name == "gpt-2" || name == "default" || name.empty() ||
                          name == "llama-bpe" || name == "llama3";
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
  const Tokenizer with = Tokenizer::from_gguf(form.tables, "f");
  EXPECT_EQ(with.prefix(), Ids{1});
  EXPECT_EQ(with.suffix(), Ids{});
  form.tables.add_space_prefix = false;
  form.tables.add_begin = false;
  form.tables.add_end = true;
  const Tokenizer without = Tokenizer::from_gguf(form.tables, "f");
  EXPECT_EQ(without.prefix(), Ids{});
  EXPECT_EQ(without.suffix(), Ids{2});
  EXPECT_NE(with.encode("the"), without.encode("the"));
  EXPECT_EQ(with.encode("the"), without.encode(" the"));
  EXPECT_EQ(with.decode(with.encode("the")), "the");
  EXPECT_EQ(without.decode(with.encode("the")), " the");
  EXPECT_EQ(
      with.encode("x<|user|>y</s>", {.parse_special = false}).size(),
      with.encode("x<|user|>y").size() + with.encode("</s>", {.parse_special = false}).size() - 1)
      << "tokens of the user are found all the same";
}

TEST(Tokenizer, NormalFormsAreUnicodes) {
  EXPECT_EQ(normal_form("e\u0301", NormalForm::nfc), "\u00e9");
  EXPECT_EQ(normal_form("\u00e9", NormalForm::nfd), "e\u0301");
  EXPECT_EQ(normal_form("\ufb01\u00b2", NormalForm::nfkc), "fi2");
  EXPECT_EQ(normal_form("\u1e9b\u0323", NormalForm::nfkd), "s\u0323\u0307");
  EXPECT_EQ(normal_form("\u1100\u1161\u11a8", NormalForm::nfc), "\uac01");
  std::string many = "a";
  for (int i = 0; i < 100000; ++i) many += i % 2 == 0 ? "\u0301" : "\u0323";
  EXPECT_EQ(normal_form(many, NormalForm::nfc).size(), many.size())
      << "in no time, however many marks";
}

/// Ids of any kind, more often than not bytes of broken characters.
Ids random_ids(const Tokenizer& tokenizer, std::mt19937& random, std::size_t count) {
  Ids ids;
  for (std::size_t i = 0; i < count; ++i) {
    const auto size = static_cast<std::uint32_t>(tokenizer.size());
    ids.push_back(static_cast<std::int32_t>(random() % (i % 2 == 0 ? size : std::min(size, 300u))));
  }
  return ids;
}

void expect_streams(const Tokenizer& tokenizer, const char* name) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const Ids ids = random_ids(tokenizer, random, 1 + random() % 20);
    for (const bool with_special : {false, true}) {
      StreamDecoder stream(tokenizer, with_special);
      std::string text;
      for (const std::int32_t id : ids) {
        const std::string part = stream.push(id);
        EXPECT_TRUE(utf8_is_valid(part)) << name;
        text += part;
      }
      text += stream.finish();
      EXPECT_EQ(text, tokenizer.decode(ids, with_special)) << name;
      EXPECT_TRUE(utf8_is_valid(text)) << name;
    }
  }
}

TEST(StreamDecoder, EqualsDecodingAllAtOnce) {
  for (const char* name : {"qwen2", "llama3", "sentencepiece"}) {
    expect_streams(test::golden_tokenizer(name), name);
  }
  for (const char* name : {"metaspace_first_split", "metaspace_never_whole"}) {
    expect_streams(test::patched_tokenizer(name), name);
  }
  expect_streams(Tokenizer::from_gguf(test::GgufForm().tables, "form"), "form");
}

TEST(StreamDecoder, HoldsBackHalfACharacter) {
  const Tokenizer tokenizer = test::golden_tokenizer("sentencepiece");
  const auto byte = [&](const char* name) { return *tokenizer.find(name); };
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.push(byte("<0xE2>")), "");
  EXPECT_EQ(stream.push(byte("<0x82>")), "");
  EXPECT_EQ(stream.push(byte("<0xAC>")), "€");
  EXPECT_EQ(stream.push(byte("<0xE2>")), "");
  EXPECT_EQ(stream.push(byte("<0x41>")), "\ufffdA");
  EXPECT_EQ(stream.push(byte("<0xF0>")), "");
  EXPECT_EQ(stream.finish(), "\ufffd");
}

TEST(StreamDecoder, TakesOneSpaceFromTheFront) {
  const Tokenizer tokenizer = test::golden_tokenizer("sentencepiece");
  const std::int32_t space = *tokenizer.find("▁");
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.push(1), "") << "special tokens do not count";
  EXPECT_EQ(stream.push(space), "");
  EXPECT_EQ(stream.push(space), " ");
  EXPECT_EQ(stream.push(space), " ");
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

TEST(Utf8, ReplacesEachMaximalPartOfAnIllFormedSequence) {
  const auto count = [](std::string_view bytes) {
    const std::string clean = utf8_clean(bytes);
    EXPECT_TRUE(utf8_is_valid(clean));
    return clean.size() / kReplacementCharacter.size();
  };
  EXPECT_EQ(count("\xff"), 1u);
  EXPECT_EQ(count("\xe2\x82"), 1u);
  EXPECT_EQ(count("\xed\xa0\x80"), 3u);
  EXPECT_EQ(count("\xf0\x80\x80\x80"), 4u);
  EXPECT_EQ(count("\xf4\x90\x80\x80"), 4u);
  EXPECT_EQ(count("\xc0\xaf"), 2u);
  EXPECT_EQ(count("\xf0\x9f\x98\xf0\x9f\x98"), 2u);
  EXPECT_EQ(utf8_cut_bytes("a\xf0\x9f\x98"), 3u);
  EXPECT_EQ(utf8_cut_bytes("a\xe2\x82"), 2u);
  EXPECT_EQ(utf8_cut_bytes("\xed\xa0"), 0u);
  EXPECT_EQ(utf8_cut_bytes("é"), 0u);
}

TEST(Tokenizer, AMegabyteOfAnythingTakesLinearTime) {
  // Quadratic work on a megabyte would take minutes and run into the test's time limit.
  const std::size_t size = 1'000'000;
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
