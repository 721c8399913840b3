#include "formats/tokenizer/pre_tokenize.h"

#include "formats/tokenizer/byte_level.h"
#include "formats/tokenizer/utf8.h"

#include <algorithm>

namespace lca {
namespace {

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

const Regex& gpt2_regex() {
  static const Regex regex(kGpt2Pattern, "the expression of byte-level BPE");
  return regex;
}

/// A stretch of a piece that matches a pattern, or lies between matches.
struct Stretch {
  std::size_t begin = 0, end = 0;
  bool is_match = false;
};

/// All of a text as stretches, given a function that calls back for each match.
template <typename EachMatch>
std::vector<Stretch> stretches_of(std::string_view text, EachMatch each_match) {
  std::vector<Stretch> stretches;
  std::size_t done = 0;
  each_match([&](std::size_t begin, std::size_t end) {
    if (begin > done) stretches.push_back({done, begin, false});
    stretches.push_back({begin, end, true});
    done = end;
  });
  if (done < text.size()) stretches.push_back({done, text.size(), false});
  return stretches;
}

/// Joins each match to its neighbour: the one before, seen in the order of the list.
void merge_with_neighbour(std::vector<Stretch>& stretches) {
  std::vector<Stretch> merged;
  bool previous_matches = false;
  for (const Stretch& stretch : stretches) {
    if (stretch.is_match && !previous_matches && !merged.empty()) {
      merged.back().begin = std::min(merged.back().begin, stretch.begin);
      merged.back().end = std::max(merged.back().end, stretch.end);
    } else {
      merged.push_back(stretch);
    }
    previous_matches = stretch.is_match;
  }
  stretches = std::move(merged);
}

void join_equals(std::vector<Stretch>& stretches) {
  std::vector<Stretch> joined;
  for (const Stretch& stretch : stretches) {
    if (!joined.empty() && joined.back().is_match == stretch.is_match) {
      joined.back().end = stretch.end;
    } else {
      joined.push_back(stretch);
    }
  }
  stretches = std::move(joined);
}

/// Adds to `to` what becomes of `piece`.
void stretches_take(std::vector<Piece>& to, const Piece& piece, std::vector<Stretch>& stretches,
                    SplitBehaviour behaviour) {
  switch (behaviour) {
    case SplitBehaviour::isolated:
      break;
    case SplitBehaviour::removed:
      std::erase_if(stretches, [](const Stretch& stretch) { return stretch.is_match; });
      break;
    case SplitBehaviour::contiguous:
      join_equals(stretches);
      break;
    case SplitBehaviour::merged_with_previous:
      merge_with_neighbour(stretches);
      break;
    case SplitBehaviour::merged_with_next:
      std::ranges::reverse(stretches);
      merge_with_neighbour(stretches);
      std::ranges::reverse(stretches);
      break;
  }
  for (const Stretch& stretch : stretches) {
    if (stretch.begin == stretch.end) continue;
    to.push_back({piece.text.substr(stretch.begin, stretch.end - stretch.begin),
                  piece.is_first && stretch.begin == 0});
  }
}

void regex_isolate(std::vector<Piece>& to, const Piece& piece, const Regex& regex,
                   RegexBudget& budget) {
  auto stretches =
      stretches_of(piece.text, [&](auto visit) { regex.each(piece.text, budget, visit); });
  stretches_take(to, piece, stretches, SplitBehaviour::isolated);
}

struct Splitter {
  std::vector<Piece>& to;
  std::deque<std::string>& storage;
  RegexBudget& budget;
  const Piece& piece;
  bool spells;

  void operator()(const SplitStep& step) const {
    auto stretches =
        stretches_of(piece.text, [&](auto visit) { step.pattern.each(piece.text, budget, visit); });
    if (step.is_inverted) {
      for (Stretch& stretch : stretches) stretch.is_match = !stretch.is_match;
    }
    stretches_take(to, piece, stretches, step.behaviour);
  }

  void operator()(const DigitsStep& step) const {
    auto stretches = stretches_of(piece.text, [&](auto visit) {
      for (std::size_t at = 0; at < piece.text.size();) {
        const Utf8Step character = utf8_step(piece.text.substr(at));
        if (is_numeric(character.code)) visit(at, at + character.bytes);
        at += character.bytes;
      }
    });
    stretches_take(to, piece, stretches,
                   step.is_individual ? SplitBehaviour::isolated : SplitBehaviour::contiguous);
  }

  void operator()(const ByteLevelStep& step) const {
    Piece whole = piece;
    if (step.adds_prefix_space && !piece.text.starts_with(' ')) {
      whole.text = storage.emplace_back(" ").append(piece.text);
    }
    const std::size_t first = to.size();
    if (step.splits) {
      regex_isolate(to, whole, gpt2_regex(), budget);
    } else {
      to.push_back(whole);
    }
    if (!spells) return;
    for (std::size_t i = first; i < to.size(); ++i) {
      std::string& spelled = storage.emplace_back();
      byte_level_spell(spelled, to[i].text);
      to[i].text = spelled;
    }
  }

  void operator()(const MetaspaceStep& step) const {
    std::string& text = storage.emplace_back();
    const bool prepends = step.prepend == MetaspaceStep::Prepend::always ||
                          (step.prepend == MetaspaceStep::Prepend::first && piece.is_first);
    if (prepends && !piece.text.starts_with(' ') && !piece.text.starts_with(step.replacement)) {
      text = step.replacement;
    }
    for (const char c : piece.text) {
      if (c == ' ') {
        text += step.replacement;
      } else {
        text += c;
      }
    }
    const Piece whole{text, piece.is_first};
    if (!step.splits) return to.push_back(whole);
    auto stretches = stretches_of(whole.text, [&](auto visit) {
      std::size_t at = whole.text.find(step.replacement);
      while (at != std::string_view::npos) {
        visit(at, at + step.replacement.size());
        at = whole.text.find(step.replacement, at + step.replacement.size());
      }
    });
    stretches_take(to, whole, stretches, SplitBehaviour::merged_with_next);
  }
};

}  // namespace

void pieces_split(Pieces& pieces, const PreTokenizeStep& step, bool spells) {
  std::vector<Piece> split;
  split.reserve(pieces.list.size());
  for (const Piece& piece : pieces.list) {
    std::visit(Splitter{split, pieces.storage, pieces.budget, piece, spells}, step);
  }
  pieces.list = std::move(split);
}

}  // namespace lca
