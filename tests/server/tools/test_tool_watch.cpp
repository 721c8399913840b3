// Where a call begins in a reply.

#include "server/tools/tool_watch.h"

#include <gtest/gtest.h>

#include <string>

namespace lca::server {
namespace {

/// "TEXT|WRITTEN" up to where a call begins; "" where none does.
std::string begun(ToolFormat format, std::string_view reply) {
  ToolWatch watch(format);
  for (std::size_t i = 0; i < reply.size(); ++i) {
    if (watch.feed(reply[i])) {
      return std::string(reply.substr(0, i + 1)) + "|" + std::string(watch.written());
    }
  }
  return "";
}

TEST(ToolWatches, NoticeQwensTagAnywhere) {
  EXPECT_EQ(begun(ToolFormat::qwen25, "a <<tool_<tool_call>\n{"),
            "a <<tool_<tool_call>|<tool_call>");
  EXPECT_EQ(begun(ToolFormat::qwen25, "{\"name\": 1} <tool_call"), "");
}

TEST(ToolWatches, NoticeLlamasBraceAtTheBeginningAndItsTagAnywhere) {
  EXPECT_EQ(begun(ToolFormat::llama31, " \n{\"name\""), " \n{|{");
  EXPECT_EQ(begun(ToolFormat::llama31, "[{\"name\""), "[|[");
  EXPECT_EQ(begun(ToolFormat::llama31, "So {\"name\""), "");
  EXPECT_EQ(begun(ToolFormat::llama31, "So <|python_tag|>{"), "So <|python_tag|>|");
}

TEST(ToolWatches, KnowWhenACallIsNear) {
  ToolWatch qwen(ToolFormat::qwen25);
  EXPECT_FALSE(qwen.is_near());
  qwen.feed('<');
  EXPECT_TRUE(qwen.is_near());
  qwen.feed('b');
  EXPECT_FALSE(qwen.is_near());
  ToolWatch llama(ToolFormat::llama31);
  EXPECT_TRUE(llama.is_near());
  llama.feed('S');
  EXPECT_FALSE(llama.is_near());
}

}  // namespace
}  // namespace lca::server
