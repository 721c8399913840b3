#include "formats/tokenizer/normalise.h"

#include "core/error.h"
#include "formats/tokenizer/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>

namespace lca {
namespace {

std::uint8_t combining_class(std::int32_t code) {
  return static_cast<std::uint8_t>(utf8proc_get_property(code)->combining_class);
}

/// Appends what one character decomposes to.
void decompose(std::vector<std::int32_t>& codes, std::int32_t code, utf8proc_option_t options) {
  std::int32_t parts[32];  // the longest is 18
  int last_boundary = 0;
  const auto count = utf8proc_decompose_char(code, parts, 32, options, &last_boundary);
  if (count < 1 || count > 32) {
    codes.push_back(code);
  } else {
    codes.insert(codes.end(), parts, parts + count);
  }
}

/// Sorts the combining marks after each character. utf8proc's own way takes quadratic time for many
/// marks.
void marks_sort(std::vector<std::int32_t>& codes) {
  for (std::size_t i = 0; i < codes.size();) {
    if (combining_class(codes[i]) == 0) {
      ++i;
      continue;
    }
    std::size_t end = i + 1;
    while (end < codes.size() && combining_class(codes[end]) != 0) ++end;
    const auto at = [&](std::size_t k) { return codes.begin() + static_cast<std::ptrdiff_t>(k); };
    std::stable_sort(at(i), at(end), [](std::int32_t a, std::int32_t b) {
      return combining_class(a) < combining_class(b);
    });
    i = end;
  }
}

struct Apply {
  std::string text;
  std::size_t limit;
  RegexBudget& budget;

  std::string operator()(NormalForm form) const { return normal_form(text, form); }
  std::string operator()(const PrependStep& step) const {
    return text.empty() ? text : step.text + text;
  }
  std::string operator()(const ReplaceStep& step) const {
    return text_replace(text, step, limit, budget);
  }
};

}  // namespace

std::string normal_form(std::string_view text, NormalForm form) {
  if (std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; })) {
    return std::string(text);
  }
  const bool is_compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  const bool is_composed = form == NormalForm::nfc || form == NormalForm::nfkc;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (is_compatible ? UTF8PROC_COMPAT : 0));
  std::vector<std::int32_t> codes;
  codes.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text.substr(at));
    decompose(codes, static_cast<std::int32_t>(step.code), options);
    at += step.bytes;
  }
  marks_sort(codes);
  if (is_composed) {
    const auto compose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    const auto count = utf8proc_normalize_utf32(
        codes.data(), static_cast<utf8proc_ssize_t>(codes.size()), compose);
    if (count >= 0) codes.resize(static_cast<std::size_t>(count));
  }
  std::string normal;
  normal.reserve(text.size());
  for (const std::int32_t code : codes) utf8_append(normal, static_cast<std::uint32_t>(code));
  return normal;
}

std::string text_replace(std::string_view text, const ReplaceStep& step, std::size_t limit,
                         RegexBudget& budget) {
  std::string replaced;
  std::size_t done = 0;
  step.pattern.each(text, budget, [&](std::size_t begin, std::size_t end) {
    replaced.append(text.substr(done, begin - done)).append(step.text);
    done = end;
    if (replaced.size() > limit) fail_input("a tokenizer's replacement makes the text too long");
  });
  return replaced.append(text.substr(done));
}

std::string text_normalise(std::string text, const std::vector<NormaliseStep>& steps,
                           RegexBudget& budget) {
  const std::size_t limit = grown_limit(text.size());
  for (const NormaliseStep& step : steps)
    text = std::visit(Apply{std::move(text), limit, budget}, step);
  return text;
}

}  // namespace lca
