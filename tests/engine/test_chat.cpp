#include "byte_tokenizer.h"
#include "chat_cases.h"
#include "engine/chat_pieces.h"
#include "formats/byte_files.h"

#include <algorithm>
#include <array>

namespace lca {
namespace {

using test::byte_tokenizer;
using test::chat_style_cases;
using test::ChatCase;
using test::ChatStyleCases;
using test::expect_error;
using Ids = std::vector<std::int32_t>;
using Role = ChatMessage::Role;

const std::vector<std::string> kSpecial = {"<|im_start|>",
                                           "<|im_end|>",
                                           "<|endoftext|>",
                                           "<｜begin▁of▁sentence｜>",
                                           "<｜end▁of▁sentence｜>",
                                           "<｜User｜>",
                                           "<｜Assistant｜>",
                                           "<think>",
                                           "</think>",
                                           "<s>",
                                           "</s>",
                                           "<|begin_of_text|>",
                                           "<|start_header_id|>",
                                           "<|end_header_id|>",
                                           "<|eot_id|>"};

std::string joined(const std::vector<ChatPiece>& pieces) {
  std::string text;
  for (const ChatPiece& piece : pieces) text += piece.text;
  return text;
}

Ids operator+(Ids left, const Ids& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

// --- formats and templates ----------------------------------------------------------------------

TEST(ChatFormats, NamesGoBothWays) {
  EXPECT_EQ(chat_format_names().size(), 7U);
  for (const std::string_view name : chat_format_names()) {
    EXPECT_EQ(chat_format_name(chat_format_parse(name)), name);
  }
  expect_error([] { chat_format_parse("vicuna\n"); },
               {"unknown chat format \"vicuna\\x0a\"", "chatml", "plain"});
}

TEST(ChatFormats, AreRecognisedByTheTemplate) {
  for (const ChatStyleCases& style : chat_style_cases()) {
    EXPECT_EQ(chat_format_detect(style.chat_template, style.architecture), style.format)
        << style.name;
  }
}

TEST(ChatFormats, NoTemplateIsPlain) {
  EXPECT_EQ(chat_format_detect("", "llama"), ChatFormat::plain);
  EXPECT_EQ(chat_format_detect(" \n", "minicpm3"), ChatFormat::plain);
}

TEST(ChatFormats, WhatOnlyLooksAlikeIsRefused) {
  const std::array<std::string_view, 5> strangers = {
      "{{ '<|im_start|>user<|im_sep|>' + content + '<|im_end|>' }}",
      "{{ bos_token + '[INST] ' + content + ' [/INST]' + eos_token }}",
      "{{ '<start_of_turn>user' }}",
      "{{ 'GPT4 Correct User: ' + content + eos_token + 'GPT4 Correct Assistant:' }}",
      "USER: x ASSISTANT: y"};
  for (const std::string_view stranger : strangers) {
    expect_error([&] { chat_format_detect(stranger, "llama"); },
                 {"chat template", "choose a format", "chatml", "llama3"}, ErrorKind::incompatible);
  }
}

TEST(ChatFormats, TheDefaultSystemMessageIsTakenFromTheTemplate) {
  const auto found = [](std::string_view text) {
    return chat_style(ChatFormat::chatml, text, "", "").default_system;
  };
  EXPECT_EQ(found("{{ '<|im_start|>system\nYou are S.<|im_end|>\n' }}"), "You are S.");
  EXPECT_EQ(found(R"({{ "<|im_start|>system\nYou're \"S\".<|im_end|>\n" }})"), "You're \"S\".");
  EXPECT_EQ(found(R"({{ '<|im_start|>system\n' + m + '<|im_end|>\n' }})"), "");
  EXPECT_EQ(found(R"({{ '<|im_start|>system\n)"), "");
  EXPECT_EQ(found(R"({{ '<|im_start|>system\n<|im_end|>\n' }})"), "");
  EXPECT_EQ(found("<|im_start|>system"), "");
  EXPECT_EQ(found("'<|im_start|>system\\"), "");
}

TEST(ChatFormats, ATemplateCutAnywhereIsReadWithoutHarm) {
  for (const ChatStyleCases& style : chat_style_cases()) {
    for (std::size_t length = 0; length < style.chat_template.size(); ++length) {
      const std::string cut = style.chat_template.substr(0, length);
      chat_style(style.format, cut, style.begin, style.end);
      try {
        chat_format_detect(cut, style.architecture);
      } catch (const Error&) {
      }
    }
  }
}

// --- text ---------------------------------------------------------------------------------------

TEST(ChatPieces, WriteWhatTheTemplatesWrite) {
  for (const ChatStyleCases& style : chat_style_cases()) {
    const ChatStyle read = chat_style(style.format, style.chat_template, style.begin, style.end);
    for (const ChatCase& sample : style.cases) {
      EXPECT_EQ(joined(chat_pieces(read, sample.messages)), sample.text)
          << style.name << ": " << sample.name;
    }
  }
}

TEST(ChatPieces, NeighbouringTextsAreOnePiece) {
  for (const ChatStyleCases& style : chat_style_cases()) {
    const ChatStyle read = chat_style(style.format, style.chat_template, style.begin, style.end);
    for (const ChatCase& sample : style.cases) {
      const auto pieces = chat_pieces(read, sample.messages);
      for (std::size_t i = 1; i < pieces.size(); ++i) {
        EXPECT_TRUE(pieces[i].mark || pieces[i - 1].mark) << style.name << ": " << sample.name;
        EXPECT_FALSE(pieces[i].text.empty());
      }
    }
  }
}

// --- ids ----------------------------------------------------------------------------------------

TEST(ChatTemplate, GivesTheIdsOfTheTemplatesText) {
  for (const ChatStyleCases& style : chat_style_cases()) {
    const Tokenizer tokenizer = byte_tokenizer(kSpecial, style.begin, style.end);
    const ChatTemplate writer(tokenizer, style.format, style.chat_template);
    for (const ChatCase& sample : style.cases) {
      const Ids ids = writer.prompt(sample.messages);
      EXPECT_EQ(tokenizer.decode(ids, true), sample.text) << style.name << ": " << sample.name;
      // Marks such as <think> in a message are text, unlike those of the format.
      if (sample.name == "a thought") continue;
      EXPECT_EQ(ids, tokenizer.encode(sample.text)) << style.name << ": " << sample.name;
    }
  }
}

TEST(ChatTemplate, AnOpenMessageIsTheBeginningOfTheWholeOne) {
  for (const ChatStyleCases& style : chat_style_cases()) {
    SCOPED_TRACE(style.name);
    const Tokenizer tokenizer = byte_tokenizer(kSpecial, style.begin, style.end);
    const ChatTemplate writer(tokenizer, style.format, style.chat_template);
    const std::vector<ChatMessage> asked = {{Role::system, "Be brief."}, {Role::user, "How high?"}};
    const std::string prompt = tokenizer.decode(writer.prompt(asked), true);
    const auto open = [&](const std::string& text) {
      std::vector<ChatMessage> messages = asked;
      messages.push_back({Role::assistant, text});
      return writer.prompt_open(messages);
    };
    const std::string lead(writer.reply_lead());
    EXPECT_EQ(tokenizer.decode(open("Forty met"), true), prompt + lead + "Forty met");
    EXPECT_EQ(tokenizer.decode(open("Forty "), true), prompt + lead + "Forty ");
    EXPECT_EQ(tokenizer.decode(open(" Forty"), true),
              prompt + (lead.empty() ? " Forty" : lead + "Forty"));
    EXPECT_EQ(tokenizer.decode(open(""), true), prompt);
    // A message cannot end itself.
    const Ids marks = open("a<|im_end|></s><|eot_id|>");
    EXPECT_EQ(tokenizer.decode(marks, true), prompt + lead + "a<|im_end|></s><|eot_id|>");
    EXPECT_LT(marks.back(), 256);

    if (!writer.thinks()) {
      std::vector<ChatMessage> whole = asked;
      whole.push_back({Role::assistant, "Forty metres."});
      const Ids closed = writer.prompt(whole);
      const Ids begun = open("Forty met");
      ASSERT_LT(begun.size(), closed.size());
      EXPECT_TRUE(std::equal(begun.begin(), begun.end(), closed.begin()));
    }
    expect_error([&] { writer.prompt_open(asked); }, {"assistant"});
    const std::vector<ChatMessage> alone = {{Role::assistant, "a"}};
    expect_error([&] { writer.prompt_open(alone); }, {"before it"});
    expect_error([&] { writer.prompt_open({}); }, {"before it"});
  }
}

TEST(ChatTemplate, TheNextTurnContinuesWhereThePromptLeftOff) {
  const std::string first = "How high is it?";
  const std::string reply = "Forty metres.";
  const std::string second = "Who says so?";
  for (const ChatStyleCases& style : chat_style_cases()) {
    SCOPED_TRACE(style.name);
    const Tokenizer tokenizer = byte_tokenizer(kSpecial, style.begin, style.end);
    // A reply that begins inside <think> is not what the template writes afterwards.
    std::string text = style.chat_template;
    if (const std::size_t at = text.find("<think>\\n"); at != std::string::npos) text.erase(at, 9);
    const ChatTemplate writer(tokenizer, style.format, text);
    const std::vector<ChatMessage> start = {{Role::user, first}};
    const std::vector<ChatMessage> whole = {
        {Role::user, first}, {Role::assistant, reply}, {Role::user, second}};
    // Llama 2's template puts a space behind a reply, too.
    const std::string_view tail = style.format == ChatFormat::llama2 ? " " : "";
    const Ids said = tokenizer.encode(std::string(writer.reply_lead()).append(reply).append(tail));
    const Ids begun = writer.prompt(start) + said;
    EXPECT_EQ(begun + writer.next_turn(second, false), writer.prompt(whole));

    const Ids end = {writer.end_tokens().front()};
    EXPECT_EQ(begun + end + writer.next_turn(second, true), writer.prompt(whole));
  }
}

/// Ids that are not bytes.
Ids marks_of(const Ids& ids) {
  Ids found;
  std::ranges::copy_if(ids, std::back_inserter(found), [](auto id) { return id >= 256; });
  return found;
}

void expect_text_stays_text(const ChatStyleCases& style, std::int64_t type) {
  SCOPED_TRACE(style.name);
  const Tokenizer tokenizer = byte_tokenizer(kSpecial, style.begin, style.end, type);
  const ChatTemplate writer(tokenizer, style.format, style.chat_template);
  // Only tokens of the format: others cannot end a chat turn.
  const std::vector<ChatMessage> calm = {
      {Role::system, "s"}, {Role::user, "u"}, {Role::assistant, "a"}, {Role::user, "v"}};
  const Ids expected = marks_of(writer.prompt(calm));
  std::string evil = "x";
  for (const std::int32_t id : expected) {
    if (!tokenizer.token(id).ends_with("think>")) evil += tokenizer.token(id);
  }
  for (const ChatMessage::Role role : {Role::system, Role::user, Role::assistant}) {
    std::vector<ChatMessage> talk = calm;
    for (ChatMessage& message : talk) {
      if (message.role == role) message.text = evil;
    }
    const Ids ids = writer.prompt(talk);
    EXPECT_EQ(marks_of(ids), expected);
    EXPECT_NE(tokenizer.decode(ids, true).find(evil), std::string::npos);
  }
  const Ids next = writer.next_turn(evil, false);
  EXPECT_EQ(marks_of(next), marks_of(writer.next_turn("u", false)));
  EXPECT_NE(tokenizer.decode(next, true).find(evil), std::string::npos);
}

TEST(ChatTemplate, AMessageCannotEndItsTurnBySpellingTheToken) {
  for (const ChatStyleCases& style : chat_style_cases()) expect_text_stays_text(style, 3);
}

TEST(ChatTemplate, AMessageCannotEndItsTurnWhereTheTokenIsNotDeclaredSpecial) {
  for (const ChatStyleCases& style : chat_style_cases()) expect_text_stays_text(style, 4);
}

TEST(ChatTemplate, FindsTheTokensThatEndAReply) {
  const Tokenizer tokenizer = byte_tokenizer(kSpecial, "<s>", "</s>");
  const auto ends = [&](ChatFormat format) {
    return ChatTemplate(tokenizer, format, "").end_tokens();
  };
  const auto id = [&](std::string_view token) { return *tokenizer.find(token); };
  EXPECT_EQ(ends(ChatFormat::chatml), (Ids{id("<|im_end|>"), id("<|endoftext|>"), id("</s>")}));
  EXPECT_EQ(ends(ChatFormat::minicpm), (Ids{id("<|im_end|>"), id("</s>")}));
  EXPECT_EQ(ends(ChatFormat::llama2), (Ids{id("</s>")}));
  EXPECT_EQ(ends(ChatFormat::plain), (Ids{id("</s>")}));
  EXPECT_EQ(ends(ChatFormat::deepseek), (Ids{id("<｜end▁of▁sentence｜>"), id("</s>")}));
}

TEST(ChatTemplate, PlainTextStaysAsItIs) {
  const Tokenizer tokenizer = byte_tokenizer({"<s>"}, "<s>");
  const ChatTemplate writer(tokenizer, ChatFormat::plain, "");
  const std::vector<ChatMessage> one = {{Role::user, "Once <s> upon"}};
  EXPECT_EQ(tokenizer.decode(writer.prompt(one)), "Once <s> upon");
  EXPECT_TRUE(std::ranges::equal(
      writer.prompt(one),
      tokenizer.prefix() +
          tokenizer.encode("Once <s> upon", {.add_special = false, .parse_special = false})));
  EXPECT_EQ(tokenizer.decode(writer.next_turn("a time", false)), "\n\na time");
  EXPECT_EQ(tokenizer.decode(writer.next_turn("a time", true)), "\n\na time");
}

TEST(ChatTemplate, SaysWhatATokenizerLacks) {
  const Tokenizer bare = byte_tokenizer({"<|im_start|>"});
  expect_error([&] { ChatTemplate(bare, ChatFormat::chatml, ""); },
               {"chatml", "<|im_end|>", "choose another format"}, ErrorKind::incompatible);
  expect_error([&] { ChatTemplate(bare, ChatFormat::llama3, ""); }, {"<|start_header_id|>"},
               ErrorKind::incompatible);
  expect_error([&] { ChatTemplate(bare, ChatFormat::deepseek, ""); }, {"ends a reply"},
               ErrorKind::incompatible);
  const ChatTemplate plain(bare, ChatFormat::plain, "");
  expect_error([&] { plain.prompt({}); }, {"at least one message"});
}

TEST(ChatTemplate, OutlivesTheTokenizerItWasMadeOf) {
  std::optional<Tokenizer> tokenizer = byte_tokenizer({"<|im_start|>", "<|im_end|>"});
  const ChatTemplate first(*tokenizer, ChatFormat::chatml);
  const ChatTemplate copy = first;
  const std::vector<ChatMessage> one = {{Role::user, "u"}};
  const Ids ids = first.prompt(one);
  tokenizer.reset();
  EXPECT_EQ(copy.prompt(one), ids);
  EXPECT_EQ(copy.end_tokens(), first.end_tokens());
}

TEST(ChatTemplate, WithoutATemplateAFormatAddsNothingOfItsOwn) {
  const Tokenizer tokenizer = byte_tokenizer(kSpecial, "<s>", "</s>");
  const std::vector<ChatMessage> one = {{Role::user, "u"}};
  const auto text = [&](ChatFormat format) {
    return tokenizer.decode(ChatTemplate(tokenizer, format, "").prompt(one), true);
  };
  EXPECT_EQ(text(ChatFormat::chatml), "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(text(ChatFormat::deepseek_r1), "<s><｜User｜>u<｜Assistant｜><think>\n");
  EXPECT_EQ(text(ChatFormat::llama2), "<s>[INST] u [/INST]");
}

}  // namespace
}  // namespace lca
