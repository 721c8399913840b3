#include "eval/ruler/score.h"

#include "formats/tokenizer/utf8.h"

#include <utf8proc.h>

#include <algorithm>

namespace lca::eval {
namespace {

std::string text_lower(std::string_view text) {
  std::string lower;
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    if (step.kind == Utf8Step::Kind::good) {
      utf8_append(lower, static_cast<std::uint32_t>(
                             utf8proc_tolower(static_cast<utf8proc_int32_t>(step.code))));
    } else {
      lower += kReplacementCharacter;
    }
    text.remove_prefix(step.bytes);
  }
  return lower;
}

bool is_blank(char c) { return c == ' ' || (c >= '\0' && c < ' '); }

/// Control characters as ends of lines, none at the ends of the text.
std::string reply_clean(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  std::string clean(text);
  std::ranges::replace_if(
      clean, [](char c) { return c >= '\0' && c < ' '; }, '\n');
  return clean;
}

}  // namespace

double ruler_score(std::string_view reply, std::span<const std::string> references,
                   RulerScore score) {
  const std::string text = text_lower(reply_clean(reply));
  const auto hits = std::ranges::count_if(references, [&](const std::string& reference) {
    return text.find(text_lower(reference)) != std::string::npos;
  });
  if (score == RulerScore::part) return hits > 0 ? 1 : 0;
  return references.empty() ? 0
                            : static_cast<double>(hits) / static_cast<double>(references.size());
}

}  // namespace lca::eval
