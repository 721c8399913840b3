/// Variable tracking: a chain of assignments scattered over lines of noise, after a worked example.
/// Wordings: NVIDIA/RULER scripts/data/synthetic/constants.py and variable_tracking.py
/// (Apache-2.0).

#include "eval/ruler/fit.h"
#include "eval/ruler/python_random.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace lca::eval {
namespace {

constexpr std::string_view kVariablesAsked =
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
    "{context}\nQuestion: Find all variables that are assigned the value {query} in the text "
    "above.";
constexpr std::string_view kVariablesPrefix =
    " Answer: According to the chain(s) of variable assignment in the text above, {count} "
    "variables are assigned the value {query}, they are: ";
constexpr std::string_view kCapitals = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
constexpr std::size_t kVariables = 5;  // the first, and four hops
constexpr std::int64_t kExampleTokens = 500;
constexpr std::string_view kExampleValue = "12345";

void text_replace_all(std::string& text, std::string_view what, std::string_view with) {
  for (std::size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + with.size())) {
    text.replace(at, what.size(), with);
  }
}

class VariableMaker final : public RulerMaker {
 public:
  VariableMaker(const RulerTask& task, const RulerMakerOptions& options)
      : task_(task), options_(options), random_(options.seed), numbers_(options.seed) {
    example_make();
    increment_ = options_.length < 4096 ? 5 : 10;
    const auto example_tokens = options_.measure.text(example_);
    units_ = search(
        increment_, options_.length,
        [&](std::int64_t units) -> std::int64_t {
          std::optional<RulerSample> sample = draw(units, false);
          return sample ? options_.measure.prompt(*sample) + example_tokens + task_.max_tokens : 0;
        },
        example_tokens + task_.max_tokens);
  }

  std::optional<RulerSample> next() override {
    return units_fit(units_, increment_, [&](std::int64_t units) {
      std::optional<RulerSample> sample = draw(units, false);
      if (!sample) return sample;
      sample->input = example_renamed() + "\n" + sample->input;
      sample->tokens = options_.measure.prompt(*sample);
      if (sample->tokens + task_.max_tokens > options_.length) sample.reset();
      return sample;
    });
  }
  std::unique_ptr<RulerMaker> copy() const override {
    return std::make_unique<VariableMaker>(*this);
  }

 private:
  /// `tokens` of a sample of so many lines (0: names were drawn twice), of which `fixed` do not
  /// belong to the sample itself.
  template <typename Tokens>
  std::int64_t search(std::int64_t increment, std::int64_t limit, const Tokens& tokens,
                      std::int64_t fixed) {
    std::int64_t first = 0;
    while (first == 0) first = tokens(increment);
    const double tokens_per_line =
        static_cast<double>(first - fixed) / static_cast<double>(increment);
    const auto estimate =
        static_cast<std::int64_t>(static_cast<double>(limit) / tokens_per_line * 3);
    return units_search(increment, std::max(estimate, increment * 2),
                        [&](std::int64_t units) {
                          const std::int64_t all = tokens(units);
                          return all > 0 && all <= limit;
                        })
        .value_or(increment);
  }

  /// The worked example: at most 500 tokens, names of three letters.
  void example_make() {
    constexpr std::int64_t kLines = 5;
    const auto text_of = [](const RulerSample& sample) { return sample.input + sample.prefix; };
    const std::int64_t units = search(
        kLines, kExampleTokens,
        [&](std::int64_t lines) -> std::int64_t {
          const std::optional<RulerSample> sample = draw(lines, true);
          return sample ? options_.measure.text(text_of(*sample)) : 0;
        },
        0);
    const std::optional<RulerSample> example = units_fit(units, kLines, [&](std::int64_t lines) {
      std::optional<RulerSample> sample = draw(lines, true);
      if (sample && options_.measure.text(text_of(*sample)) > kExampleTokens) sample.reset();
      return sample;
    });
    if (!example) throw RulerSkip("its worked example does not fit into 500 tokens");
    example_ = text_of(*example) + " " + text_join(example->outputs, " ") + "\n";
    example_names_ = example->outputs;
  }

  /// The example with other names and another value. Names are replaced wherever they are spelled,
  /// one after the other, as RULER does.
  std::string example_renamed() {
    std::string text = example_;
    for (const std::string& name : example_names_) {
      text_replace_all(text, name, random_.letters(kCapitals, name.size()));
    }
    text_replace_all(text, kExampleValue, fmt::format("{}", numbers_.between(10000, 99999)));
    return text;
  }

  std::optional<RulerSample> draw(std::int64_t units, bool example) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < kVariables; ++i) {
      names.push_back(random_.letters(kCapitals, example ? 3 : 5));
    }
    bool twice = false;
    while (std::set<std::string>(names.begin(), names.end()).size() < kVariables) {
      names.push_back(random_.letters(kCapitals, example ? 3 : 5));
      twice = true;
    }
    const auto first_value = [&] {
      return example ? std::string(kExampleValue)
                     : fmt::format("{}", numbers_.between(10000, 99999));
    };
    const std::string value = first_value();
    if (twice) {
      // RULER begins a second chain with the names left over, fails, and draws again.
      first_value();
      return std::nullopt;
    }
    std::vector<std::string> chain{fmt::format("VAR {} = {}", names[0], value)};
    for (std::size_t i = 1; i < kVariables; ++i) {
      chain.push_back(fmt::format("VAR {} = VAR {} ", names[i], names[i - 1]));
    }
    const auto count = static_cast<std::size_t>(units);
    if (count < chain.size()) return std::nullopt;
    std::vector<std::string> lines(count, std::string(kNoiseLine));
    std::vector<std::size_t> places = random_.sample(count, chain.size());
    std::ranges::sort(places);
    for (std::size_t i = 0; i < chain.size(); ++i) {
      lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(places[i] + i), chain[i]);
    }
    RulerSample sample;
    sample.input =
        text_fill(kVariablesAsked, {{"context", text_join(lines, "\n")}, {"query", value}});
    sample.prefix =
        text_fill(kVariablesPrefix, {{"count", fmt::format("{}", kVariables)}, {"query", value}});
    sample.outputs = std::move(names);
    return sample;
  }

  const RulerTask& task_;
  RulerMakerOptions options_;
  PythonRandom random_;
  NumpyRandom numbers_;
  std::string example_;
  std::vector<std::string> example_names_;
  std::int64_t increment_ = 0, units_ = 0;
};

}  // namespace

std::unique_ptr<RulerMaker> variable_maker(const RulerTask& task,
                                           const RulerMakerOptions& options) {
  return std::make_unique<VariableMaker>(task, options);
}

}  // namespace lca::eval
