#pragma once
/// The conversations of tests/golden/tools, as their templates write them.

#include "server/types.h"

#include <lca/chat.h>

#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace lca::test {

struct ToolCase {
  std::string name;
  std::vector<server::ToolSpec> tools;
  std::vector<server::Message> messages;
  std::string text;
};

struct ToolStyleCases {
  std::string name, architecture, begin, end, chat_template;
  ChatFormat format = ChatFormat::plain;
  std::vector<ToolCase> cases;
};

inline ToolCase tool_case(const std::string& name, const server::Json& one) {
  ToolCase made;
  made.name = name;
  for (const server::Json& tool : one.at("tools")) {
    made.tools.push_back({.name = tool.at("name"),
                          .description = tool.at("description"),
                          .parameters = tool.at("parameters")});
  }
  for (const server::Json& message : one.at("messages")) {
    server::Message turn{.role = message.at("role"), .text = message.at("text")};
    turn.tool_call_id = message.value("tool_call_id", "");
    for (const server::Json& call : message.value("calls", server::Json::array())) {
      turn.calls.push_back(
          {.id = call.at("id"), .name = call.at("name"), .arguments = call.at("arguments")});
    }
    made.messages.push_back(std::move(turn));
  }
  return made;
}

inline std::vector<ToolStyleCases> tool_style_cases() {
  std::ifstream file(LCA_SOURCE_DIR "/tests/golden/tools/expected.json");
  const server::Json all = server::Json::parse(file);
  std::vector<ToolStyleCases> styles;
  for (const server::Json& one : all.at("styles")) {
    ToolStyleCases style;
    style.name = one.at("name");
    style.architecture = one.at("architecture");
    style.begin = one.at("begin");
    style.end = one.at("end");
    style.chat_template = one.at("template");
    style.format = chat_format_parse(one.at("format").get<std::string>());
    for (const auto& [name, text] : one.at("texts").items()) {
      style.cases.push_back(tool_case(name, all.at("cases").at(name)));
      style.cases.back().text = text;
    }
    styles.push_back(std::move(style));
  }
  return styles;
}

inline ToolStyleCases tool_style(std::string_view name) {
  for (ToolStyleCases style : tool_style_cases()) {
    if (style.name == name) return style;
  }
  return {};
}

}  // namespace lca::test
