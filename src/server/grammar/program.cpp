#include "server/grammar/program.h"

#include "core/error.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <queue>

namespace lca::server {

ProgramBuilder::ProgramBuilder() : base(builtins()), program_(builtin_program()) {}

std::uint32_t ProgramBuilder::reserve() {
  if (program_.nodes.size() >= kMaxNodes) {
    fail_input("the schema is too large: it needs more than {} states; use fewer or shorter values",
               kMaxNodes);
  }
  program_.nodes.emplace_back();
  return size() - 1;
}

void ProgramBuilder::define_split(std::uint32_t node, std::span<const std::uint32_t> targets) {
  Node& made = program_.nodes[node];
  made.op = Op::split;
  made.a = static_cast<std::uint32_t>(program_.targets.size());
  made.b = static_cast<std::uint32_t>(targets.size());
  program_.targets.insert(program_.targets.end(), targets.begin(), targets.end());
}

void ProgramBuilder::define_bytes(std::uint32_t node, std::span<const Edge> edges) {
  Node& made = program_.nodes[node];
  made.op = Op::bytes;
  made.a = static_cast<std::uint32_t>(program_.edges.size());
  made.b = static_cast<std::uint32_t>(edges.size());
  program_.edges.insert(program_.edges.end(), edges.begin(), edges.end());
}

std::uint32_t ProgramBuilder::bytes(std::span<const Edge> edges) {
  const std::uint32_t made = reserve();
  define_bytes(made, edges);
  return made;
}

std::uint32_t ProgramBuilder::byte(char value, std::uint32_t next) {
  const auto code = static_cast<std::uint8_t>(value);
  const Edge edge{code, code, next};
  return bytes({&edge, 1});
}

std::uint32_t ProgramBuilder::text(std::string_view text, std::uint32_t next) {
  for (std::size_t i = text.size(); i-- > 0;) next = byte(text[i], next);
  return next;
}

std::uint32_t ProgramBuilder::split(std::span<const std::uint32_t> targets) {
  const std::uint32_t made = reserve();
  define_split(made, targets);
  return made;
}

std::uint32_t ProgramBuilder::split(std::initializer_list<std::uint32_t> targets) {
  return split(std::span<const std::uint32_t>(targets.begin(), targets.size()));
}

std::uint32_t ProgramBuilder::node(Op op, std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  const std::uint32_t made = reserve();
  program_.nodes[made] = {op, a, b, c, kNever};
  return made;
}

std::uint32_t ProgramBuilder::begin(std::uint32_t next) { return split({next, byte(' ', next)}); }

std::uint32_t ProgramBuilder::maybe_space(std::uint32_t next) {
  return split({next, call(base.space, next)});
}

std::uint32_t ProgramBuilder::string(std::uint32_t max_length) {
  return byte('"', node(Op::set, max_length, 0, base.chars[kValueChars]));
}

std::uint32_t ProgramBuilder::array(std::uint32_t item, std::uint32_t min, std::uint32_t max) {
  const std::uint32_t close = byte(']', base.ret);
  const std::uint32_t end = maybe_space(close);
  if (max == 0) return byte('[', end);
  const std::uint32_t after = reserve();
  const std::uint32_t saturated = max == kUnlimited ? min : max;
  const std::uint32_t value = call(item, after);
  // Counted before the comma, so that none is written where no item may follow.
  const std::uint32_t more = node(Op::item, max, saturated, byte(',', maybe_space(value)));
  define_split(after, std::initializer_list<std::uint32_t>{node(Op::enough, min, 0, end), more});
  const std::uint32_t first = maybe_space(node(Op::item, max, saturated, value));
  const std::uint32_t inside = min == 0 ? split({end, first}) : first;
  return byte('[', node(Op::set, 0, 0, inside));
}

std::uint32_t ProgramBuilder::any_property(std::uint32_t value, std::uint32_t names,
                                           std::uint32_t next) {
  const std::uint32_t colon = byte(':', maybe_space(call(value, next)));
  return byte('"', call(base.chars[kKeyChars], colon, names));
}

std::uint32_t ProgramBuilder::object_of(std::uint32_t value) {
  const std::uint32_t end = maybe_space(byte('}', base.ret));
  const std::uint32_t after = reserve();
  const std::uint32_t property = maybe_space(any_property(value, 0, after));
  define_split(after, std::initializer_list<std::uint32_t>{end, byte(',', property)});
  return byte('{', split({end, property}));
}

std::uint32_t ProgramBuilder::names(std::span<const std::string_view> canonical) {
  if (canonical.empty()) return 0;
  const auto root = static_cast<std::uint32_t>(program_.names.size());
  program_.names.emplace_back();
  for (const std::string_view name : canonical) {
    std::uint32_t at = root;
    for (const char letter : name) {
      const auto code = static_cast<std::uint8_t>(letter);
      std::uint32_t next = program_.name_next(at, code);
      if (next == 0) {
        next = static_cast<std::uint32_t>(program_.names.size());
        if (next >= kMaxNodes) fail_input("the schema is too large: shorten its property names");
        program_.names.emplace_back();
        program_.names[at].next.emplace_back(code, next);
      }
      at = next;
    }
    program_.names[at].whole = true;
  }
  return root;
}

std::uint32_t ProgramBuilder::append(const Program& other) {
  // Both begin with the builtins: their nodes are shared, all others move.
  const Program& shared = builtin_program();
  const auto first = static_cast<std::uint32_t>(shared.nodes.size());
  const std::uint32_t nodes = size() - first;
  const auto edges = static_cast<std::uint32_t>(program_.edges.size() - shared.edges.size());
  const auto targets = static_cast<std::uint32_t>(program_.targets.size() - shared.targets.size());
  const auto names = static_cast<std::uint32_t>(program_.names.size() - shared.names.size());
  const auto moved = [&](std::uint32_t node) { return node < first ? node : node + nodes; };
  if (program_.nodes.size() + other.nodes.size() - first > kMaxNodes) {
    fail_input("the grammar is too large: it needs more than {} states", kMaxNodes);
  }
  for (std::size_t i = first; i < other.nodes.size(); ++i) {
    Node made = other.nodes[i];
    if (made.op == Op::bytes) {
      made.a += edges;
    } else if (made.op == Op::split) {
      made.a += targets;
    } else if (made.op == Op::call) {
      if (made.a >= base.chars[kKeyChars] && made.a < base.chars[kKeyChars] + kCharStates &&
          made.b != 0) {
        made.b += names;
      }
      made.a = moved(made.a);
    }
    made.c = moved(made.c);
    program_.nodes.push_back(made);
  }
  for (std::size_t i = shared.edges.size(); i < other.edges.size(); ++i) {
    Edge edge = other.edges[i];
    edge.next = moved(edge.next);
    program_.edges.push_back(edge);
  }
  for (std::size_t i = shared.targets.size(); i < other.targets.size(); ++i) {
    program_.targets.push_back(moved(other.targets[i]));
  }
  for (std::size_t i = shared.names.size(); i < other.names.size(); ++i) {
    NamePrefix prefix = other.names[i];
    for (auto& [byte, next] : prefix.next) next += names;
    program_.names.push_back(std::move(prefix));
  }
  return moved(other.start);
}

namespace {

/// Calls `visit` for every node that `node` leads to without or with a byte.
template <typename Visit>
void successors_visit(const Program& program, std::uint32_t index, const Visit& visit) {
  const Node& node = program.nodes[index];
  switch (node.op) {
    case Op::bytes:
      for (std::uint32_t i = 0; i < node.b; ++i) visit(program.edges[node.a + i].next);
      break;
    case Op::split:
      for (std::uint32_t i = 0; i < node.b; ++i) visit(program.targets[node.a + i]);
      break;
    case Op::call:
      visit(node.a);
      visit(node.c);
      break;
    case Op::set:
    case Op::item:
    case Op::enough:
      visit(node.c);
      break;
    case Op::chars:
    case Op::ret:
      break;
  }
}

/// The least number of calls on a way to the return, for all nodes, smallest first (Knuth's form of
/// Dijkstra's algorithm: a call needs the worse of its two ways, everything else the better one).
void heights_compute(Program& program) {
  const std::size_t count = program.nodes.size();
  std::vector<std::uint32_t> begin(count + 1, 0);
  for (std::uint32_t i = 0; i < count; ++i) {
    successors_visit(program, i, [&](std::uint32_t next) { ++begin[next + 1]; });
  }
  for (std::size_t i = 0; i < count; ++i) begin[i + 1] += begin[i];
  std::vector<std::uint32_t> before(begin[count]);
  std::vector<std::uint32_t> fill(begin.begin(), begin.end() - 1);
  for (std::uint32_t i = 0; i < count; ++i) {
    successors_visit(program, i, [&](std::uint32_t next) { before[fill[next]++] = i; });
  }
  using Entry = std::pair<std::uint32_t, std::uint32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  for (std::uint32_t i = 0; i < count; ++i) {
    Node& node = program.nodes[i];
    node.height = kNever;
    if (node.op == Op::ret || node.op == Op::chars) queue.emplace(0, i);
  }
  while (!queue.empty()) {
    const auto [height, index] = queue.top();
    queue.pop();
    if (program.nodes[index].height != kNever) continue;
    program.nodes[index].height = height;
    for (std::uint32_t k = begin[index]; k < begin[index + 1]; ++k) {
      const Node& from = program.nodes[before[k]];
      if (from.height != kNever) continue;
      std::uint32_t value = height;
      if (from.op == Op::call) {
        const std::uint32_t callee = program.nodes[from.a].height;
        const std::uint32_t next = program.nodes[from.c].height;
        if (callee == kNever || next == kNever) continue;
        value = std::max(callee + 1, next);
      }
      queue.emplace(value, before[k]);
    }
  }
}

}  // namespace

Program ProgramBuilder::finish(std::uint32_t start) {
  program_.start = start;
  heights_compute(program_);
  return std::move(program_);
}

}  // namespace lca::server
