#include "server/tools/tool_grammar.h"

#include "core/error.h"
#include "server/grammar/schema.h"

#include <array>
#include <vector>

namespace lca::server {
namespace {

/// `work`, whose errors name the tool.
template <typename Work>
auto tool_named(const ToolRule::Call& call, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::bad_input) throw;
    fail_input("tool {}: {}", call.name, error.what());
  }
}

Grammar call_grammar(const ToolRule::Call& call) {
  const std::array parts = {Grammar::literal(call.before), Grammar::from_schema(call.arguments),
                            Grammar::literal(call.after)};
  return Grammar::sequence(parts);
}

[[noreturn]] void fail_tools() {
  fail_input("the schemas of the tools are too large together: send fewer tools or simpler ones");
}

}  // namespace

Grammar tool_grammar(const ToolRule& rule) {
  // They become one grammar: what it could not hold is not made first.
  SchemaSize size;
  std::size_t states = 0;
  std::vector<Grammar> calls;
  for (const ToolRule::Call& call : rule.calls) {
    size += tool_named(call, [&] { return schema_size(call.arguments); });
    if (!size.fits(1)) fail_tools();
    calls.push_back(tool_named(call, [&] { return call_grammar(call); }));
    states += calls.back().states() - builtin_program().nodes.size();
    if (states > ProgramBuilder::kMaxNodes) fail_tools();
  }
  const Grammar one = Grammar::choice(calls);
  if (rule.most_calls == 1) return one;
  return Grammar::repeat(one, Grammar::literal(rule.separator), rule.most_calls);
}

}  // namespace lca::server
