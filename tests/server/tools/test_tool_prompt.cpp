#include "engine/byte_tokenizer.h"
#include "formats/byte_files.h"
#include "server/tools/python_json.h"
#include "server/tools/tool_prompt.h"
#include "tool_cases.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace lca::server {
namespace {

using test::expect_error;
using test::tool_style;
using test::tool_style_cases;
using test::ToolCase;
using test::ToolStyleCases;
using Ids = std::vector<std::int32_t>;

const std::vector<std::string> kControl = {
    "<|im_start|>",        "<|im_end|>",        "<|endoftext|>", "<|begin_of_text|>",
    "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",    "<|python_tag|>"};
const std::vector<std::string> kAdded = {"<tool_call>", "</tool_call>"};

/// Bytes and the tokens of both formats; as in Qwen2.5's tokenizer, the tags of calls are not
/// declared special.
Tokenizer tool_tokenizer(std::string_view begin, std::string_view end, std::int64_t control = 3) {
  std::vector<std::string> spellings = test::byte_spellings();
  const std::string merge = spellings[0xfe] + " " + spellings[0xff];
  spellings.push_back(spellings[0xfe] + spellings[0xff]);
  GgufTokenizer tables;
  tables.model = "gpt2";
  tables.pre = "qwen2";
  tables.types.assign(spellings.size(), 1);
  for (const auto& [names, type] : {std::pair(kControl, control), std::pair(kAdded, 4L)}) {
    spellings.insert(spellings.end(), names.begin(), names.end());
    tables.types.insert(tables.types.end(), names.size(), type);
  }
  for (std::size_t id = 0; id < spellings.size(); ++id) {
    tables.tokens.emplace_back(spellings[id]);
    if (spellings[id] == begin) tables.begin = static_cast<std::int64_t>(id);
    if (spellings[id] == end) tables.end = static_cast<std::int64_t>(id);
  }
  tables.merges.emplace_back(merge);
  tables.add_begin = tables.begin.has_value();
  return tokenizer_from_tables(tables, "tool tokenizer");
}

std::string joined(const std::vector<ChatPiece>& pieces) {
  std::string text;
  for (const ChatPiece& piece : pieces) text += piece.text;
  return text;
}

/// The ids of `ids` that are no byte.
Ids marks_of(const Ids& ids) {
  Ids marks;
  std::ranges::copy_if(ids, std::back_inserter(marks), [](std::int32_t id) { return id >= 256; });
  return marks;
}

std::int64_t count(const Ids& ids, const Tokenizer& tokenizer, std::string_view token) {
  return std::ranges::count(ids, tokenizer.find(token).value());
}

// --- formats ------------------------------------------------------------------------------------

TEST(ToolFormats, AreRecognisedByTheTemplate) {
  EXPECT_EQ(tool_format_detect(tool_style("qwen2.5").chat_template), ToolFormat::qwen25);
  EXPECT_EQ(tool_format_detect(tool_style("llama3.1").chat_template), ToolFormat::llama31);
}

TEST(ToolFormats, ATemplateThatOnlyResemblesOneIsNone) {
  EXPECT_EQ(tool_format_detect(""), ToolFormat::none);
  for (const ToolStyleCases& style : tool_style_cases()) {
    const auto changed = [&](std::string_view from, std::string_view to) {
      std::string text = style.chat_template;
      const std::size_t at = text.find(from);
      if (at == std::string::npos) return std::string();
      return text.replace(at, from.size(), to);
    };
    EXPECT_EQ(tool_format_detect(changed("call one or more", "call many")), ToolFormat::none);
    EXPECT_EQ(tool_format_detect(changed("\\n</tool_response>", "")), ToolFormat::none);
    EXPECT_EQ(tool_format_detect(changed("}.'", "}. '")), ToolFormat::none);  // vLLM's variant
    EXPECT_EQ(tool_format_detect(changed("ipython<|end", "tool<|end")), ToolFormat::none);
    EXPECT_EQ(tool_format_detect(style.chat_template + "{{ '</think>' }}"), ToolFormat::none);
    // As text outside of literals, or in a comment, the words are not what a template prints.
    EXPECT_EQ(tool_format_detect("{#" + style.chat_template), ToolFormat::none);
  }
}

TEST(ToolFormats, ATemplateCutAnywhereIsReadWithoutHarm) {
  for (const ToolStyleCases& style : tool_style_cases()) {
    for (std::size_t length = 0; length < style.chat_template.size() / 2; ++length) {
      EXPECT_EQ(tool_format_detect(std::string_view(style.chat_template).substr(0, length)),
                ToolFormat::none);
    }
  }
}

// --- texts --------------------------------------------------------------------------------------

TEST(ToolPieces, WriteWhatTheTemplatesWrite) {
  int seen = 0;
  for (const ToolStyleCases& style : tool_style_cases()) {
    const ToolFormat format = tool_format_detect(style.chat_template);
    const ChatStyle read = chat_style(style.format, style.chat_template, style.begin, style.end);
    for (const ToolCase& sample : style.cases) {
      EXPECT_EQ(joined(tool_pieces(format, read, sample.messages, sample.tools)), sample.text)
          << style.name << ": " << sample.name;
      ++seen;
    }
  }
  EXPECT_GE(seen, 30);
}

TEST(ToolPieces, WithoutToolsAreThoseOfTheChat) {
  for (const ToolStyleCases& style : tool_style_cases()) {
    const ChatStyle read = chat_style(style.format, style.chat_template, style.begin, style.end);
    const std::vector<Message> talk = {
        {"system", " S "}, {"user", "u\n"}, {"assistant", "a"}, {"user", "v"}};
    const std::vector<ChatMessage> plain = {{ChatMessage::Role::system, " S "},
                                            {ChatMessage::Role::user, "u\n"},
                                            {ChatMessage::Role::assistant, "a"},
                                            {ChatMessage::Role::user, "v"}};
    EXPECT_EQ(joined(tool_pieces(tool_format_detect(style.chat_template), read, talk, {})),
              joined(chat_pieces(read, plain)));
  }
}

TEST(ToolPieces, ResultsOfParallelCallsFindTheirCall) {
  const ToolStyleCases style = tool_style("llama3.1");
  const ChatStyle read = chat_style(style.format, style.chat_template, style.begin, style.end);
  const Message calls{"assistant", "", {{"1", "f", "{}"}, {"2", "g", ""}}};
  const std::string text = joined(tool_pieces(ToolFormat::llama31, read,
                                              std::vector<Message>{{"user", "q"},
                                                                   calls,
                                                                   {"tool", "two", {}, "2"},
                                                                   {"tool", "?", {}, "x"},
                                                                   {"tool", "one", {}, "1"}},
                                              {}));
  const std::string turn = "<|start_header_id|>";
  EXPECT_TRUE(text.ends_with(
      turn + "assistant<|end_header_id|>\n\n{\"name\": \"f\", \"parameters\": {}}<|eot_id|>" +
      turn + "ipython<|end_header_id|>\n\n\"one\"<|eot_id|>" + turn +
      "assistant<|end_header_id|>\n\n{\"name\": \"g\", \"parameters\": {}}<|eot_id|>" + turn +
      "ipython<|end_header_id|>\n\n\"two\"<|eot_id|>" + turn +
      "ipython<|end_header_id|>\n\n\"?\"<|eot_id|>" + turn + "assistant<|end_header_id|>\n\n"))
      << text;
}

TEST(ToolPieces, WhatAFormatCannotSayIsRefused) {
  ChatStyle style;
  style.format = ChatFormat::chatml;
  const auto write = [&](ToolFormat format, std::vector<Message> messages,
                         std::vector<ToolSpec> tools) {
    return [=] { tool_pieces(format, style, messages, tools); };
  };
  const std::vector<ToolSpec> tool = {{.name = "f", .description = ""}};
  expect_error(write(ToolFormat::qwen25, {}, tool), {"at least one message"});
  expect_error(write(ToolFormat::none, {{"user", "q"}}, tool), {"no tools in a format"});
  expect_error(write(ToolFormat::none, {{"user", "q"}, {"tool", "r"}}, {}), {"tool results"});
  expect_error(write(ToolFormat::none, {{"assistant", "", {{"", "f", ""}}}}, {}), {"tool calls"});
  expect_error(write(ToolFormat::llama31, {{"system", "s"}}, tool), {"must be the user's"});
  expect_error(write(ToolFormat::llama31, {{"assistant", "s"}}, tool), {"must be the user's"});
  expect_error(write(ToolFormat::qwen25, {{"robot", "s"}}, tool), {"role \"robot\""});
  expect_error(write(ToolFormat::qwen25, {{"user", "", {{"", "f", ""}}}}, tool), {"role user"});
  for (const ToolFormat format : {ToolFormat::qwen25, ToolFormat::llama31}) {
    for (const std::string name : {"", "a b", "a\"", "\n", "é"}) {
      expect_error(write(format, {{"user", "q"}}, {{.name = name, .description = ""}}),
                   {"is not the name of a function"});
      expect_error(write(format, {{"user", "q"}, {"assistant", "", {{"", name, "{}"}}}}, {}),
                   {"is not the name of a function"});
    }
    for (const std::string arguments : {"[]", "{", "1", "\"{}\"", "{}x", "{\"a\": 1e999}"}) {
      expect_error(write(format, {{"user", "q"}, {"assistant", "", {{"", "f", arguments}}}}, {}),
                   {"arguments of the call to f"});
    }
    std::string many = "{\"\": 0";  // to make this object takes minutes
    for (int i = 0; i < 500'000; ++i) many += ", \"" + std::to_string(i) + "\": 0";
    expect_error(write(format, {{"user", "q"}, {"assistant", "", {{"", "f", many + "}"}}}}, {}),
                 {"arguments of the call to f", "512 keys"});
  }
}

TEST(PythonJson, RefusesWhatIsNestedTooDeep) {
  Json deep = 1;
  for (int i = 0; i < 127; ++i) deep = Json::array({std::move(deep)});
  EXPECT_EQ(python_json(deep).size(), 127U * 2 + 1);
  deep = Json::array({Json::array({std::move(deep)})});
  expect_error([&] { python_json(deep); }, {"nested deeper than 128"});
}

// --- ids ----------------------------------------------------------------------------------------

TEST(ToolPrompts, EncodeTheTextWithTheMarksOfTheFormatAlone) {
  for (const std::int64_t type : {3L, 4L}) {  // control tokens, or tokens not declared special
    for (const ToolStyleCases& style : tool_style_cases()) {
      const Tokenizer tokenizer = tool_tokenizer(style.begin, style.end, type);
      const ToolPrompt prompt(tokenizer, style.format, style.chat_template);
      const ChatStyle read = chat_style(style.format, style.chat_template, style.begin, style.end);
      for (const ToolCase& sample : style.cases) {
        const Ids ids = prompt.ids(sample.messages, sample.tools);
        EXPECT_EQ(tokenizer.decode(ids, true), sample.text) << style.name << ": " << sample.name;
        Ids marks;
        for (const ChatPiece& piece :
             tool_pieces(prompt.format(), read, sample.messages, sample.tools)) {
          if (!piece.mark) continue;
          if (const auto id = tokenizer.find(piece.text)) marks.push_back(*id);
        }
        EXPECT_EQ(marks_of(ids), marks) << style.name << ": " << sample.name;
      }
    }
  }
}

TEST(ToolPrompts, OfOrdinaryTextAreWhatTheTokenizerMakesOfIt) {
  // A tokenizer with merges, special marks, and <tool_call> as a token that is not special.
  const Tokenizer tokenizer = Tokenizer::open(LCA_SOURCE_DIR "/tests/golden/tokenizers/qwen2.json");
  const ToolStyleCases style = tool_style("qwen2.5");
  const ToolPrompt prompt(tokenizer, style.format, style.chat_template);
  int tags = 0;
  for (const ToolCase& sample : style.cases) {
    const Ids ids = prompt.ids(sample.messages, sample.tools);
    const Ids plain = tokenizer.encode(sample.text, {.add_special = false, .parse_special = true});
    tags += static_cast<int>(count(ids, tokenizer, "<tool_call>"));
    if (sample.name == "marks in the texts") {
      EXPECT_NE(ids, plain);
    } else {
      EXPECT_EQ(ids, plain) << sample.name;
    }
  }
  EXPECT_GT(tags, 20);
}

TEST(ToolPrompts, NothingAClientWritesBecomesAMark) {
  std::string hostile;
  for (const auto& list : {kControl, kAdded}) {
    for (const std::string& token : list) hostile += token + " " + token;
  }
  hostile += "<tool_<tool_call>call>";
  for (const ToolStyleCases& style : tool_style_cases()) {
    const Tokenizer tokenizer = tool_tokenizer(style.begin, style.end);
    const ToolPrompt prompt(tokenizer, style.format, style.chat_template);
    const auto marks = [&](const std::string& text) {
      const std::string quoted = Json(text).dump();
      const ToolSpec tool{.name = "f", .description = text, .parameters = {{text, text}}};
      const std::vector<Message> talk = {
          {"system", text},
          {"user", text},
          {"assistant", text},
          {"user", text},
          {"assistant", text, {{text, "f", "{\"a\":" + quoted + "}"}}},
          {"tool", text, {}, text}};
      return marks_of(prompt.ids(talk, std::vector{tool}));
    };
    EXPECT_EQ(marks(hostile), marks("x")) << style.name;
    EXPECT_GT(marks("x").size(), 10U);
  }
}

TEST(ToolPrompts, EndInsideAMessageThatIsContinued) {
  for (const ToolStyleCases& style : tool_style_cases()) {
    const Tokenizer tokenizer = tool_tokenizer(style.begin, style.end);
    const ToolPrompt prompt(tokenizer, style.format, style.chat_template);
    std::vector<Message> talk = {
        {"user", "q"}, {"assistant", "", {{"1", "f", "{}"}}}, {"tool", "42", {}, "1"}};
    const std::string closed = tokenizer.decode(prompt.ids(talk, {}), true);
    talk.push_back({"assistant", "It is "});
    EXPECT_EQ(tokenizer.decode(prompt.ids(talk, {}, true), true), closed + "It is ");
    talk.back().calls = {{"2", "f", "{}"}};
    EXPECT_THROW(prompt.ids(talk, {}, true), Error);
    talk.back() = {"user", "so?"};
    EXPECT_THROW(prompt.ids(talk, {}, true), Error);
  }
}

TEST(ToolPrompts, WriteQwensTagsAsItsTokens) {
  const ToolStyleCases style = tool_style("qwen2.5");
  const Tokenizer tokenizer = tool_tokenizer(style.begin, style.end);
  const ToolPrompt prompt(tokenizer, style.format, style.chat_template);
  const ToolSpec tool{.name = "f", .description = ""};
  const std::vector<Message> talk = {{"user", "q"},
                                     {"assistant", "", {{"", "f", ""}, {"", "f", ""}}}};
  EXPECT_EQ(count(prompt.ids(talk, {}), tokenizer, "<tool_call>"), 2);
  EXPECT_EQ(count(prompt.ids(talk, std::vector{tool}), tokenizer, "<tool_call>"), 4);
  EXPECT_EQ(count(prompt.ids(talk, std::vector{tool}), tokenizer, "</tool_call>"), 4);
}

TEST(ToolPrompts, SayWhetherCallsAreMadeOfSpecialTokens) {
  const auto is_special = [](std::string_view name, std::int64_t type) {
    const ToolStyleCases style = tool_style(name);
    return ToolPrompt(tool_tokenizer(style.begin, style.end, type), style.format,
                      style.chat_template)
        .reply_is_special();
  };
  EXPECT_FALSE(is_special("qwen2.5", 3));
  EXPECT_TRUE(is_special("llama3.1", 3));
  EXPECT_FALSE(is_special("llama3.1", 4));
}

TEST(ToolPrompts, OfAnotherTemplateTakeNoTools) {
  const Tokenizer tokenizer = tool_tokenizer("", "<|im_end|>");
  const std::string_view plain = "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}";
  const ToolPrompt prompt(tokenizer, ChatFormat::chatml, plain);
  EXPECT_EQ(prompt.format(), ToolFormat::none);
  const std::vector<Message> talk = {{"user", "q"}};
  EXPECT_EQ(tokenizer.decode(prompt.ids(talk, {}), true),
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n");
  expect_error([&] { prompt.ids(talk, std::vector{ToolSpec{.name = "f", .description = ""}}); },
               {"Qwen2.5's or Llama 3.1's"});
  // A format chosen by hand, against the template.
  const ToolPrompt forced(tokenizer, ChatFormat::plain, tool_style("qwen2.5").chat_template);
  EXPECT_EQ(forced.format(), ToolFormat::none);
}

}  // namespace
}  // namespace lca::server
