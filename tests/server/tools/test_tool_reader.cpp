#include "server/tools/tool_reader.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace lca::server {
namespace {

const std::vector<std::string> kNames = {"get_weather", "time-now", "f"};

/// A reply as one line: text as it is, calls as [NAME ARGUMENTS].
std::string shown(const std::vector<ReplyPart>& parts) {
  std::string line;
  for (const ReplyPart& part : parts) {
    line += part.text;
    if (part.call) line += "[" + part.call->name + " " + part.call->arguments + "]";
  }
  return line;
}

std::vector<ReplyPart> read_cut(ToolFormat format, std::string_view reply,
                                const std::vector<std::size_t>& cuts) {
  ToolReader reader(format, kNames, "call_");
  std::vector<ReplyPart> all;
  std::size_t from = 0;
  const auto take = [&](std::vector<ReplyPart> parts) {
    for (ReplyPart& part : parts) {
      EXPECT_NE(part.text.empty(), !part.call.has_value()) << "a part is text or a call";
      if (part.call) {
        EXPECT_EQ(part.call->id, "call_" + std::to_string(part.call->index));
      }
      all.push_back(std::move(part));
    }
  };
  for (const std::size_t cut : cuts) {
    take(reader.push(reply.substr(from, cut - from)));
    from = cut;
  }
  take(reader.push(reply.substr(from)));
  take(reader.finish());
  return all;
}

/// Reads a reply whole, byte by byte and in random pieces; all must give the same.
std::string read(ToolFormat format, std::string_view reply) {
  const std::string whole = shown(read_cut(format, reply, {}));
  std::vector<std::size_t> bytes;
  for (std::size_t i = 1; i < reply.size(); ++i) bytes.push_back(i);
  EXPECT_EQ(shown(read_cut(format, reply, bytes)), whole) << "byte by byte";
  std::mt19937 random(static_cast<unsigned>(reply.size()));
  for (int round = 0; round < 20; ++round) {
    std::vector<std::size_t> cuts;
    for (std::size_t at = 0; at < reply.size(); at += 1 + random() % 17) cuts.push_back(at);
    EXPECT_EQ(shown(read_cut(format, reply, cuts)), whole) << "in random pieces";
  }
  return whole;
}

std::string qwen(std::string_view reply) { return read(ToolFormat::qwen25, reply); }
std::string llama(std::string_view reply) { return read(ToolFormat::llama31, reply); }

// --- Qwen2.5 ------------------------------------------------------------------------------------

TEST(ToolReaderQwen, ReadsCalls) {
  EXPECT_EQ(qwen("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>"),
            "[f {\"a\": 1}]");
  EXPECT_EQ(qwen("I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"),
            "I look.[f {}]");
  EXPECT_EQ(qwen("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n"
                 "<tool_call>\n{\"name\": \"time-now\", \"arguments\": {\"z\": \"é "
                 "🏝️\"}}\n</tool_call>"),
            "[f {}][time-now {\"z\": \"é 🏝️\"}]");
}

TEST(ToolReaderQwen, LeavesTextAlone) {
  for (const std::string text : {"", "Hello", "a\n", "\n\n", "a < b", "<tool", "x <tool_call",
                                 "</tool_call>", "{\"name\": 1}", "<tool_cal>\n<tool_call",
                                 "<<<tool_calls>>", "灯台 🏝️\n", "{\"name\": \"f\"}"}) {
    EXPECT_EQ(qwen(text), text);
  }
}

TEST(ToolReaderQwen, TakesWhatModelsWrite) {
  const std::string call = "{\"name\":\"f\",\"arguments\":{}}";
  EXPECT_EQ(qwen("<tool_call>" + call + "</tool_call>"), "[f {}]");
  EXPECT_EQ(qwen("<tool_call> \n\n " + call + " \n </tool_call>\n\n"), "[f {}]");
  EXPECT_EQ(qwen("<tool_call>" + call), "[f {}]");                // no end tag
  EXPECT_EQ(qwen("<tool_call>" + call + "\n</tool_"), "[f {}]");  // cut in it
  EXPECT_EQ(qwen("<tool_call>" + call + "<tool_call>" + call + "</tool_call>"), "[f {}][f {}]");
  EXPECT_EQ(qwen("<tool_call>" + call + "\n" + call + "</tool_call>"), "[f {}][f {}]");
  EXPECT_EQ(qwen("<tool_call>" + call + "</tool_call>\n\nDone."), "[f {}]\n\nDone.");
  EXPECT_EQ(qwen("a\n\n<tool_call>" + call + "</tool_call>"), "a\n[f {}]");
  EXPECT_EQ(qwen("<tool_call>{\"name\": \"f\"}</tool_call>"), "[f {}]");
  EXPECT_EQ(qwen("<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>"), "[f {}]");
  EXPECT_EQ(qwen("<tool_call>{\"name\": \"f\", \"parameters\": {\"a\":2}}</tool_call>"),
            "[f {\"a\":2}]");
  EXPECT_EQ(qwen("<tool_call>{\"arguments\": {\"name\": \"x\"}, \"name\": \"f\"}</tool_call>"),
            "[f {\"name\": \"x\"}]");
  EXPECT_EQ(qwen(R"(<tool_call>{"name": "f", "arguments": "{\"a\": \"b\"}"}</tool_call>)"),
            R"([f {"a": "b"}])");
  EXPECT_EQ(qwen("<tool_call>{\"id\": 3, \"why\": [1], \"name\": \"f\"}</tool_call>"), "[f {}]");
}

TEST(ToolReaderQwen, TagsInsideArgumentsAreArguments) {
  const std::string arguments =
      R"({"code": "print('</tool_call><tool_call>{\"name\": \"f\"}')\n \u0041 \\", "n": [-1.5e+3, 0, true, null, {"a": {}}]})";
  EXPECT_EQ(qwen("<tool_call>\n{\"name\": \"f\", \"arguments\": " + arguments + "}\n</tool_call>"),
            "[f " + arguments + "]");
}

TEST(ToolReaderQwen, BrokenCallsAreText) {
  for (const std::string broken :
       {"<tool_call>",
        "<tool_call>\n",
        "<tool_call>\n</tool_call>",
        "<tool_call>f()</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 01}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {a: 1}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1,}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"\n\"}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"\\x\"}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"\\ud800\"}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1e999}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}</tool_call>",
        "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": 7, \"arguments\": {}}</tool_call>",
        "<tool_call>{}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"never ends</tool_call>",
        "a\n<tool_call>[{\"name\": \"f\"}]</tool_call>\nb",
        "\n<tool_call>\n\n<tool_call>\n"}) {
    EXPECT_EQ(qwen(broken), broken);
  }
  const std::string call = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
  EXPECT_EQ(qwen("<tool_call>oops " + call), "<tool_call>oops [f {}]");
  EXPECT_EQ(qwen("<tool_call>{\"a</tool_call>\n" + call), "<tool_call>{\"a</tool_call>[f {}]");
}

TEST(ToolReaderQwen, WithholdsOnlyWhatMayBecomeACall) {
  ToolReader reader(ToolFormat::qwen25, kNames, "");
  EXPECT_EQ(shown(reader.push("Hello wor")), "Hello wor");
  EXPECT_EQ(shown(reader.push("ld <")), "ld ");
  EXPECT_EQ(shown(reader.push("b>\n")), "<b>");
  EXPECT_EQ(shown(reader.push("x<tool_ca")), "\nx");
  EXPECT_EQ(shown(reader.push("t> <tool_call>\n{\"name\": \"g")), "<tool_cat> ");
  EXPECT_EQ(shown(reader.push("one")), "");
  EXPECT_EQ(shown(reader.push("\"")), "<tool_call>\n{\"name\": \"gone\"");  // not offered
  EXPECT_EQ(shown(reader.push("<tool_call>{\"name\": \"f\"")), "");
  EXPECT_EQ(reader.calls(), 0);
  EXPECT_EQ(shown(reader.push("}")), "[f {}]");  // before its end tag
  EXPECT_EQ(reader.calls(), 1);
  EXPECT_EQ(shown(reader.push("</tool_call>\n")), "");
  EXPECT_EQ(shown(reader.finish()), "");
}

// --- Llama 3.1 ----------------------------------------------------------------------------------

TEST(ToolReaderLlama, ReadsCalls) {
  EXPECT_EQ(llama("{\"name\": \"f\", \"parameters\": {\"a\": 1}}"), "[f {\"a\": 1}]");
  EXPECT_EQ(llama("<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": 1}}"), "[f {\"a\": 1}]");
  EXPECT_EQ(llama("<|python_tag|>f.call(query=\"warm, or not?\")"),
            "[f {\"query\": \"warm, or not?\"}]");
}

TEST(ToolReaderLlama, TakesWhatModelsWrite) {
  const std::string call = "{\"name\":\"f\",\"parameters\":{}}";
  EXPECT_EQ(llama(" \n" + call + "\n "), "[f {}]");
  EXPECT_EQ(llama(call + "; " + call), "[f {}][f {}]");
  EXPECT_EQ(llama(call + "\n" + call + "\n"), "[f {}][f {}]");
  EXPECT_EQ(llama("[" + call + ", " + call + "]"), "[f {}][f {}]");
  EXPECT_EQ(llama("<|python_tag|>" + call + "; " + call), "[f {}][f {}]");
  EXPECT_EQ(llama("<|python_tag|> [" + call + "]"), "[f {}]");
  EXPECT_EQ(llama(call + "<|python_tag|>" + call), "[f {}][f {}]");
  EXPECT_EQ(llama("I look. <|python_tag|>" + call), "I look. [f {}]");
  EXPECT_EQ(llama(call + " Done."), "[f {}] Done.");
  EXPECT_EQ(llama("{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}"), "[f {}]");
  EXPECT_EQ(
      llama("{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"b\":0}}}"),
      "[f {\"b\":0}]");
  EXPECT_EQ(llama("{\"function\": \"f\", \"parameters\": {}}"), "[f {}]");
  EXPECT_EQ(llama("{\"name\": \"f\", \"arguments\": {}}"), "[f {}]");
  EXPECT_EQ(llama("{\"name\": \"f\", \"parameters\": null}"), "[f {}]");
  EXPECT_EQ(llama("<|python_tag|>time-now.call()"), "[time-now {}]");
  EXPECT_EQ(
      llama("<|python_tag|>f.call(a=\"say \"hi\", ok\", b=\"x=\\y\", n=-2.5, t=True, u=None)\n"),
      R"([f {"a": "say \"hi\", ok", "b": "x=\\y", "n": -2.5, "t": true, "u": null}])");
}

