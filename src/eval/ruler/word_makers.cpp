/// Common words (cwe): the ten words that a numbered list repeats most, after a worked example.
/// Frequent words (fwe): the three invented words that a text has most.
/// Wordings: NVIDIA/RULER scripts/data/synthetic/constants.py (Apache-2.0).

#include "core/error.h"
#include "eval/ruler/fit.h"
#include "eval/ruler/python_random.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

namespace lca::eval {
namespace {

constexpr std::string_view kCommonAsked =
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n{context}\nQuestion: What are the 10 most common "
    "words in the above list?";
constexpr std::string_view kCommonPrefix =
    " Answer: The top 10 words that appear most often in the list are:";
constexpr std::size_t kCommonWords = 10;
constexpr std::int64_t kCommonIncrement = 10;

constexpr std::string_view kFrequentAsked =
    "Read the following coded text and track the frequency of each coded word. Find the three most "
    "frequently appeared coded words. {context}\nQuestion: Do not provide any explanation. Please "
    "ignore the dots '....'. What are the three most frequently appeared words in the above coded "
    "text?";
constexpr std::string_view kFrequentPrefix =
    " Answer: According to the coded text above, the three most frequently appeared words are:";
constexpr std::string_view kSmallLetters = "abcdefghijklmnopqrstuvwxyz";
constexpr std::size_t kCodedLetters = 6;
constexpr std::size_t kFewestCodedWords = 4;  // the dots, and three to find

std::string numbered(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    text += fmt::format("{}{}. {}", i == 0 ? "" : " ", i + 1, words[i]);
  }
  return text;
}

class CommonWordMaker final : public RulerMaker {
 public:
  CommonWordMaker(const RulerTask& task, const RulerMakerOptions& options)
      : task_(task), options_(options), random_(options.seed) {
    const WordLists& lists = *options_.sources.words;
    for (const auto* list : {&lists.nouns, &lists.adjectives, &lists.verbs}) {
      words_.insert(words_.end(), list->begin(), list->end());
    }
    std::ranges::sort(words_);
    words_.erase(std::unique(words_.begin(), words_.end()), words_.end());
    PythonRandom(options_.seed).shuffle(words_);
    prepare();
  }

  std::optional<RulerSample> next() override {
    return units_fit(units_, kCommonIncrement, [&](std::int64_t units) { return attempt(units); });
  }
  std::unique_ptr<RulerMaker> copy() const override {
    return std::make_unique<CommonWordMaker>(*this);
  }

 private:
  struct List {
    std::string text;
    std::vector<std::string> common;
  };

  void prepare() {
    const auto most =
        static_cast<std::int64_t>(std::max(words_.size(), options_.sources.words->many.size()));
    const auto too_few = [&](std::string_view than) {
      return RulerSkip(fmt::format("it takes {} {} words, and the lists have no more", than, most));
    };
    if (most < static_cast<std::int64_t>(example_words())) throw too_few("more than");
    const std::int64_t first = std::min<std::int64_t>(4096, most);
    RulerSample tried = draw(first);
    const auto tokens = static_cast<double>(options_.measure.prompt(tried));
    // Python's max_seq_length // tokens_per_word of two floats.
    const double per_word = tokens / static_cast<double>(first);
    const auto length = static_cast<double>(options_.length);
    const auto quotient =
        static_cast<std::int64_t>(std::round((length - std::fmod(length, per_word)) / per_word));
    const std::int64_t upper = std::max(quotient * 2, kCommonIncrement * 2);
    const auto found = units_search(kCommonIncrement, std::min(upper, most),
                                    [&](std::int64_t units) { return attempt(units).has_value(); });
    units_ = found.value_or(kCommonIncrement);
    if (units_ == most && most < upper) throw too_few("more than");
  }

  std::optional<RulerSample> attempt(std::int64_t units) {
    RulerSample sample = draw(units);
    sample.tokens = options_.measure.prompt(sample);
    if (sample.tokens + task_.max_tokens > options_.length) return std::nullopt;
    return sample;
  }

  bool is_short() const { return options_.length < 4096; }
  std::size_t example_words() const { return is_short() ? 20 : 40; }

  RulerSample draw(std::int64_t units) {
    const List example = list_draw(example_words(), is_short() ? 3 : 10, is_short() ? 1 : 3);
    List list = list_draw(static_cast<std::size_t>(units), is_short() ? 6 : 30, is_short() ? 1 : 3);
    RulerSample sample;
    sample.input = fmt::format("{}{} {}\n{}", text_fill(kCommonAsked, {{"context", example.text}}),
                               kCommonPrefix, numbered(example.common),
                               text_fill(kCommonAsked, {{"context", list.text}}));
    sample.prefix = kCommonPrefix;
    sample.outputs = std::move(list.common);
    return sample;
  }

