#include "byte_tokenizer.h"
#include "engine/reply.h"
#include "formats/byte_files.h"

#include <functional>
#include <random>

namespace lca {
namespace {

using test::byte_tokenizer;
using test::expect_error;

// --- stop strings -------------------------------------------------------------------------------

struct Filtered {
  std::string text;
  bool stopped = false;
  bool operator==(const Filtered&) const = default;
};

Filtered filter_pieces(const std::vector<std::string>& stops,
                       const std::vector<std::string>& pieces) {
  StopFilter filter(stops);
  Filtered result;
  for (const std::string& piece : pieces) result.text += filter.push(piece);
  result.text += filter.finish();
  result.stopped = filter.stopped();
  return result;
}

TEST(StopFilter, WithoutStopStringsTextPassesAtOnce) {
  StopFilter filter({});
  EXPECT_EQ(filter.push("abc"), "abc");
  EXPECT_EQ(filter.push(""), "");
  EXPECT_EQ(filter.finish(), "");
  EXPECT_FALSE(filter.stopped());
}

TEST(StopFilter, AnEmptyStopStringIsRefused) {
  expect_error([] { StopFilter({"a", ""}); }, {"stop string is empty"});
}

TEST(StopFilter, WithholdsOnlyWhatMayBecomeAStopString) {
  StopFilter filter({"\nUser:"});
  EXPECT_EQ(filter.push("Yes.\nUs"), "Yes.");
  EXPECT_EQ(filter.push("eful"), "\nUseful");
  EXPECT_EQ(filter.push("\n"), "");
  EXPECT_EQ(filter.finish(), "\n");
  EXPECT_FALSE(filter.stopped());
}

TEST(StopFilter, DropsEverythingFromTheStopStringOn) {
  StopFilter filter({"\nUser:"});
  EXPECT_EQ(filter.push("Yes.\nUs"), "Yes.");
  EXPECT_EQ(filter.push("er: more"), "");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.push("and more"), "");
  EXPECT_EQ(filter.finish(), "");
}

TEST(StopFilter, AStopStringMayBeginInsideAFailedOne) {
  EXPECT_EQ(filter_pieces({"aab"}, {"a", "a", "a", "b", "c"}), (Filtered{"a", true}));
  EXPECT_EQ(filter_pieces({"abac"}, {"ab", "ab", "ac"}), (Filtered{"ab", true}));
}

TEST(StopFilter, TheStopStringThatIsCompleteFirstWins) {
  EXPECT_EQ(filter_pieces({"abcd", "bc"}, {"abcd"}), (Filtered{"a", true}));
  EXPECT_EQ(filter_pieces({"c", "abc"}, {"abc"}), (Filtered{"", true}));
}

TEST(StopFilter, TheAnswerDoesNotDependOnHowTheTextIsCut) {
  std::mt19937 random(7);
  const auto word = [&](std::size_t length) {
    std::string text;
    for (std::size_t i = 0; i < length; ++i) text += static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (std::size_t i = 0; i < 1 + random() % 3; ++i) stops.push_back(word(1 + random() % 5));
    const std::string text = word(random() % 16);
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t length = 1 + random() % 4;
      pieces.push_back(text.substr(at, length));
      at += length;
    }
    const Filtered whole = filter_pieces(stops, {text});
    EXPECT_EQ(filter_pieces(stops, pieces), whole);
    EXPECT_TRUE(text.starts_with(whole.text));
    for (const std::string& stop : stops) {
      EXPECT_EQ(whole.text.find(stop), std::string::npos);
      if (!whole.stopped) {
        EXPECT_EQ(whole.text, text);
      }
    }
  }
}

// --- the loop -----------------------------------------------------------------------------------

/// What a reply needs of a model: its next token, and that it takes one.
struct Steps {
  std::function<std::int32_t()> pick;
  std::function<void(std::int32_t)> decode;
  std::vector<std::int32_t> begun = {};
};

