#pragma once
/// Cutting a text into the words that BPE then works on one by one.

#include "formats/tokenizer/regex.h"

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace lca {

/// A stretch of text that is being cut into words.
struct Piece {
  std::string_view text;
  bool is_first = false;  ///< begins where the whole text begins
};

/// What a Split does with its matches.
enum class SplitBehaviour {
  isolated,              ///< pieces of their own
  removed,               ///< left out
  merged_with_previous,  ///< the end of the piece before
  merged_with_next,      ///< the beginning of the next piece
  contiguous,            ///< neighbouring matches are one piece
};

struct SplitStep {
  Regex pattern;
  SplitBehaviour behaviour = SplitBehaviour::isolated;
  bool is_inverted = false;
};

/// Cuts out numbers, digit by digit or in runs.
struct DigitsStep {
  bool is_individual = false;
};

/// Spells the bytes in the byte-level alphabet, after splitting by GPT-2's expression.
struct ByteLevelStep {
  bool adds_prefix_space = false;
  bool splits = true;
};

/// Turns spaces into a visible character and cuts before each.
struct MetaspaceStep {
  enum class Prepend { always, first, never };
  std::string replacement;
  Prepend prepend = Prepend::always;
  bool splits = true;
};

using PreTokenizeStep = std::variant<SplitStep, DigitsStep, ByteLevelStep, MetaspaceStep>;

/// How pieces are cut: all steps one after the other.
struct PieceCut {
  std::span<const PreTokenizeStep> steps;
  bool spells = true;  ///< false: a ByteLevelStep at the end leaves the bytes, to be spelled later
  RegexBudget& budget;
};

/// Calls `word` for the words of a piece from left to right. A word's text is there for the call
/// alone: no list of all of them is made, since there may be as many as bytes.
void words_each(const Piece& piece, const PieceCut& cut,
                const std::function<void(std::string_view)>& word);

}  // namespace lca
