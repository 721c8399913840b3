#pragma once
/// What is done to a text before it is cut into words.

#include "formats/tokenizer/regex.h"

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace lca {

/// One of Unicode's normal forms.
enum class NormalForm { nfc, nfd, nfkc, nfkd };

/// Puts a text in front of every text that is not empty.
struct PrependStep {
  std::string text;
};

/// Replaces every match.
struct ReplaceStep {
  Regex pattern;
  std::string text;
  std::size_t literal = 0;  ///< bytes of each match; 0: not the same for all
};

using NormaliseStep = std::variant<NormalForm, PrependStep, ReplaceStep>;

/// `text`, which is UTF-8, in a normal form.
std::string normal_form(std::string_view text, NormalForm form);
/// `text` with every match replaced; throws Error where it would grow beyond `limit` bytes.
std::string text_replace(std::string_view text, const ReplaceStep& step, std::size_t limit,
                         RegexBudget& budget);
/// The longest that steps of a tokenizer may make a text of `size` bytes.
constexpr std::size_t grown_limit(std::size_t size) { return 65536 + 64 * size; }
/// All steps one after the other.
std::string text_normalise(std::string text, const std::vector<NormaliseStep>& steps,
                           RegexBudget& budget);

}  // namespace lca
