#pragma once
/// Conversations as they are kept beside a session and told to clients.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/types.h"

namespace lca::server {

/// `{"role","content"}`, with `tool_calls` or `tool_call_id` where there are any.
Json message_json(const Message& message);
/// `{"messages": […]}`: those of a job and its reply; null where the job has no messages. A reply
/// that continues the last message is part of it.
Json conversation_json(const Job& job, Message reply);
/// The first `count` messages.
Json conversation_first(Json conversation, std::int64_t count);
/// How many of the `turns` a session holds are behind its first 0, 1, 2, … messages. A template
/// writes `added` turns of its own where no message of the system comes first, and may join results
/// of tools into one turn. Without messages (null) each turn counts as one.
std::vector<std::int64_t> message_turns(const Json& conversation, std::int64_t added,
                                        std::int64_t turns);
/// The text of a file; what is no UTF-8 in it is replaced.
std::string conversation_text(const Json& conversation);
/// Null where `text` is no conversation.
Json conversation_read(std::string_view text);

}  // namespace lca::server
