#include "eval/ruler/report.h"

#include <algorithm>
#include <map>

namespace lca::eval {
namespace {

constexpr double kUnknownScore = -1;

Interval percent(const Interval& interval) { return {100 * interval.low, 100 * interval.high}; }

/// In the order of samples, so that a run that was taken up again gives the same numbers.
std::vector<double> known_scores(const std::vector<double>& scores) {
  std::vector<double> known;
  std::ranges::copy_if(scores, std::back_inserter(known), [](double each) { return each >= 0; });
  return known;
}

}  // namespace

RulerScores::RulerScores(const RulerPrompts& prompts) : prompts_(prompts) {
  for (const RulerPart& part : prompts.parts()) scores_.emplace_back(part.samples, kUnknownScore);
}

void RulerScores::add(std::size_t index, double score) {
  const RulerPart& part = prompts_.part_of(index);
  scores_[static_cast<std::size_t>(&part - prompts_.parts().data())][index - part.first] = score;
}

std::vector<RulerRow> RulerScores::rows() const {
  std::vector<RulerRow> rows;
  for (std::size_t i = 0; i < scores_.size(); ++i) {
    const RulerPart& part = prompts_.parts()[i];
    const std::vector<double> known = known_scores(scores_[i]);
    RulerRow row{part.task, part.length, known.size(), 0, {}, part.skipped};
    if (!known.empty()) {
      row.score = 100 * mean_of(known);
      row.interval = percent(score_interval(known));
    } else if (row.skipped.empty()) {
      row.skipped = "interrupted";
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<RulerMean> RulerScores::means() const {
  std::map<std::int64_t, std::vector<std::vector<double>>> by_length;
  for (std::size_t i = 0; i < scores_.size(); ++i) {
    std::vector<double> known = known_scores(scores_[i]);
    if (!known.empty()) by_length[prompts_.parts()[i].length].push_back(std::move(known));
  }
  std::vector<RulerMean> means;
  for (const auto& [length, groups] : by_length) {
    RulerMean mean{length, groups.size(), 0, {}};
    for (const auto& group : groups) {
      mean.score += 100 * mean_of(group) / static_cast<double>(groups.size());
    }
    // Of one task it is that task's own; of several, tasks without a miss add no width.
    mean.interval =
        percent(groups.size() == 1 ? score_interval(groups.front()) : mean_interval(groups));
    means.push_back(mean);
  }
  return means;
}

double RulerScores::mean() const {
  std::vector<double> all;
  for (const auto& scores : scores_)
    std::ranges::copy(known_scores(scores), std::back_inserter(all));
  return 100 * mean_of(all);
}

}  // namespace lca::eval