  List list_draw(std::size_t count, int common_repeats, int other_repeats) {
    const std::vector<std::string>& from =
        count <= words_.size() ? words_ : options_.sources.words->many;
    const std::vector<std::size_t> drawn = random_.sample(from.size(), count);
    const auto commons = static_cast<std::ptrdiff_t>(std::min(count, kCommonWords));
    std::vector<std::size_t> all;
    const auto add = [&](std::ptrdiff_t begin, std::ptrdiff_t end, int repeats) {
      for (; repeats > 0; --repeats)
        all.insert(all.end(), drawn.begin() + begin, drawn.begin() + end);
    };
    add(0, commons, common_repeats);
    add(commons, static_cast<std::ptrdiff_t>(count), other_repeats);
    PythonRandom(options_.seed).shuffle(all);
    const auto words_at = [&](auto begin, auto end) {
      std::vector<std::string> words;
      for (; begin != end; ++begin) words.push_back(from[*begin]);
      return words;
    };
    return {numbered(words_at(all.begin(), all.end())),
            words_at(drawn.begin(), drawn.begin() + commons)};
  }

  const RulerTask& task_;
  RulerMakerOptions options_;
  PythonRandom random_;
  std::vector<std::string> words_;
  std::int64_t units_ = 0;
};

class FrequentWordMaker final : public RulerMaker {
 public:
  FrequentWordMaker(const RulerTask& task, const RulerMakerOptions& options)
      : options_(options), random_(options.seed), limit_(options.length - task.max_tokens) {
    if (limit_ < 50 * static_cast<std::int64_t>(kFewestCodedWords)) {
      throw RulerSkip(fmt::format("no prompt fits into {} tokens", options_.length));
    }
    const std::vector<std::string> vocabulary = vocabulary_draw();
    words_ = limit_ / static_cast<std::int64_t>(kCodedLetters);
    while (sample_of(vocabulary, words_).tokens < limit_) words_ += increment();
    words_ -= increment();
  }

  std::optional<RulerSample> next() override {
    const std::vector<std::string> vocabulary = vocabulary_draw();
    for (std::int64_t words = words_; words > 0; words -= increment()) {
      RulerSample sample = sample_of(vocabulary, words);
      if (sample.tokens <= limit_) return sample;
    }
    return std::nullopt;
  }
  std::unique_ptr<RulerMaker> copy() const override {
    return std::make_unique<FrequentWordMaker>(*this);
  }

 private:
  std::int64_t increment() const { return limit_ / 32; }

  std::vector<std::string> vocabulary_draw() {
    const auto size = static_cast<std::size_t>(limit_ / 50);
    std::vector<std::string> drawn;
    std::set<std::string> distinct;
    const auto draw = [&] { distinct.insert(random_.letters(kSmallLetters, kCodedLetters)); };
    for (std::size_t i = 0; i < size; ++i) draw();
    while (distinct.size() < size) draw();
    std::vector<std::string> vocabulary(distinct.begin(), distinct.end());
    PythonRandom(options_.seed).shuffle(vocabulary);
    vocabulary[0] = "...";  // the most frequent one is to be ignored
    return vocabulary;
  }

  /// Word k of n words comes n · k⁻² / ζ(2) times.
  RulerSample sample_of(const std::vector<std::string>& vocabulary, std::int64_t words) const {
    constexpr double kZeta = std::numbers::pi * std::numbers::pi / 6;
    std::vector<std::size_t> all;
    for (std::size_t k = 0; k < vocabulary.size(); ++k) {
      const double share = std::pow(static_cast<double>(k + 1), -2.0);
      const auto count = static_cast<std::size_t>(static_cast<double>(words) * share / kZeta);
      all.insert(all.end(), count, k);
    }
    PythonRandom(options_.seed).shuffle(all);
    std::string context;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i > 0) context += ' ';
      context += vocabulary[all[i]];
    }
    RulerSample sample;
    sample.input = text_fill(kFrequentAsked, {{"context", context}});
    sample.prefix = kFrequentPrefix;
    sample.outputs.assign(vocabulary.begin() + 1, vocabulary.begin() + kFewestCodedWords);
    sample.tokens = options_.measure.prompt(sample);
    return sample;
  }

  RulerMakerOptions options_;
  PythonRandom random_;
  std::int64_t limit_ = 0;  // tokens of a prompt
  std::int64_t words_ = 0;
};

}  // namespace

std::unique_ptr<RulerMaker> common_word_maker(const RulerTask& task,
                                              const RulerMakerOptions& options) {
  return std::make_unique<CommonWordMaker>(task, options);
}

std::unique_ptr<RulerMaker> frequent_word_maker(const RulerTask& task,
                                                const RulerMakerOptions& options) {
  return std::make_unique<FrequentWordMaker>(task, options);
}

}  // namespace lca::eval