TEST(ToolReaderLlama, AllElseIsText) {
  for (const std::string text :
       {"", "  ", "Hello", "{", "{}", "[]", "[1, 2]", "{\"city\": \"Paris\"}", "[{\"a\": 1}]",
        "{\"name\": \"Ada\", \"parameters\": {}}", "{\"name\": \"f\", \"parameters\": {}",
        "{\"name\": \"f\", \"parameters\": [1]}", "{\"name\": \"f\", \"age\": 3}",
        "Text: {\"name\": \"f\", \"parameters\": {}}", "{'name': 'f'}", "<|python",
        "a <|python_tag", "```json\n{\"name\": \"f\"}\n```",
        "<tool_call>{\"name\": \"f\"}</tool_call>"}) {
    EXPECT_EQ(llama(text), text);
  }
  // The tag is a special token, never text.
  EXPECT_EQ(llama("<|python_tag|>print(1)"), "print(1)");
  EXPECT_EQ(llama("<|python_tag|>"), "");
  EXPECT_EQ(llama("<|python_tag|>g.call(a=\"b\")"), "g.call(a=\"b\")");
  for (const std::string code :
       {"f.call(a=\"b\"", "f.call(a)", "f.call(a=\"b\") + 1", "f.call(\"b\")", "f.call(a=b)",
        "f.call(a=\"b\", a=\"c\")", "f.call(a=[1])", "f.call(", "f.cal", "f.call(,)",
        "f.call(a=\"b\",)", "f.call(a='b\")"}) {
    EXPECT_EQ(llama("<|python_tag|>" + code), code);
  }
}

