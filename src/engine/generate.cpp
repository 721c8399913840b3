#include "engine/generate.h"

#include "core/error.h"
#include "engine/sampler.h"

namespace lca {

Generated generate(Session& session, const Tokenizer& tokenizer, const GenerateOptions& options,
                   const std::function<bool(std::string_view)>& on_text) {
  if (session.logits().empty()) {
    fail_input("there is nothing to continue: the session has not read a prompt");
  }
  Sampler sampler(options.sampling);
  return generate_steps({.pick = [&] { return sampler.pick(session.logits(), session.tokens()); },
                         .decode = [&](std::int32_t token) { session.decode(token); }},
                        tokenizer, options, on_text);
}

}  // namespace lca
