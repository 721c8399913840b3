#pragma once
/// A rule for tool calls as a grammar that the sampler enforces.

#include "server/grammar/grammar.h"
#include "server/tools/tool_rule.h"

namespace lca::server {

/// Throws Error (bad input) that names the tool and what its schema has that cannot be enforced.
Grammar tool_grammar(const ToolRule& rule);

}  // namespace lca::server
