// The recogniser: all places a text can have come to, one byte further.

#include "server/grammar/grammar.h"

#include <cstddef>
#include <optional>
#include <utility>

namespace lca::server {

namespace {

/// Places, each once, numbered in the order they came. The activations they name outlive the set:
/// the walk's caller or the walk holds them.
class PlaceSet {
 public:
  struct Entry {
    std::uint32_t node;
    std::uint32_t value;
    const Activation* activation;
    bool operator==(const Entry&) const = default;
  };

  std::size_t size() const { return entries_.size(); }

  bool insert(const Place& place) {
    const std::size_t before = size();
    return number({place.node, place.value, place.activation.get()}) == before;
  }

  /// The entry's number; it is added if it is new.
  std::size_t number(const Entry& entry) {
    constexpr std::size_t few = 12;  // as there almost always are: compared one by one
    if (entries_.size() < few) {
      for (std::size_t i = 0; i < entries_.size(); ++i) {
        if (entries_[i] == entry) return i;
      }
      entries_.push_back(entry);
      return entries_.size() - 1;
    }
    if (table_.size() < 2 * (entries_.size() + 1)) grow();
    std::uint32_t& slot = find(entry);
    if (slot == 0) {
      entries_.push_back(entry);
      slot = static_cast<std::uint32_t>(entries_.size());
    }
    return slot - 1;
  }

 private:
  /// The slot that holds the entry's number, or the free one where it belongs.
  std::uint32_t& find(const Entry& entry) {
    std::uint64_t hash = entry.node * 0x9e3779b97f4a7c15ULL;
    hash ^= (entry.value + 0x7f4a7c15ULL) * 0xc2b2ae3d27d4eb4fULL;
    hash ^= reinterpret_cast<std::uintptr_t>(entry.activation) * 0x165667b19e3779f9ULL;
    std::size_t at = (hash >> 32U) & (table_.size() - 1);
    while (table_[at] != 0 && !(entries_[table_[at] - 1] == entry)) {
      at = (at + 1) & (table_.size() - 1);
    }
    return table_[at];
  }

  void grow() {
    table_.assign(table_.empty() ? 512 : 4 * table_.size(), 0);
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      find(entries_[i]) = static_cast<std::uint32_t>(i + 1);
    }
  }

  std::vector<Entry> entries_;
  std::vector<std::uint32_t> table_;  // a power of two; number of an entry from 1, or 0
};

}  // namespace

/// Follows the nodes that read nothing, from the targets of one byte.
class GrammarState::Walk {
 public:
  Walk(const Walk&) = delete;
  Walk& operator=(const Walk&) = delete;
  explicit Walk(GrammarState& out) : out_(out), program_(*out.program_) {
    out.places_.clear();
    out.ends_ = false;
  }

  void add(std::uint32_t node, std::uint32_t value, const ActivationPtr& activation) {
    const std::uint32_t depth = activation ? activation->depth : 0;
    const std::uint32_t height = program_.nodes[node].height;
    if (height == kNever || depth + height > kMaxCalls) return;
    if (is_reading(node)) {
      Place place{node, value, activation};
      if (seen_.insert(place)) out_.places_.push_back(std::move(place));
      return;
    }
    open_.push_back({node, value, activation});
  }

  void run() {
    while (!open_.empty()) {
      const Place place = std::move(open_.back());
      open_.pop_back();
      if (seen_.insert(place)) follow(place);
    }
  }

 private:
  bool is_reading(std::uint32_t node) const {
    const Op op = program_.nodes[node].op;
    return op == Op::bytes || op == Op::chars;
  }

  void follow(const Place& place) {
    const Node& node = program_.nodes[place.node];
    switch (node.op) {
      case Op::split:
        for (std::uint32_t i = 0; i < node.b; ++i) {
          add(program_.targets[node.a + i], place.value, place.activation);
        }
        break;
      case Op::call:
        call(node, place);
        break;
      case Op::set:
        add(node.c, node.a, place.activation);
        break;
      case Op::item:
        if (place.value < node.a) {
          add(node.c, place.value < node.b ? place.value + 1 : place.value, place.activation);
        }
        break;
      case Op::enough:
        if (place.value >= node.a) add(node.c, place.value, place.activation);
        break;
      case Op::ret:
        if (!place.activation) {
          out_.ends_ = true;
        } else {
          for (const Place& caller : place.activation->callers) {
            add(caller.node, caller.value, caller.activation);
          }
        }
        break;
      case Op::bytes:
      case Op::chars:
        break;
    }
  }

