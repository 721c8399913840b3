// Requests that the real clients sent (drive_clients.py wrote them): all are understood.

#include "server/api/api_support.h"

#include <filesystem>
#include <fstream>
#include <sstream>

namespace lca::server::test {
namespace {

TEST(ParseClients, EveryRequestOfTheRealClientsIsUnderstood) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(LCA_SOURCE_DIR) +
                                                               "/tests/server/api/requests")) {
    std::stringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    const std::string name = entry.path().filename().string();
    SCOPED_TRACE(name);
    try {
      const Json body = json_parse_body(text.str());
      if (name.ends_with("-chat_completions.json")) {
        parse_chat(body);
      } else if (name.ends_with("-completions.json")) {
        parse_completions(body);
      } else if (name.ends_with("-responses.json")) {
        parse_responses(body);
      } else if (name.ends_with("-messages.json")) {
        parse_messages(body);
      } else if (name.ends_with("-messages_count_tokens.json")) {
        parse_count_tokens(body);
      } else {
        ADD_FAILURE() << "a request of no known route";
      }
      ++count;
    } catch (const ApiException& exception) {
      ADD_FAILURE() << exception.what();
    }
  }
  EXPECT_GE(count, 20);
}

}  // namespace
}  // namespace lca::server::test
