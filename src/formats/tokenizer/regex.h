#pragma once
/// Regular expressions of tokenizers, matched by PCRE2 with the meaning Oniguruma gives them, which
/// is what the files were written for.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace lca {

/// The matching steps that one text may take, in all expressions together. The first few at each
/// position are free, so an ordinary text uses none of it; expressions that try every way to match
/// take quadratically or exponentially many, and meet the limit.
class RegexBudget {
 public:
  /// For a text of `size` bytes.
  explicit RegexBudget(std::size_t size)
      : left_(1'000'000 + 400 * static_cast<std::uint64_t>(size)) {}
  /// False where fewer are left.
  bool spend(std::uint64_t steps) {
    if (steps > left_) return false;
    left_ -= steps;
    return true;
  }

 private:
  std::uint64_t left_;
};

/// A compiled expression; any number of threads may use it.
class Regex {
 public:
  /// Compiles `pattern`; throws Error beginning with `where` when it is none, or when it uses what
  /// the two libraries understand differently.
  Regex(std::string_view pattern, std::string_view where);
  /// An expression that matches `text` itself.
  static Regex literal(std::string_view text, std::string_view where);

  struct Match {
    std::size_t begin = 0, end = 0;
  };
  /// The first match at or behind `start` in `text`, which is UTF-8. Throws Error where the budget
  /// is used up.
  std::optional<Match> find(std::string_view text, std::size_t start, RegexBudget& budget) const;

  /// Calls `visit(begin, end)` for all matches from left to right; an empty match does not follow
  /// another match immediately.
  template <typename Visit>
  void each(std::string_view text, RegexBudget& budget, Visit visit) const {
    std::size_t start = 0;
    std::optional<std::size_t> last;
    while (start <= text.size()) {
      const std::optional<Match> match = find(text, start, budget);
      if (!match) return;
      if (match->begin == match->end && last == match->end) {
        start = after(text, start);
        continue;
      }
      visit(match->begin, match->end);
      start = match->end;
      last = match->end;
    }
  }

 private:
  struct Code;
  enum class Found { match, none, limit };
  static std::size_t after(std::string_view text, std::size_t at);
  Found match(std::string_view text, std::size_t start, std::size_t last, std::uint32_t steps,
              Match& place) const;
  Found match_at(std::string_view text, std::size_t at, RegexBudget& budget, Match& place) const;

  std::shared_ptr<const Code> code_;
};

/// `pattern` in PCRE2's language; throws Error for what cannot be said there. Seen by tests.
std::string regex_translate(std::string_view pattern, std::string_view where);

}  // namespace lca