  /// Calls of the same callee at the same byte share one activation.
  void call(const Node& node, const Place& from) {
    const Place caller{node.c, from.value, from.activation};
    const std::size_t number = called_.number({node.a, node.b, nullptr});
    if (number < calls_.size()) {
      calls_[number]->callers.push_back(caller);
      return;
    }
    const auto made = calls_.emplace_back(std::make_shared<Activation>());
    made->callers.push_back(caller);
    made->depth = (from.activation ? from.activation->depth : 0) + 1;
    add(node.a, node.b, made);
  }

  GrammarState& out_;
  const Program& program_;
  std::vector<Place> open_;
  PlaceSet seen_;
  PlaceSet called_;                                 // callees and their registers
  std::vector<std::shared_ptr<Activation>> calls_;  // of these
};

GrammarState::GrammarState(const Grammar& grammar) : program_(grammar.program_) {
  Walk walk(*this);
  walk.add(program_->start, 0, nullptr);
  walk.run();
}

GrammarState GrammarState::nowhere(const GrammarState& like) { return GrammarState(like.program_); }

bool GrammarState::step(const GrammarState& from, std::uint8_t byte) {
  return step(from.places_, byte);
}

bool GrammarState::step(std::span<const Place> from, std::uint8_t byte) {
  const Program& program = *program_;
  const CharTables& tables = char_tables();
  places_.clear();
  ends_ = false;
  // Most bytes fit nowhere, and most others at one place: the walk begins with the second target.
  Place only;
  bool one = false;
  std::optional<Walk> walk;
  const auto add = [&](std::uint32_t node, std::uint32_t value, const ActivationPtr& activation) {
    if (!one) {
      one = true;
      only = {node, value, activation};
      return;
    }
    if (!walk) walk.emplace(*this).add(only.node, only.value, only.activation);
    walk->add(node, value, activation);
  };
  for (const Place& place : from) {
    const Node& node = program.nodes[place.node];
    if (node.op == Op::bytes) {
      for (std::uint32_t i = 0; i < node.b; ++i) {
        const Edge& edge = program.edges[node.a + i];
        if (byte >= edge.first && byte <= edge.last) add(edge.next, place.value, place.activation);
      }
      continue;
    }
    const CharStep step = tables.step[node.a][node.b][byte];
    std::uint32_t value = place.value;
    if (step.kind == CharStep::refuse) continue;
    if (step.kind == CharStep::close) {
      if (node.a == kKeyChars && program.names[value].whole) continue;
      add(builtins().ret, 0, place.activation);
      continue;
    }
    if (node.a == kKeyChars) {
      if (value != 0) value = program.name_next(value, byte);
    } else if (step.kind == CharStep::begin && value != kUnlimited) {
      if (value == 0) continue;
      --value;
    }
    add(builtins().chars[node.a] + step.next, value, place.activation);
  }
  if (!one) return false;
  if (!walk) walk.emplace(*this).add(only.node, only.value, only.activation);
  walk->run();
  return ends_ || !places_.empty();
}

bool GrammarState::step_return(std::span<const Place> from) {
  Walk walk(*this);
  for (const Place& place : from) walk.add(builtins().ret, 0, place.activation);
  walk.run();
  return ends_ || !places_.empty();
}

bool GrammarState::advance(std::string_view bytes) {
  GrammarState at = *this;
  GrammarState next = nowhere(*this);
  for (const char letter : bytes) {
    if (!next.step(at, static_cast<std::uint8_t>(letter))) return false;
    std::swap(at, next);
  }
  *this = std::move(at);
  return true;
}

}  // namespace lca::server
