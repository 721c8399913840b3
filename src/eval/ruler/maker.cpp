#include "eval/ruler/maker.h"

#include "core/error.h"
#include "eval/ruler/fit.h"

namespace lca::eval {
namespace {

constexpr int kTriesAtSmallest = 8;

std::unique_ptr<RulerMaker> family_maker(const RulerTask& task, const RulerMakerOptions& options) {
  switch (task.family) {
    case RulerFamily::needles:
      return needle_maker(task, options);
    case RulerFamily::variables:
      return variable_maker(task, options);
    case RulerFamily::common_words:
      return common_word_maker(task, options);
    case RulerFamily::frequent_words:
      return frequent_word_maker(task, options);
    case RulerFamily::questions:
      return question_maker(task, options);
  }
  fail_internal("unknown family of RULER's tasks");
}

}  // namespace

RulerCell ruler_cell(const RulerTask& task, const RulerMakerOptions& options) {
  try {
    std::unique_ptr<RulerMaker> maker = family_maker(task, options);
    if (!maker->copy()->next()) {
      throw RulerSkip(fmt::format("no prompt fits into {} tokens", options.length));
    }
    return {std::move(maker), {}};
  } catch (const RulerSkip& skip) {
    return {nullptr, skip.what()};
  }
}

std::optional<std::int64_t> units_search(std::int64_t increment, std::int64_t upper,
                                         const std::function<bool(std::int64_t)>& fits) {
  std::optional<std::int64_t> best;
  std::int64_t lower = increment;
  while (lower <= upper) {
    const std::int64_t middle = (lower + upper) / 2;
    if (fits(middle)) {
      best = middle;
      lower = middle + 1;
    } else {
      upper = middle - 1;
    }
  }
  return best;
}

std::optional<RulerSample> units_fit(std::int64_t units, std::int64_t increment,
                                     const UnitsAttempt& attempt) {
  for (int tries = 0; units > 0;) {
    if (std::optional<RulerSample> sample = attempt(units)) return sample;
    if (units > increment) {
      units -= increment;
    } else if (++tries == kTriesAtSmallest) {
      units /= 2;
      tries = 0;
    }
  }
  return std::nullopt;
}

std::string text_fill(std::string_view pattern,
                      const std::vector<std::pair<std::string_view, std::string_view>>& values) {
  std::string text;
  while (!pattern.empty()) {
    const std::size_t open = std::min(pattern.find('{'), pattern.size());
    text += pattern.substr(0, open);
    pattern.remove_prefix(open);
    if (pattern.empty()) break;
    const std::size_t close = pattern.find('}');
    const std::string_view name = pattern.substr(1, close - 1);
    for (const auto& [key, value] : values) {
      if (key == name) text += value;
    }
    pattern.remove_prefix(close + 1);
  }
  return text;
}

std::string text_join(const std::vector<std::string>& parts, std::string_view between) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += between;
    text += parts[i];
  }
  return text;
}

}  // namespace lca::eval
