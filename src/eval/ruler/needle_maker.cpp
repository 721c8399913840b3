/// NIAH: needles, each a key with a value, in noise, in an essay, or among other needles.
/// Wordings: NVIDIA/RULER scripts/data/synthetic/constants.py and niah.py (Apache-2.0).

#include "eval/ruler/fit.h"
#include "eval/ruler/python_random.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lca::eval {
namespace {

constexpr std::string_view kNeedle = "One of the special magic {type} for {key} is: {value}.";
constexpr std::string_view kManyAsked =
    "Some special magic {type} are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {type} afterwards.\n{context}\nWhat are all the special magic "
    "{type} for {query} mentioned in the provided text?";
constexpr std::string_view kManyPrefix =
    " The special magic {type} for {query} mentioned in the provided text are";
constexpr std::string_view kOneAsked =
    "A special magic {type} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {type} afterwards.\n{context}\nWhat is the special magic "
    "{type} for {query} mentioned in the provided text?";
constexpr std::string_view kOnePrefix =
    " The special magic {type} for {query} mentioned in the provided text is";
constexpr std::size_t kDepths = 40;

class NeedleMaker final : public RulerMaker {
 public:
  NeedleMaker(const RulerTask& task, const RulerMakerOptions& options)
      : task_(task), options_(options), random_(options.seed) {
    if (task_.haystack == RulerHaystack::essay && options_.sources.essay == nullptr) {
      throw RulerSkip("no essays were given");
    }
    increment_ = task_.haystack == RulerHaystack::essay ? 500 : options_.length < 4096 ? 5 : 25;
    RulerSample first = draw(increment_).value_or(RulerSample{});
    const double tokens_per_unit =
        static_cast<double>(options_.measure.prompt(first)) / static_cast<double>(increment_);
    const auto estimate =
        static_cast<std::int64_t>(static_cast<double>(options_.length) / tokens_per_unit * 3);
    units_ = units_search(increment_, std::max(estimate, increment_ * 2), [&](std::int64_t units) {
               return attempt(units).has_value();
             }).value_or(increment_);
  }

  std::optional<RulerSample> next() override {
    return units_fit(units_, increment_, [&](std::int64_t units) { return attempt(units); });
  }
  std::unique_ptr<RulerMaker> copy() const override { return std::make_unique<NeedleMaker>(*this); }

 private:
  std::optional<RulerSample> attempt(std::int64_t units) {
    std::optional<RulerSample> sample = draw(units);
    if (!sample) return sample;
    sample->tokens = options_.measure.prompt(*sample);
    if (sample->tokens + task_.max_tokens > options_.length) return std::nullopt;
    return sample;
  }

  std::string value(RulerValue kind) {
    switch (kind) {
      case RulerValue::numbers:
        return fmt::format("{}", random_.between(1000000, 9999999));
      case RulerValue::uuids:
        return random_.uuid4();
      case RulerValue::words:
        break;
    }
    const KeyWords& keys = *options_.sources.keys;
    return keys.at(random_.below(keys.size()));
  }

  std::string_view values_named() const {
    switch (task_.value) {
      case RulerValue::numbers:
        return "numbers";
      case RulerValue::uuids:
        return "uuids";
      case RulerValue::words:
        break;
    }
    return "words";
  }

  std::string needle(std::string_view key, std::string_view value) const {
    return text_fill(kNeedle, {{"type", values_named()}, {"key", key}, {"value", value}});
  }

  std::optional<RulerSample> draw(std::int64_t units) {
    std::vector<std::string> keys, needles;
    std::vector<std::vector<std::string>> values;
    for (std::size_t k = 0; k < task_.keys; ++k) {
      keys.push_back(value(task_.key));
      values.emplace_back();
      for (std::size_t v = 0; v < task_.values_per_key; ++v) {
        values.back().push_back(value(task_.value));
        needles.push_back(needle(keys.back(), values.back().back()));
      }
    }
    PythonRandom(options_.seed).shuffle(needles);
    const auto count = static_cast<std::size_t>(units);
    if (task_.haystack != RulerHaystack::essay && count < needles.size()) return std::nullopt;
    const std::string context = task_.haystack == RulerHaystack::essay ? in_essay(count, needles)
                                                                       : in_lines(count, needles);

    std::vector<std::string> queried;
    RulerSample sample;
    for (const std::size_t i : random_.sample(task_.keys, task_.queried)) {
      queried.push_back(keys[i]);
      sample.outputs.insert(sample.outputs.end(), values[i].begin(), values[i].end());
    }
    const std::string last = queried.back();
    queried.pop_back();
    const std::string query = queried.empty() ? last : text_join(queried, ", ") + ", and " + last;
    const bool one = task_.queried * task_.values_per_key == 1;
    std::string_view type = values_named();
    if (one) type.remove_suffix(1);  // its plural s
    sample.input = text_fill(one ? kOneAsked : kManyAsked,
                             {{"type", type}, {"context", context}, {"query", query}});
    sample.prefix = text_fill(one ? kOnePrefix : kManyPrefix, {{"type", type}, {"query", query}});
    return sample;
  }

  /// Needles before the sentences at some of 40 depths; a needle at the same place as another, or
  /// at an end, leaves an empty piece and so two spaces, as in RULER.
  std::string in_essay(std::size_t words, const std::vector<std::string>& needles) {
    const std::vector<std::string> sentences = options_.sources.essay->sentences(words);
    std::vector<std::size_t> places;
    for (const std::size_t i : random_.sample(kDepths, needles.size())) {
      const double depth = std::round(static_cast<double>(i) * (100.0 / (kDepths - 1)));
      places.push_back(
          static_cast<std::size_t>(static_cast<double>(sentences.size()) * (depth / 100)));
    }
    std::ranges::sort(places);
    places.push_back(sentences.size());
    std::vector<std::string> pieces;
    std::size_t from = 0;
    for (std::size_t i = 0; i < places.size(); ++i) {
      pieces.push_back(text_join({sentences.begin() + static_cast<std::ptrdiff_t>(from),
                                  sentences.begin() + static_cast<std::ptrdiff_t>(places[i])},
                                 " "));
      from = places[i];
      if (i < needles.size()) pieces.push_back(needles[i]);
    }
    return text_join(pieces, " ");
  }

  std::string in_lines(std::size_t count, const std::vector<std::string>& needles) {
    std::vector<std::string> lines;
    for (std::size_t i = 0; i < count; ++i) {
      if (task_.haystack == RulerHaystack::noise) {
        lines.emplace_back(kNoiseLine);
        continue;
      }
      const std::string key = value(task_.key);  // drawn before the value
      lines.push_back(needle(key, value(task_.value)));
    }
    std::vector<std::size_t> places = random_.sample(count, needles.size());
    std::ranges::sort(places, std::greater());
    for (std::size_t i = 0; i < places.size(); ++i) {
      lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(places[i]), needles[i]);
    }
    return text_join(lines, "\n");
  }

  const RulerTask& task_;
  RulerMakerOptions options_;
  PythonRandom random_;
  std::int64_t increment_ = 0, units_ = 0;
};

}  // namespace

std::unique_ptr<RulerMaker> needle_maker(const RulerTask& task, const RulerMakerOptions& options) {
  return std::make_unique<NeedleMaker>(task, options);
}

}  // namespace lca::eval
