// The text side of a Model: its tokenizer, its chat format and the tokens that end a reply.

#include <lca/model.h>

#include <algorithm>

#include "core/error.h"
#include "models/model_state.h"

namespace lca {

const Tokenizer& Model::tokenizer() const {
  return guarded([&]() -> const Tokenizer& {
    std::call_once(state_->tokenizer_opened,
                   [this] { state_->tokenizer = state_->checkpoint.tokenizer(); });
    return *state_->tokenizer;
  });
}

ChatTemplate Model::chat() const {
  return guarded([&] {
    return chat(chat_format_detect(state_->checkpoint.chat_template(), info().architecture));
  });
}

ChatTemplate Model::chat(ChatFormat format) const {
  return guarded(
      [&] { return ChatTemplate(tokenizer(), format, state_->checkpoint.chat_template()); });
}

const std::vector<std::int32_t>& Model::end_tokens() const {
  return guarded([&]() -> const std::vector<std::int32_t>& {
    std::call_once(state_->ends_collected, [this] {
      std::vector<std::int32_t> ends = info().end_tokens;
      try {
        const ChatTemplate format = chat();
        for (const std::int32_t token : format.end_tokens()) {
          if (std::ranges::find(ends, token) == ends.end()) ends.push_back(token);
        }
      } catch (const Error& error) {
        // Without a tokenizer or a known chat format only the checkpoint's own end tokens count.
        if (error.kind() == ErrorKind::out_of_memory || error.kind() == ErrorKind::io) throw;
      }
      state_->end_tokens = std::move(ends);
    });
    return state_->end_tokens;
  });
}

}  // namespace lca
