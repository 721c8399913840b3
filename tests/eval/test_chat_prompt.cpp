// Prompts of tasks: the chat format around the user's text, the reply's beginning after it, and
// gaps that ids are put into.

#include "apps/tiny_model.h"
#include "engine/byte_tokenizer.h"
#include "eval/chat_prompt.h"
#include "eval/draw.h"

#include <gtest/gtest.h>

#include <set>

namespace lca::test {
namespace {

using eval::ChatPrompt;
using eval::Draw;

ChatPrompt chatml() {
  const Tokenizer tokenizer =
      byte_tokenizer({"<|im_start|>", "<|im_end|>"}, "<|im_start|>", "<|im_end|>");
  return {tokenizer, ChatTemplate(tokenizer, ChatFormat::chatml)};
}

TEST(ChatPrompt, ThePrefixBeginsTheReply) {
  const ChatPrompt prompt = chatml();
  EXPECT_EQ(prompt.tokenizer().decode(prompt.encode("What?", " It is"), true),
            "<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\n It is");
}

TEST(ChatPrompt, WithoutTurnsTextAndPrefixFollowOneAnother) {
  const Tokenizer tokenizer = byte_tokenizer({"<s>"}, "<s>");
  const ChatPrompt prompt(tokenizer, ChatTemplate(tokenizer, ChatFormat::plain));
  EXPECT_EQ(tokenizer.decode(prompt.encode("What?", " It is"), true), "<s>What? It is");
  const auto [before, after] = prompt.encode_around("", "!", " So");
  EXPECT_EQ(tokenizer.decode(before, true), "<s>");
  EXPECT_EQ(tokenizer.decode(after, true), "! So");
}

TEST(ChatPrompt, NothingInTheTextIsASpecialToken) {
  const ChatPrompt prompt = chatml();
  const std::vector<std::int32_t> ids = prompt.encode("a<|im_end|>b", "<|im_start|>");
  EXPECT_EQ(std::ranges::count_if(ids, [](std::int32_t id) { return id >= 256; }), 3);
}

TEST(ChatPrompt, IdsAroundAGapAreThoseOfTheWholeText) {
  const ChatPrompt bytes = chatml();
  TinyModel tiny;
  tiny.write();
  const Tokenizer merging = Tokenizer::open(tiny.path());
  const ChatPrompt words(merging, ChatTemplate(merging, ChatFormat::chatml));
  for (const ChatPrompt* prompt : {&bytes, &words}) {
    const auto [before, after] = prompt->encode_around("Read this.\n", "\nWhat is it?", " It is");
    std::vector<std::int32_t> joined = before;
    const std::vector<std::int32_t> middle = prompt->encode_inside("The hay");
    joined.insert(joined.end(), middle.begin(), middle.end());
    joined.insert(joined.end(), after.begin(), after.end());
    EXPECT_EQ(joined, prompt->encode("Read this.\nThe hay\nWhat is it?", " It is"));
  }
}

TEST(Draw, StreamsDifferByEachOfTheirNames) {
  std::set<std::uint64_t> first;
  for (std::uint64_t a = 0; a < 20; ++a) {
    for (std::uint64_t b = 0; b < 20; ++b) first.insert(Draw({a, b}).next());
  }
  EXPECT_EQ(first.size(), 400u);
  EXPECT_EQ(Draw({1, 2}).next(), Draw({1, 2}).next());
  EXPECT_NE(Draw({1}).next(), Draw({1, 0}).next());
}

TEST(Draw, NumbersAreAlikeAndInRange) {
  Draw draw({5});
  std::vector<int> counts(7);
  for (int i = 0; i < 70000; ++i) ++counts[draw.below(7)];
  for (const int count : counts) EXPECT_NEAR(count, 10000, 500);
  for (int i = 0; i < 1000; ++i) {
    const double unit = draw.unit();
    EXPECT_TRUE(unit >= 0 && unit < 1);
  }
  EXPECT_EQ(draw.below(1), 0u);
}

}  // namespace
}  // namespace lca::test
