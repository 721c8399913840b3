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

/// The work that one text may cause, in all expressions together. Ordinary expressions use none of
/// it; those that try every way to match take quadratically or exponentially many steps, and meet
/// the limit.
class RegexBudget {
 public:
  /// For a text of `size` bytes.
  explicit RegexBudget(std::size_t size);
  /// Steps that matching at one position may take without being charged.
  std::uint32_t free_steps() const { return free_steps_; }
  /// Charges time of a processor; false where less is left.
  bool spend(double seconds) { return (seconds_left_ -= seconds) >= 0; }

 private:
  std::uint32_t free_steps_;
  double seconds_left_;
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
  /// The first match at or after `start` in `text`, which is UTF-8. Throws Error where the budget
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
  Found search(std::string_view text, std::size_t start, RegexBudget& budget, Match& place) const;

  std::shared_ptr<const Code> code_;
};

/// `pattern` in PCRE2's language; throws Error where it cannot be translated. Exposed for tests.
std::string regex_translate(std::string_view pattern, std::string_view where);

}  // namespace lca
