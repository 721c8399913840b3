// How much of a text a token can stand for, so that a text that is too long is known by its size.

#include "formats/tokenizer/byte_level.h"
#include "formats/tokenizer/state.h"

#include <algorithm>

namespace lca {
namespace {

/// Normal forms make a text shorter where they compose characters or replace one by another:
/// "\u212a" (3 bytes) becomes "K", a mathematical letter (4 bytes) an ordinary one.
constexpr std::size_t kMostNormal = 4;

/// By how much a step may make a text shorter, as a factor; 0: no bound is known.
struct Shorter {
  std::size_t operator()(NormalForm) const { return kMostNormal; }
  std::size_t operator()(const PrependStep&) const { return 1; }
  std::size_t operator()(const ReplaceStep& step) const {
    if (step.literal == 0 || step.text.empty()) return 0;
    return (step.literal + step.text.size() - 1) / step.text.size();
  }
};

bool removes_matches(const PreTokenizeStep& step) {
  const auto* split = std::get_if<SplitStep>(&step);
  return split != nullptr && split->behaviour == SplitBehaviour::removed;
}

/// Whether each character has tokens of its own: otherwise it may be left out, or be one unknown
/// with its neighbours.
bool spells_everything(const Tokenizer::State& state) {
  if (state.model.byte_fallback_whole()) return true;
  if (state.model.has_unknown && !state.model.fuse_unknown) return true;
  const auto is_byte_level = [](const PreTokenizeStep& step) {
    return std::holds_alternative<ByteLevelStep>(step);
  };
  if (std::ranges::none_of(state.pre_tokenize, is_byte_level)) return false;
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelled;
    byte_level_spell(spelled, std::string(1, static_cast<char>(byte)));
    if (state.vocabulary.find(spelled) < 0) return false;
  }
  return true;
}

}  // namespace

std::size_t most_token_bytes(const Tokenizer::State& state) {
  if (!spells_everything(state)) return 0;
  if (std::ranges::any_of(state.pre_tokenize, removes_matches)) return 0;
  std::size_t most = 4;  // a character without a token
  for (std::int64_t id = 0; id < state.size(); ++id) {
    const auto token = static_cast<std::int32_t>(id);
    most = std::max({most, state.bytes_of(token).size(), state.vocabulary.token(token).size()});
  }
  for (const AddedToken& token : state.added) {
    if (token.strips_left || token.strips_right) return 0;
    most = std::max(most, token.text.size());
  }
  for (const NormaliseStep& step : state.normalise) most *= std::visit(Shorter(), step);
  return most;
}

}  // namespace lca
