#include "engine/generate.h"

#include "core/error.h"
#include "engine/sampler.h"
#include "engine/session_state.h"

namespace lca {

Generated generate(Session& session, const Tokenizer& tokenizer, const GenerateOptions& options,
                   const std::function<bool(std::string_view)>& on_text) {
  if (session.logits().empty()) {
    fail_input("there is nothing to continue: the session has not read a prompt to its end");
  }
  Sampler sampler(options.sampling);
  std::vector<std::int32_t> said;
  if (options.resumed) {
    said.assign(session.tokens().begin() + session.state().prompt_end, session.tokens().end());
  }
  const auto pick = [&] {
    return sampler.pick(session.logits(), session.tokens(), session.length());
  };
  return generate_steps(
      {.pick = pick, .decode = [&](std::int32_t token) { session.decode(token); }, .said = said},
      tokenizer, options, on_text);
}

}  // namespace lca
