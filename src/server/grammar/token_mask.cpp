#include "server/grammar/token_mask.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <utility>

namespace lca::server {

namespace {

constexpr std::size_t kKeptMasks = 256;

std::vector<std::string_view> tokens_of(const Tokenizer& tokenizer) {
  std::vector<std::string_view> made(static_cast<std::size_t>(tokenizer.size()));
  for (std::size_t i = 0; i < made.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    if (!tokenizer.is_special(id)) made[i] = tokenizer.bytes(id);
  }
  return made;
}

void bit_set(TokenBits& bits, std::int32_t id) {
  const auto at = static_cast<std::size_t>(id);
  bits[at / 64] |= std::uint64_t{1} << (at % 64);
}

}  // namespace

/// Walks the tree with the recogniser, one state for each byte of depth.
class TokenMask::Walker {
 public:
  Walker(const Vocabulary& vocabulary, const GrammarState& like)
      : vocabulary_(vocabulary), nowhere_(GrammarState::nowhere(like)) {}

  /// Marks the tokens of the nodes [begin, end), all of them below depth `base`, that fit after
  /// `from`.
  void walk(std::uint32_t begin, std::uint32_t end, std::uint32_t base, std::span<const Place> from,
            TokenBits& bits) {
    const std::vector<Vocabulary::TreeNode>& nodes = vocabulary_.nodes();
    for (std::uint32_t i = begin; i < end;) {
      const Vocabulary::TreeNode& node = nodes[i];
      const std::uint32_t depth = node.depth - base;  // from 1
      while (states_.size() < depth) states_.push_back(nowhere_);
      const std::span<const Place> places =
          depth == 1 ? from : std::span<const Place>(states_[depth - 2].places());
      if (!states_[depth - 1].step(places, node.byte)) {
        i = node.end;
        continue;
      }
      for (const std::int32_t id : vocabulary_.tokens_at(i)) bit_set(bits, id);
      ++i;
    }
  }

 private:
  const Vocabulary& vocabulary_;
  GrammarState nowhere_;
  std::vector<GrammarState> states_;
};

TokenMask::TokenMask(const Tokenizer& tokenizer) : vocabulary_(tokens_of(tokenizer)) {}
TokenMask::TokenMask(std::span<const std::string_view> tokens) : vocabulary_(tokens) {}

TokenMask::StringMask TokenMask::string_mask_make(const Node& start, std::uint32_t left) const {
  StringMask made;
  made.bits.assign((vocabulary_.size() + 63) / 64, 0);
  const auto& table = char_tables().step[start.a];
  const std::vector<Vocabulary::TreeNode>& nodes = vocabulary_.nodes();
  std::vector<std::uint8_t> states(vocabulary_.longest() + 1);
  std::vector<std::uint32_t> lefts(vocabulary_.longest() + 1);
  states[0] = static_cast<std::uint8_t>(start.b);
  lefts[0] = left;
  const std::uint32_t count = vocabulary_.node_count();
  for (std::uint32_t i = 0; i < count;) {
    const Vocabulary::TreeNode& node = nodes[i];
    const CharStep step = table[states[node.depth - 1]][node.byte];
    std::uint32_t rest = lefts[node.depth - 1];
    if (step.kind == CharStep::close) made.exits.push_back(i);
    if (step.kind == CharStep::close || step.kind == CharStep::refuse ||
        (step.kind == CharStep::begin && rest == 0)) {
      i = node.end;
      continue;
    }
    if (step.kind == CharStep::begin && rest != kUnlimited) --rest;
    states[node.depth] = step.next;
    lefts[node.depth] = rest;
    for (const std::int32_t id : vocabulary_.tokens_at(i)) bit_set(made.bits, id);
    ++i;
  }
  return made;
}

std::shared_ptr<const TokenMask::StringMask> TokenMask::string_mask(std::uint32_t node,
                                                                    std::uint32_t left) const {
  if (left >= vocabulary_.longest()) left = kUnlimited;  // no token has more characters
  {
    const std::lock_guard lock(mutex_);
    for (Kept& kept : kept_) {
      if (kept.node == node && kept.left == left) {
        kept.used = ++clock_;
        return kept.mask;
      }
    }
  }
  auto mask =
      std::make_shared<const StringMask>(string_mask_make(builtin_program().nodes[node], left));
  const std::lock_guard lock(mutex_);
  if (kept_.size() >= kKeptMasks) {
    const auto oldest =
        std::min_element(kept_.begin(), kept_.end(),
                         [](const Kept& one, const Kept& other) { return one.used < other.used; });
    kept_.erase(oldest);
  }
  kept_.push_back({node, left, ++clock_, mask});
  return mask;
}

void TokenMask::strings_allowed(const GrammarState& state, std::span<const Place> places,
                                const StringMask& mask, TokenBits& bits, Walker& walker) const {
  const Program& program = state.program();
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] |= mask.bits[i];
  if (mask.exits.empty()) return;
  GrammarState after = GrammarState::nowhere(state);
  if (!after.step_return(places)) return;
  const Place& first = places.front();
  const bool named = program.nodes[first.node].a == kKeyChars && first.value != 0;
  std::string path;
  for (const std::uint32_t exit : mask.exits) {
    if (named) {  // not a name that is taken
      vocabulary_.path(exit, path);
      std::uint32_t name = first.value;
      for (std::size_t i = 0; i + 1 < path.size() && name != 0; ++i) {
        name = program.name_next(name, static_cast<std::uint8_t>(path[i]));
      }
      if (program.names[name].whole) continue;
    }
    for (const std::int32_t id : vocabulary_.tokens_at(exit)) bit_set(bits, id);
    const Vocabulary::TreeNode& node = vocabulary_.nodes()[exit];
    walker.walk(exit + 1, node.end, node.depth, after.places(), bits);
  }
}

