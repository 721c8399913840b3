#pragma once
/// The conversations of tests/golden/chat, as their templates write them.

#include <lca/chat.h>

#include <nlohmann/json.hpp>

#include <fstream>
#include <string>
#include <vector>

namespace lca::test {

struct ChatCase {
  std::string name;
  std::vector<ChatMessage> messages;
  std::string text;
};

struct ChatStyleCases {
  std::string name, architecture, begin, end, chat_template;
  ChatFormat format = ChatFormat::plain;
  std::vector<ChatCase> cases;
};

inline ChatMessage::Role role_of(std::string_view name) {
  if (name == "system") return ChatMessage::Role::system;
  return name == "user" ? ChatMessage::Role::user : ChatMessage::Role::assistant;
}

inline std::vector<ChatStyleCases> chat_style_cases() {
  std::ifstream file(LCA_SOURCE_DIR "/tests/golden/chat/expected.json");
  const nlohmann::json all = nlohmann::json::parse(file);
  std::vector<ChatStyleCases> styles;
  for (const nlohmann::json& one : all.at("styles")) {
    ChatStyleCases style;
    style.name = one.at("name");
    style.architecture = one.at("architecture");
    style.begin = one.at("begin");
    style.end = one.at("end");
    style.chat_template = one.at("template");
    style.format = chat_format_parse(one.at("format").get<std::string>());
    for (const nlohmann::json& entry : one.at("cases")) {
      ChatCase sample{.name = entry.at("name"), .messages = {}, .text = entry.at("text")};
      for (const nlohmann::json& turn : entry.at("messages")) {
        sample.messages.push_back({role_of(turn.at(0).get<std::string>()), turn.at(1)});
      }
      style.cases.push_back(std::move(sample));
    }
    styles.push_back(std::move(style));
  }
  return styles;
}

}  // namespace lca::test
