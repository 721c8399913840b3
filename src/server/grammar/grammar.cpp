#include "server/grammar/grammar.h"

#include "core/error.h"

#include <initializer_list>
#include <utility>

namespace lca::server {

Grammar::Grammar(Program program) : program_(std::make_shared<const Program>(std::move(program))) {}

GrammarState Grammar::start() const { return GrammarState(*this); }

Grammar Grammar::json_object() {
  ProgramBuilder builder;
  const std::uint32_t start = builder.begin(builder.base.object);
  return Grammar(builder.finish(start));
}

Grammar Grammar::json_value() {
  ProgramBuilder builder;
  const std::uint32_t start = builder.begin(builder.base.any);
  return Grammar(builder.finish(start));
}

Grammar Grammar::literal(std::string_view text) {
  if (text.empty()) fail_input("a grammar's literal is empty: leave it out");
  ProgramBuilder builder;
  const std::uint32_t start = builder.text(text, builder.base.ret);
  return Grammar(builder.finish(start));
}

Grammar Grammar::sequence(std::span<const Grammar> parts) {
  if (parts.empty()) fail_input("a grammar's sequence has no parts: give one at least");
  ProgramBuilder builder;
  std::uint32_t start = builder.base.ret;
  for (std::size_t i = parts.size(); i-- > 0;) {
    start = builder.call(builder.append(parts[i].program()), start);
  }
  return Grammar(builder.finish(start));
}

Grammar Grammar::choice(std::span<const Grammar> parts) {
  if (parts.empty()) fail_input("a grammar's choice has no parts: give one at least");
  ProgramBuilder builder;
  std::vector<std::uint32_t> starts;
  starts.reserve(parts.size());
  for (const Grammar& part : parts) starts.push_back(builder.append(part.program()));
  const std::uint32_t start = builder.split(starts);
  return Grammar(builder.finish(start));
}

Grammar Grammar::repeat(const Grammar& item, const Grammar& separator, std::uint32_t most) {
  if (most == 0) fail_input("a grammar's repetition of at most 0 is empty: leave it out");
  ProgramBuilder builder;
  const std::uint32_t after = builder.reserve();
  const std::uint32_t value = builder.call(builder.append(item.program()), after);
  const std::uint32_t between = builder.call(builder.append(separator.program()), value);
  const std::uint32_t saturated = most == kUnlimited ? 0 : most;
  const std::uint32_t more = builder.node(Op::item, most, saturated, between);
  builder.define_split(after, std::initializer_list<std::uint32_t>{builder.base.ret, more});
  const std::uint32_t first = builder.node(Op::item, most, saturated, value);
  const std::uint32_t start = builder.node(Op::set, 0, 0, first);
  return Grammar(builder.finish(start));
}

}  // namespace lca::server