TEST(ToolReaderLlama, WithholdsOnlyWhatMayBecomeACall) {
  ToolReader reader(ToolFormat::llama31, kNames, "");
  EXPECT_EQ(shown(reader.push(" {\"na")), "");
  EXPECT_EQ(shown(reader.push("tion\"")), " {\"nation\"");
  EXPECT_EQ(shown(reader.push(": {\"name\": \"f\"}")), ": {\"name\": \"f\"}");
  EXPECT_EQ(shown(reader.push(" <|python_")), " ");
  EXPECT_EQ(shown(reader.push("tag|>f.ca")), "");
  EXPECT_EQ(shown(reader.push("n")), "f.can");
  EXPECT_EQ(shown(reader.finish()), "");
}

// --- both ---------------------------------------------------------------------------------------

TEST(ToolReaders, WithoutAFormatOrToolsPassTextOn) {
  const std::string reply = "\n<tool_call>{\"name\": \"f\"}</tool_call>";
  EXPECT_EQ(read(ToolFormat::none, reply), reply);
  ToolReader reader(ToolFormat::qwen25, {}, "");
  EXPECT_EQ(shown(reader.push(reply)), reply);
}

TEST(ToolReaders, RepliesMadeOfPiecesAreReadTheSameHoweverCut) {
  const std::vector<std::string> pieces = {"<tool_call>",
                                           "</tool_call>",
                                           "<|python_tag|>",
                                           "{\"name\": \"f\"",
                                           "{",
                                           "}",
                                           "[",
                                           "]",
                                           "\"",
                                           ", \"arguments\": {\"a\": \"",
                                           "\"parameters\":",
                                           "f.call(",
                                           "a=\"",
                                           "\n",
                                           " ",
                                           ";",
                                           ",",
                                           "text",
                                           "<",
                                           "<tool_",
                                           "\\",
                                           "{\"name\":\"f\",\"arguments\":{}}",
                                           "é",
                                           "0",
                                           ":",
                                           ")"};
  std::mt19937 random(18);
  for (int round = 0; round < 3000; ++round) {
    std::string reply;
    for (std::size_t i = 0, count = random() % 14; i < count; ++i) {
      reply += pieces[random() % pieces.size()];
    }
    for (const ToolFormat format : {ToolFormat::qwen25, ToolFormat::llama31}) {
      const std::string whole = shown(read_cut(format, reply, {}));
      std::vector<std::size_t> bytes, some;
      for (std::size_t i = 1; i < reply.size(); ++i) bytes.push_back(i);
      for (std::size_t at = 0; at < reply.size(); at += 1 + random() % 9) some.push_back(at);
      ASSERT_EQ(shown(read_cut(format, reply, bytes)), whole) << reply;
      ASSERT_EQ(shown(read_cut(format, reply, some)), whole) << reply;
    }
  }
}

TEST(ToolReaders, EndlessCallsBecomeText) {
  const std::string head = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"";
  for (const std::string& filler : {std::string(2 << 20, 'x'), std::string(2 << 20, '<')}) {
    ToolReader reader(ToolFormat::qwen25, kNames, "");
    std::string text;
    text += shown(reader.push(head));
    EXPECT_EQ(text, "");
    for (std::size_t at = 0; at < filler.size(); at += 4096) {
      text += shown(reader.push(std::string_view(filler).substr(at, 4096)));
    }
    text += shown(reader.finish());
    EXPECT_EQ(text, head + filler);
  }
}

TEST(ToolReaders, DeepAndOverlappingRepliesEndSoon) {
  std::string deep = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ";
  deep += std::string(100000, '[');
  EXPECT_EQ(shown(read_cut(ToolFormat::qwen25, deep, {})), deep);
  // A call that never ends and has many tags inside: each is read again once.
  std::string overlapping = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"";
  for (int i = 0; i < 20000; ++i) overlapping += "<tool_call>{ ";
  EXPECT_EQ(shown(read_cut(ToolFormat::qwen25, overlapping, {})), overlapping);
}

}  // namespace
}  // namespace lca::server
