#pragma once
/// Conversations as token ids, in the layout each family of models was trained on.

#include <lca/tokenizer.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lca {

/// The layout of a conversation.
enum class ChatFormat : std::uint8_t {
  chatml,
  deepseek,
  deepseek_r1,
  llama2,
  llama3,
  minicpm,
  plain  ///< no turns: the text as it is, for base models
};

/// "chatml", "deepseek", "deepseek-r1", "llama2", "llama3", "minicpm", "plain".
std::string_view chat_format_name(ChatFormat format);
const std::vector<std::string_view>& chat_format_names();
/// Throws Error (bad input) that lists the names.
ChatFormat chat_format_parse(std::string_view name);

/// The format a checkpoint's chat template (Jinja) writes, recognised without running it. An empty
/// template means `plain`; one of an unknown kind throws Error (incompatible) that lists the
/// formats. `architecture` ("minicpm3", …) settles what looks alike.
ChatFormat chat_format_detect(std::string_view chat_template, std::string_view architecture);

/// One message of a conversation.
struct ChatMessage {
  enum class Role : std::uint8_t { system, user, assistant };
  Role role = Role::user;
  std::string text;
};

/// Writes conversations as a checkpoint's own template does. Special tokens come from the format
/// alone; what a message spells is never one, so that a document cannot end a turn. Immutable and
/// thread-safe; copies are cheap.
class ChatTemplate {
 public:
  /// Shares the tokenizer's tables. What the template adds by itself (a default system message,
  /// say) is taken from its text; an empty text adds nothing. Throws Error (incompatible) where the
  /// tokenizer lacks the tokens of the format.
  ChatTemplate(const Tokenizer& tokenizer, ChatFormat format, std::string_view text = {});

  ChatFormat format() const;
  /// Ids of the whole conversation up to where the assistant replies; no message throws Error.
  std::vector<std::int32_t> prompt(std::span<const ChatMessage> messages) const;
  /// The same where the last message is the assistant's and not over: the ids end with its text, as
  /// it was generated, and the reply goes on there. Throws Error where it is no assistant's or no
  /// other message comes before it.
  std::vector<std::int32_t> prompt_open(std::span<const ChatMessage> messages) const;
  /// Ids that take a session from the end of the assistant's reply through the user's next message
  /// to where the assistant replies again. `ended`: the session has taken the reply's end token.
  /// Past thinking stays in the session, while `prompt` would drop it.
  std::vector<std::int32_t> next_turn(std::string_view user, bool ended) const;
  /// Tokens that end a reply, beside the checkpoint's own.
  const std::vector<std::int32_t>& end_tokens() const;
  /// What a reply begins with and its text does not: " " or nothing. Leave it out when the reply is
  /// shown or sent back in a message.
  std::string_view reply_lead() const;
  /// Whether replies begin inside <think>, which the prompt has opened.
  bool thinks() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace lca