void TokenMask::allowed(const GrammarState& state, TokenBits& bits) const {
  struct Group {
    std::shared_ptr<const StringMask> mask;
    std::vector<Place> places;
  };
  bits.assign((vocabulary_.size() + 63) / 64, 0);
  std::vector<Place> others;
  std::vector<Group> groups;
  for (const Place& place : state.places()) {
    const Node& node = state.program().nodes[place.node];
    if (node.op != Op::chars) {
      others.push_back(place);
      continue;
    }
    const bool key = node.a == kKeyChars;
    auto mask = string_mask(place.node, key ? kUnlimited : place.value);
    const bool alone = key && place.value != 0;
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
      return !alone && group.mask == mask && (!key || group.places.front().value == 0);
    });
    if (same != groups.end()) {
      same->places.push_back(place);
    } else {
      groups.push_back({std::move(mask), {place}});
    }
  }
  Walker walker(vocabulary_, state);
  for (const Group& group : groups) strings_allowed(state, group.places, *group.mask, bits, walker);
  if (!others.empty()) walker.walk(0, vocabulary_.node_count(), 0, others, bits);
}

std::size_t TokenMask::apply(const GrammarState& state, std::span<float> logits,
                             std::span<const std::int32_t> end_tokens) const {
  TokenBits bits;
  allowed(state, bits);
  bits.resize(std::max(bits.size(), (logits.size() + 63) / 64), 0);
  for (const std::int32_t id : end_tokens) {
    if (id < 0 || static_cast<std::size_t>(id) >= logits.size()) continue;
    const auto at = static_cast<std::size_t>(id);
    const std::uint64_t bit = std::uint64_t{1} << (at % 64);
    bits[at / 64] = state.may_end() ? bits[at / 64] | bit : bits[at / 64] & ~bit;
  }
  constexpr float refused = -std::numeric_limits<float>::infinity();
  std::size_t left = 0;
  for (std::size_t word = 0; word * 64 < logits.size(); ++word) {
    const std::span<float> part =
        logits.subspan(word * 64, std::min<std::size_t>(64, logits.size() - word * 64));
    const std::uint64_t all =
        part.size() == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << part.size()) - 1;
    const std::uint64_t set = bits[word] & all;
    left += static_cast<std::size_t>(std::popcount(set));
    if (set == all) continue;
    if (set == 0) {
      std::fill(part.begin(), part.end(), refused);
      continue;
    }
    for (std::size_t i = 0; i < part.size(); ++i) {
      if ((set >> i & 1U) == 0) part[i] = refused;
    }
  }
  return left;
}

}  // namespace lca::server