ReplyText text_of(const Steps& steps, const Tokenizer& tokenizer, const GenerateOptions& options,
                  std::function<bool(std::string_view)> show = {}) {
  ReplyText reply(tokenizer, options, std::move(show));
  reply.resume(steps.begun);
  while (reply.wants_token()) {
    const std::int32_t token = steps.pick();
    if (!reply.push(token)) break;
    const bool last = reply.is_last();
    steps.decode(token);
    reply.taken();
    EXPECT_EQ(last, !reply.wants_token());
  }
  reply.finish();
  return reply;
}

/// A model that generates given tokens.
class Script {
 public:
  explicit Script(std::string_view text) {
    for (const char c : text) script_.push_back(static_cast<unsigned char>(c));
  }
  Script& then(std::int32_t token) {
    script_.push_back(token);
    return *this;
  }
  Steps steps() {
    return {.pick = [this] { return script_.at(taken.size()); },
            .decode = [this](std::int32_t token) { taken.push_back(token); }};
  }

  std::vector<std::int32_t> taken;

 private:
  std::vector<std::int32_t> script_;
};

constexpr std::int32_t kEnd = 256;

class Generate : public ::testing::Test {
 protected:
  ReplyText run(Script& script, const GenerateOptions& options) {
    shown.clear();
    return text_of(script.steps(), tokenizer, options, [this](std::string_view text) {
      shown += text;
      ++calls;
      return calls != cancel_at;
    });
  }

  Tokenizer tokenizer = byte_tokenizer({"<end>", "<mark>"}, "", "<end>");
  std::string shown;
  int calls = 0;
  int cancel_at = -1;
};

TEST_F(Generate, TokensBeyondTheTokenizerHaveNoText) {
  Script script("ab");
  script.then(5000).then('c').then(kEnd);
  const ReplyText result = run(script, {.end_tokens = {kEnd}});
  EXPECT_EQ(result.text, "abc");
  EXPECT_EQ(result.tokens.size(), 4U);
  EXPECT_EQ(script.taken, result.tokens);
}

TEST_F(Generate, StopsAtTheEndTokenAndDoesNotTakeIt) {
  Script script("Hello");
  script.then(kEnd);
  const ReplyText result = run(script, {.end_tokens = {kEnd}});
  EXPECT_EQ(result.text, "Hello");
  EXPECT_EQ(shown, "Hello");
  EXPECT_EQ(result.reason, StopReason::end_token);
  EXPECT_EQ(result.tokens.size(), 5U);
  EXPECT_EQ(script.taken, result.tokens);
}

TEST_F(Generate, StopsAtTheLengthWithEveryTokenTaken) {
  Script script("Hello");
  const ReplyText result = run(script, {.max_tokens = 3, .end_tokens = {kEnd}});
  EXPECT_EQ(result.text, "Hel");
  EXPECT_EQ(result.reason, StopReason::length);
  EXPECT_EQ(script.taken, result.tokens);
  EXPECT_EQ(result.tokens.size(), 3U);
}

TEST_F(Generate, NoTokensAtAllIsALengthToo) {
  Script script("");
  const ReplyText result = run(script, {.max_tokens = 0});
  EXPECT_EQ(result.reason, StopReason::length);
  EXPECT_TRUE(result.tokens.empty());
  EXPECT_EQ(calls, 0);
  expect_error([&] { run(script, {.max_tokens = -1}); }, {"max_tokens is -1"});
}

TEST_F(Generate, AStopStringEndsTheTextButItsTokensAreTaken) {
  Script script("Yes.\nUser: no");
  const ReplyText result = run(script, {.stops = {"\nUser:"}, .end_tokens = {kEnd}});
  EXPECT_EQ(result.text, "Yes.");
  EXPECT_EQ(shown, "Yes.");
  EXPECT_EQ(result.reason, StopReason::stop_string);
  EXPECT_EQ(tokenizer.decode(result.tokens), "Yes.\nUser:");
  EXPECT_EQ(script.taken, result.tokens);
}

