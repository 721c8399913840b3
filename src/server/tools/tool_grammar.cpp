#include "server/tools/tool_grammar.h"

#include "core/error.h"

#include <array>
#include <vector>

namespace lca::server {
namespace {

Grammar call_grammar(const ToolRule::Call& call) {
  try {
    const std::array parts = {Grammar::literal(call.before), Grammar::from_schema(call.arguments),
                              Grammar::literal(call.after)};
    return Grammar::sequence(parts);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::bad_input) throw;
    fail_input("tool {}: {}", call.name, error.what());
  }
}

}  // namespace

Grammar tool_grammar(const ToolRule& rule) {
  std::vector<Grammar> calls;
  for (const ToolRule::Call& call : rule.calls) calls.push_back(call_grammar(call));
  const Grammar one = Grammar::choice(calls);
  if (rule.most_calls == 1) return one;
  return Grammar::repeat(one, Grammar::literal(rule.separator), rule.most_calls);
}

}  // namespace lca::server
