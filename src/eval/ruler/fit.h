#pragma once
/// RULER's length rule: how many units of text (words, lines, documents) a prompt has.

#include "eval/ruler/maker.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lca::eval {

/// Thrown while a maker is prepared: why the task is skipped.
struct RulerSkip : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The most units, from `increment` to `upper`, of which a sample fits, found by bisection with one
/// sample for each try; nothing where none does.
std::optional<std::int64_t> units_search(std::int64_t increment, std::int64_t upper,
                                         const std::function<bool(std::int64_t)>& fits);

/// A sample of at most `units`: as long as it does not fit there are `increment` fewer. RULER then
/// tries the same again without end; here half as many after some tries. `attempt` returns nothing
/// where the sample does not fit or cannot be made.
using UnitsAttempt = std::function<std::optional<RulerSample>(std::int64_t)>;
std::optional<RulerSample> units_fit(std::int64_t units, std::int64_t increment,
                                     const UnitsAttempt& attempt);

/// `pattern` with every {name} replaced.
std::string text_fill(std::string_view pattern,
                      const std::vector<std::pair<std::string_view, std::string_view>>& values);

/// `parts` with `between` between them.
std::string text_join(const std::vector<std::string>& parts, std::string_view between);

/// One line of short sentences, repeated: the haystack called noise.
inline constexpr std::string_view kNoiseLine =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

// The makers of each family; `prepare` has run.
std::unique_ptr<RulerMaker> needle_maker(const RulerTask& task, const RulerMakerOptions& options);
std::unique_ptr<RulerMaker> variable_maker(const RulerTask& task, const RulerMakerOptions& options);
std::unique_ptr<RulerMaker> common_word_maker(const RulerTask& task,
                                              const RulerMakerOptions& options);
std::unique_ptr<RulerMaker> frequent_word_maker(const RulerTask& task,
                                                const RulerMakerOptions& options);
std::unique_ptr<RulerMaker> question_maker(const RulerTask& task, const RulerMakerOptions& options);

}  // namespace lca::eval
