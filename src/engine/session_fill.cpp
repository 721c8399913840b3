#include "engine/session_fill.h"

#include <utility>

#include "core/error.h"
#include "engine/session_state.h"

namespace lca {

void session_fill(Session& session, std::vector<std::int32_t> tokens, std::uint32_t seed) {
  Session::State& state = session.state();
  if (state.length() > 0) fail_input("only an empty session can be filled");
  state.check(tokens);
  const auto length = static_cast<std::int64_t>(tokens.size());
  state.rope_decide(length);
  state.caches->fill(length, seed);
  state.tokens = std::move(tokens);
  state.prompt_end = length;
  state.logits.clear();
}

}  // namespace lca
