#include "formats/tokenizer/token_decoder.h"

#include "formats/tokenizer/byte_level.h"
#include "formats/tokenizer/utf8.h"

#include <algorithm>
#include <charconv>

namespace lca {
namespace {

struct Decode {
  std::string& text;
  bool is_first;
  std::size_t limit;
  RegexBudget& budget;
  bool& is_byte;  // the token was one byte: nothing more is done to it

  void operator()(const ReplaceStep& step) const { text = text_replace(text, step, limit, budget); }

  void operator()(const ByteLevelDecode&) const {
    if (auto bytes = byte_level_read(text)) text = std::move(*bytes);
  }

  void operator()(const ByteFallbackDecode&) const {
    if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return;
    unsigned byte = 0;
    const char* digits = text.data() + 3;
    const auto [end, error] = std::from_chars(digits, digits + 2, byte, 16);
    if (error != std::errc{} || end != digits + 2) return;
    text.assign(1, static_cast<char>(byte));
    is_byte = true;
  }

  void operator()(const StripDecode& step) const {
    std::string_view rest = text;
    for (std::size_t i = 0; i < step.begin && rest.starts_with(step.character); ++i) {
      rest.remove_prefix(step.character.size());
    }
    for (std::size_t i = 0; i < step.end && rest.ends_with(step.character); ++i) {
      rest.remove_suffix(step.character.size());
    }
    text = std::string(rest);
  }

  void operator()(const MetaspaceDecode& step) const {
    std::string spaced;
    for (std::string_view rest = text; !rest.empty();) {
      if (rest.starts_with(step.character)) {
        if (!is_first || !step.drops_first) spaced += ' ';
        rest.remove_prefix(step.character.size());
      } else {
        spaced += rest[0];
        rest.remove_prefix(1);
      }
    }
    text = std::move(spaced);
  }
};

}  // namespace

std::string TokenDecoder::bytes_of(std::string_view token, bool is_first,
                                   RegexBudget& budget) const {
  std::string text(token);
  bool is_byte = false;
  for (const DecodeStep& step : steps) {
    if (is_byte) break;
    std::visit(Decode{text, is_first, grown_limit(token.size()), budget, is_byte}, step);
  }
  return text;
}

bool TokenDecoder::first_differs() const {
  return std::ranges::any_of(
      steps, [](const DecodeStep& step) { return std::holds_alternative<MetaspaceDecode>(step); });
}

}  // namespace lca
