#include "formats/tokenizer/pre_tokenize.h"

#include "formats/tokenizer/byte_level.h"
#include "formats/tokenizer/utf8.h"

#include <optional>
#include <utility>

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

/// Stretches of a text from left to right, joined as a Split says.
template <typename Emit>
class Joiner {
 public:
  Joiner(SplitBehaviour behaviour, Emit emit) : behaviour_(behaviour), emit_(std::move(emit)) {}

  void take(const Stretch& next) {
    if (held_ && joins(next)) {
      held_->end = next.end;
      if (behaviour_ != SplitBehaviour::contiguous) flush();
      return;
    }
    flush();
    if (waits(next)) {
      held_ = next;
    } else if (behaviour_ != SplitBehaviour::removed || !next.is_match) {
      emit_(next);
    }
  }
  void flush() {
    if (held_) emit_(*std::exchange(held_, std::nullopt));
  }

 private:
  /// Whether the next stretch may become part of this one.
  bool waits(const Stretch& stretch) const {
    switch (behaviour_) {
      case SplitBehaviour::merged_with_previous:
        return !stretch.is_match;
      case SplitBehaviour::merged_with_next:
        return stretch.is_match;
      default:
        return behaviour_ == SplitBehaviour::contiguous;
    }
  }
  /// Of neighbouring matches only the one beside other text is merged with that.
  bool joins(const Stretch& next) const {
    return (held_->is_match == next.is_match) == (behaviour_ == SplitBehaviour::contiguous);
  }

  SplitBehaviour behaviour_;
  Emit emit_;
  std::optional<Stretch> held_;
};

/// Takes a piece through the steps; depth first, so that only one piece of each step is there.
class Cutter {
 public:
  Cutter(const PieceCut& cut, const std::function<void(std::string_view)>& word)
      : cut_(cut), word_(word) {}

  void run(const Piece& piece, std::size_t step) {
    if (step == cut_.steps.size()) {
      word_(piece.text);
    } else {
      std::visit([&](const auto& each) { apply(each, piece, step); }, cut_.steps[step]);
    }
  }

 private:
  /// `each_match` calls back for the matches in the text of `piece`; what becomes of it goes
  /// through the steps from `next` on.
  template <typename EachMatch, typename Next>
  static void split(const Piece& piece, SplitBehaviour behaviour, bool is_inverted,
                    const EachMatch& each_match, const Next& next) {
    Joiner joiner(behaviour, [&](const Stretch& stretch) {
      if (stretch.begin == stretch.end) return;
      next({piece.text.substr(stretch.begin, stretch.end - stretch.begin),
            piece.is_first && stretch.begin == 0});
    });
    std::size_t done = 0;
    each_match([&](std::size_t begin, std::size_t end) {
      if (begin > done) joiner.take({done, begin, is_inverted});
      joiner.take({begin, end, !is_inverted});
      done = end;
    });
    if (done < piece.text.size()) joiner.take({done, piece.text.size(), is_inverted});
    joiner.flush();
  }

  void apply(const SplitStep& step, const Piece& piece, std::size_t at) {
    split(
        piece, step.behaviour, step.is_inverted,
        [&](auto visit) { step.pattern.each(piece.text, cut_.budget, visit); },
        [&](const Piece& next) { run(next, at + 1); });
  }

  void apply(const DigitsStep& step, const Piece& piece, std::size_t at) {
    const auto each_digit = [&](auto visit) {
      for (std::size_t i = 0; i < piece.text.size();) {
        const Utf8Step character = utf8_step(piece.text.substr(i));
        if (is_numeric(character.code)) visit(i, i + character.bytes);
        i += character.bytes;
      }
    };
    split(piece, step.is_individual ? SplitBehaviour::isolated : SplitBehaviour::contiguous, false,
          each_digit, [&](const Piece& next) { run(next, at + 1); });
  }

  void apply(const ByteLevelStep& step, const Piece& piece, std::size_t at) {
    Piece whole = piece;
    std::string text;
    if (step.adds_prefix_space && !piece.text.starts_with(' ')) {
      text.append(" ").append(piece.text);
      whole.text = text;
    }
    const bool spells = cut_.spells || at + 1 < cut_.steps.size();
    const auto next = [&](const Piece& part) {
      if (!spells) return run(part, at + 1);
      std::string spelled;
      byte_level_spell(spelled, part.text);
      run({spelled, part.is_first}, at + 1);
    };
    if (!step.splits) return next(whole);
    split(
        whole, SplitBehaviour::isolated, false,
        [&](auto visit) { gpt2_regex().each(whole.text, cut_.budget, visit); }, next);
  }

  void apply(const MetaspaceStep& step, const Piece& piece, std::size_t at) {
    std::string text;
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
    if (!step.splits) return run(whole, at + 1);
    const auto each_space = [&](auto visit) {
      std::size_t found = whole.text.find(step.replacement);
      while (found != std::string_view::npos) {
        visit(found, found + step.replacement.size());
        found = whole.text.find(step.replacement, found + step.replacement.size());
      }
    };
    split(whole, SplitBehaviour::merged_with_next, false, each_space,
          [&](const Piece& next) { run(next, at + 1); });
  }

  const PieceCut& cut_;
  const std::function<void(std::string_view)>& word_;
};

}  // namespace

void words_each(const Piece& piece, const PieceCut& cut,
                const std::function<void(std::string_view)>& word) {
  Cutter(cut, word).run(piece, 0);
}

}  // namespace lca
