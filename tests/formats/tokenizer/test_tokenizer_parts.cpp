// The parts of tokenizers: expressions, normal forms, UTF-8, and decoding in a stream.

#include "formats/byte_files.h"
#include "formats/tokenizer/normalise.h"
#include "formats/tokenizer/regex.h"
#include "tokenizer_files.h"

#include <random>

namespace lca {
namespace {

using test::expect_error;

using Ids = std::vector<std::int32_t>;

TEST(TokenizerRegex, RefusesExpressionsOfAnotherMeaning) {
  for (const char* pattern :
       {R"(\h)", R"([[:alpha:]])", R"([a&&b])", R"(a{,3})", R"(a{1,2}+)", R"((?m:.))", R"(\bword)",
        R"(\1)", R"(\xff)", R"(\w)", R"((?P<n>x))", R"((*UTF))", R"(x(?i)y)"}) {
    expect_error([&] { regex_translate(pattern, "r"); }, {"r: ", "not supported"});
  }
  expect_error([] { Regex("(", "r"); }, {"r: bad regular expression \"(\""});
  EXPECT_NO_THROW(Regex(R"([^\S\r\n]+\p{Han}|(?<=x)\u0041\x{1F600}\x41)", "r"));
}

TEST(TokenizerRegex, SpaceIsWhiteSpaceAndLinesEndAtLineFeeds) {
  const auto matches = [](const char* pattern, const std::string& text) {
    std::vector<std::string> found;
    RegexBudget budget(text.size());
    Regex(pattern, "r").each(text, budget, [&](std::size_t begin, std::size_t end) {
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

TEST(TokenizerText, NormalFormsAreUnicodes) {
  EXPECT_EQ(normal_form("e\u0301", NormalForm::nfc), "\u00e9");
  EXPECT_EQ(normal_form("\u00e9", NormalForm::nfd), "e\u0301");
  EXPECT_EQ(normal_form("\ufb01\u00b2", NormalForm::nfkc), "fi2");
  EXPECT_EQ(normal_form("\u1e9b\u0323", NormalForm::nfkd), "s\u0323\u0307");
  EXPECT_EQ(normal_form("\u1100\u1161\u11a8", NormalForm::nfc), "\uac01");
  std::string many = "a";
  for (int i = 0; i < 100000; ++i) many += i % 2 == 0 ? "\u0301" : "\u0323";
  EXPECT_EQ(normal_form(many, NormalForm::nfc).size(), many.size()) << "fast, however many marks";
}

/// Random ids, mostly bytes of incomplete characters.
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
  expect_streams(tokenizer_from_tables(test::GgufForm().tables, "form"), "form");
}

TEST(StreamDecoder, WithholdsHalfACharacter) {
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

TEST(TokenizerText, ReplacesEachMaximalPartOfAnIllFormedSequence) {
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

}  // namespace
}  // namespace lca
