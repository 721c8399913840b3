#include "server/host/conversation.h"

#include <algorithm>
#include <utility>

namespace lca::server {

Json message_json(const Message& message) {
  Json made = {{"role", message.role}, {"content", message.text}};
  if (!message.calls.empty()) {
    Json calls = Json::array();
    for (const ToolCall& call : message.calls) {
      calls.push_back({{"id", call.id},
                       {"type", "function"},
                       {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    }
    made["tool_calls"] = std::move(calls);
  }
  if (!message.tool_call_id.empty()) made["tool_call_id"] = message.tool_call_id;
  return made;
}

Json conversation_json(const Job& job, Message reply) {
  const auto* messages = std::get_if<std::vector<Message>>(&job.prompt);
  if (messages == nullptr) return nullptr;
  std::size_t count = messages->size();
  if (job.continue_last && count > 0) {
    const Message& begun = messages->back();
    reply.text.insert(0, begun.text);
    reply.calls.insert(reply.calls.begin(), begun.calls.begin(), begun.calls.end());
    --count;
  }
  reply.role = "assistant";
  Json list = Json::array();
  for (std::size_t i = 0; i < count; ++i) list.push_back(message_json((*messages)[i]));
  list.push_back(message_json(reply));
  return {{"messages", std::move(list)}};
}

Json conversation_first(Json conversation, std::int64_t count) {
  Json::array_t& list = conversation["messages"].get_ref<Json::array_t&>();
  if (count < std::ssize(list))
    list.resize(static_cast<std::size_t>(std::max<std::int64_t>(0, count)));
  return conversation;
}

std::vector<std::int64_t> message_turns(const Json& conversation, std::int64_t added,
                                        std::int64_t turns) {
  std::vector<std::int64_t> ends;
  if (conversation.is_null()) {
    for (std::int64_t turn = std::min(added, turns); turn <= turns; ++turn) ends.push_back(turn);
    return ends;
  }
  const Json& list = conversation.at("messages");
  const bool has_system = !list.empty() && list[0].at("role") == "system";
  for (const bool joins : {false, true}) {
    std::int64_t turn = has_system ? 0 : added;
    ends.assign(1, turn);
    for (std::size_t i = 0; i < list.size(); ++i) {
      const bool joined =
          joins && i > 0 && list[i].at("role") == "tool" && list[i - 1].at("role") == "tool";
      turn += joined ? 0 : 1;
      ends.push_back(turn);
    }
    if (turn == turns) break;
  }
  return ends;
}

std::string conversation_text(const Json& conversation) {
  return conversation.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json conversation_read(std::string_view text) {
  Json read = Json::parse(text, nullptr, false);
  if (!read.is_object()) return nullptr;
  const auto list = read.find("messages");
  if (list == read.end() || !list->is_array()) return nullptr;
  const auto is_message = [](const Json& message) {
    if (!message.is_object()) return false;
    const auto role = message.find("role");
    const auto content = message.find("content");
    return role != message.end() && role->is_string() && content != message.end() &&
           content->is_string();
  };
  return std::ranges::all_of(*list, is_message) ? read : Json(nullptr);
}

}  // namespace lca::server