TEST_F(Generate, WithheldTextIsEmittedAtTheEnd) {
  Script script("Yes.\nUs");
  script.then(kEnd);
  EXPECT_EQ(run(script, {.stops = {"\nUser:"}, .end_tokens = {kEnd}}).text, "Yes.\nUs");
  EXPECT_EQ(shown, "Yes.\nUs");
}

TEST_F(Generate, CharactersAreEmittedWhole) {
  Script script("é!");
  std::vector<std::string> pieces;
  text_of(script.steps(), tokenizer, {.max_tokens = 3}, [&](std::string_view text) {
    pieces.emplace_back(text);
    return true;
  });
  EXPECT_EQ(pieces, (std::vector<std::string>{"", "é", "!"}));
}

TEST_F(Generate, HalfACharacterAtTheEndBecomesAReplacement) {
  Script script("a\xc3");
  const ReplyText result = run(script, {.max_tokens = 2});
  EXPECT_EQ(result.text, "a\xef\xbf\xbd");
  EXPECT_EQ(shown, result.text);
}

TEST_F(Generate, AReplyInTwoPiecesIsTheReplyInOne) {
  for (const std::string text : {"caf\xc3\xa9 a\xe2\x82\xac", "Yes.\nUser: no", "Yes.\nUseful"}) {
    const auto size = static_cast<std::int64_t>(text.size());
    Script script(text);
    const std::string whole = run(script, {.max_tokens = size, .stops = {"\nUser:"}}).text;
    for (std::int64_t cut = 0; cut <= size; ++cut) {
      Script again(text);
      const ReplyText first = run(again, {.max_tokens = cut, .stops = {"\nUser:"}, .open = true});
      if (first.reason == StopReason::stop_string) continue;
      const std::vector<std::int32_t> said = again.taken;
      Steps steps = again.steps();
      steps.begun = said;
      const ReplyText second =
          text_of(steps, tokenizer, {.max_tokens = size - cut, .stops = {"\nUser:"}});
      EXPECT_EQ(first.text + second.text, whole) << cut;
    }
  }
}

TEST_F(Generate, AReplyResumedAfterAStopStringSearchesOnlyNewText) {
  Script script("a.b.");
  const std::vector<std::int32_t> said = {'x', '.'};
  Steps steps = script.steps();
  steps.begun = said;
  EXPECT_EQ(text_of(steps, tokenizer, {.max_tokens = 4, .stops = {"."}}).text, "a");
}

TEST_F(Generate, TheCallbackCanCancelAfterAnyToken) {
  Script script("Hello");
  cancel_at = 2;
  const ReplyText result = run(script, {});
  EXPECT_EQ(result.reason, StopReason::cancelled);
  EXPECT_EQ(result.text, "He");
  EXPECT_EQ(script.taken, result.tokens);
}

TEST_F(Generate, SpecialTokensAreEmittedOnlyOnRequest) {
  Script script("a");
  script.then(257);
  EXPECT_EQ(run(script, {.max_tokens = 2}).text, "a");
  script.taken.clear();
  EXPECT_EQ(run(script, {.max_tokens = 2, .with_special = true}).text, "a<mark>");
}

TEST_F(Generate, TheCallbackIsOptional) {
  Script script("ab");
  EXPECT_EQ(text_of(script.steps(), tokenizer, {.max_tokens = 2}).text, "ab");
}

TEST_F(Generate, ReasonsHaveNames) {
  EXPECT_EQ(stop_reason_name(StopReason::end_token), "end_token");
  EXPECT_EQ(stop_reason_name(StopReason::stop_string), "stop_string");
  EXPECT_EQ(stop_reason_name(StopReason::length), "length");
  EXPECT_EQ(stop_reason_name(StopReason::cancelled), "cancelled");
}

}  // namespace
}  // namespace lca
