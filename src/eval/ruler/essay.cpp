#include "eval/ruler/essay.h"

#include "core/error.h"
#include "core/text.h"
#include "eval/ruler/source_text.h"
#include "formats/tokenizer/utf8.h"

#include <algorithm>
#include <array>

namespace lca::eval {
namespace {

// Bytes of closing and opening quotes and brackets, straight and curly.
constexpr std::array<std::string_view, 7> kClosing{"\"", "'", ")", "]", "”", "’", "»"};
constexpr std::array<std::string_view, 7> kOpening{"\"", "'", "(", "[", "“", "‘", "«"};
constexpr std::array<std::string_view, 25> kAbbreviations{
    "mr",  "mrs", "ms", "dr",   "prof", "st",  "sr",  "jr", "vs",  "etc", "e.g", "i.e", "cf",
    "inc", "ltd", "co", "corp", "no",   "vol", "fig", "ed", "gen", "rev", "hon", "u.s"};

std::string_view without_closing(std::string_view word) {
  for (bool cut = true; cut && !word.empty();) {
    cut = false;
    for (const std::string_view each : kClosing) {
      if (word.ends_with(each)) word.remove_suffix(each.size()), cut = true;
    }
  }
  return word;
}

std::string_view without_opening(std::string_view word) {
  for (bool cut = true; cut && !word.empty();) {
    cut = false;
    for (const std::string_view each : kOpening) {
      if (word.starts_with(each)) word.remove_prefix(each.size()), cut = true;
    }
  }
  return word;
}

bool is_abbreviation(std::string_view word) {   // without its last full stop
  if (word.size() == 1) return word[0] != 'I';  // an initial
  std::string low(word);
  std::ranges::transform(low, low.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  });
  return std::ranges::find(kAbbreviations, low) != kAbbreviations.end();
}

/// A sentence ends with . ! or ?, and the next begins with anything but a small letter.
bool sentence_ends(std::string_view word, std::string_view next) {
  const std::string_view core = without_closing(word);
  if (core.empty() || std::string_view(".!?").find(core.back()) == std::string_view::npos)
    return false;
  const std::string_view start = without_opening(next);
  if (!start.empty() && start[0] >= 'a' && start[0] <= 'z') return false;
  return core.back() != '.' || !is_abbreviation(without_opening(core.substr(0, core.size() - 1)));
}

std::string essay_file(const std::filesystem::path& path) {
  std::string text = source_read(path);
  if (path.extension() != ".json") return text;
  return json_text(source_json(path, text), "text", path_printable(path.string()));
}

}  // namespace

Essay::Essay(std::string_view text) {
  std::string word;
  const auto end_word = [&] {
    if (!word.empty()) words_.push_back(std::move(word));
    word.clear();
  };
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    // Python's \s has four control characters more than Unicode's White_Space.
    const bool space = step.kind == Utf8Step::Kind::good &&
                       (is_white_space(step.code) || (step.code >= 0x1c && step.code <= 0x1f));
    if (space) {
      end_word();
    } else {
      word += text.substr(0, step.bytes);
    }
    text.remove_prefix(step.bytes);
  }
  end_word();
  ends_.resize(words_.size());
  for (std::size_t i = 0; i < words_.size(); ++i) {
    ends_[i] = sentence_ends(words_[i], words_[(i + 1) % words_.size()]);
  }
}

Essay Essay::load(std::span<const std::filesystem::path> files) {
  std::string text;
  for (const std::filesystem::path& path : files) {
    const std::string one = essay_file(path);
    if (Essay(one).words() == 0) fail_input("{}: holds no text", path_printable(path.string()));
    text += text.empty() ? one : "\n" + one;
  }
  return Essay(text);
}

std::vector<std::string> Essay::sentences(std::size_t count) const {
  std::vector<std::string> sentences;
  bool begin = true;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = i % words_.size();
    if (begin) {
      sentences.push_back(words_[at]);
    } else {
      sentences.back().append(1, ' ').append(words_[at]);
    }
    begin = ends_[at];
  }
  return sentences;
}

}  // namespace lca::eval
