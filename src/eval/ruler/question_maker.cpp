/// Question answering: the documents that hold the answer among others.
/// Wordings: NVIDIA/RULER scripts/data/synthetic/constants.py and qa.py (Apache-2.0).

#include "eval/ruler/fit.h"
#include "eval/ruler/python_random.h"

#include <fmt/format.h>

#include <algorithm>

namespace lca::eval {
namespace {

constexpr std::string_view kQuestionAsked =
    "Answer the question based on the given documents. Only give me the answer and do not output "
    "any other words.\n\nThe following are given documents.\n\n{context}\n\nAnswer the question "
    "based on the given documents. Only give me the answer and do not output any other words.\n\n"
    "Question: {query}";
constexpr std::string_view kQuestionPrefix = " Answer:";
constexpr std::int64_t kDocumentIncrement = 10;

class QuestionMaker final : public RulerMaker {
 public:
  QuestionMaker(const RulerTask& task, const RulerMakerOptions& options)
      : task_(task), options_(options), random_(options.seed) {
    const bool squad = task_.questions == RulerQuestions::squad;
    set_ = squad ? options_.sources.squad : options_.sources.hotpotqa;
    if (set_ == nullptr) {
      throw RulerSkip(fmt::format("no file of {} was given", squad ? "SQuAD" : "HotpotQA"));
    }
    std::optional<RulerSample> first = draw(0, kDocumentIncrement);
    std::int64_t upper = kDocumentIncrement * 2;
    if (first) {
      const double per_document = static_cast<double>(options_.measure.prompt(*first)) /
                                  static_cast<double>(kDocumentIncrement);
      upper = std::max(upper, static_cast<std::int64_t>(static_cast<double>(options_.length) /
                                                        per_document * 3));
    }
    units_ = units_search(kDocumentIncrement, upper, [&](std::int64_t units) {
               return attempt(0, units).has_value();
             }).value_or(kDocumentIncrement);
  }

  /// Sample i is question i; one that does not fit is left out.
  std::optional<RulerSample> next() override {
    while (next_ < set_->questions.size()) {
      const std::size_t index = next_++;
      std::optional<RulerSample> sample = units_fit(
          units_, kDocumentIncrement, [&](std::int64_t units) { return attempt(index, units); });
      if (sample) return sample;
    }
    return std::nullopt;
  }
  std::unique_ptr<RulerMaker> copy() const override {
    return std::make_unique<QuestionMaker>(*this);
  }

 private:
  std::optional<RulerSample> attempt(std::size_t index, std::int64_t units) {
    std::optional<RulerSample> sample = draw(index, units);
    if (!sample) return sample;
    sample->tokens = options_.measure.prompt(*sample);
    if (sample->tokens + task_.max_tokens > options_.length) return std::nullopt;
    return sample;
  }

  std::optional<RulerSample> draw(std::size_t index, std::int64_t units) {
    const QaItem& question = set_->questions[index];
    const auto count = static_cast<std::size_t>(units);
    std::vector<std::size_t> chosen = question.documents;
    if (count >= set_->documents.size()) {
      chosen.clear();
      for (std::size_t i = 0; i < count; ++i) chosen.push_back(i % set_->documents.size());
    } else if (count < chosen.size()) {
      return std::nullopt;
    } else if (count - chosen.size() > question.related.size()) {
      chosen.insert(chosen.end(), question.related.begin(), question.related.end());
      std::vector<bool> taken(set_->documents.size());
      for (const std::size_t each : chosen) taken[each] = true;
      std::vector<std::size_t> others;
      for (std::size_t i = 0; i < taken.size(); ++i) {
        if (!taken[i]) others.push_back(i);
      }
      const std::size_t wanted = count - chosen.size();
      if (wanted > others.size()) return std::nullopt;
      for (const std::size_t i : random_.sample(others.size(), wanted)) {
        chosen.push_back(others[i]);
      }
    } else {
      const std::size_t wanted = count - chosen.size();
      for (const std::size_t i : random_.sample(question.related.size(), wanted)) {
        chosen.push_back(question.related[i]);
      }
    }
    PythonRandom(options_.seed).shuffle(chosen);
    std::string context;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      context += fmt::format("{}Document {}:\n{}", i == 0 ? "" : "\n\n", i + 1,
                             set_->documents[chosen[i]]);
    }
    RulerSample sample;
    sample.input = text_fill(kQuestionAsked, {{"context", context}, {"query", question.text}});
    sample.prefix = kQuestionPrefix;
    sample.outputs = question.answers;
    return sample;
  }

  const RulerTask& task_;
  RulerMakerOptions options_;
  std::shared_ptr<const QuestionSet> set_;
  PythonRandom random_;
  std::size_t next_ = 0;
  std::int64_t units_ = 0;
};

}  // namespace

std::unique_ptr<RulerMaker> question_maker(const RulerTask& task,
                                           const RulerMakerOptions& options) {
  return std::make_unique<QuestionMaker>(task, options);
}

}  // namespace lca::eval
