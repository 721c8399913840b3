#include "eval/ruler/prompts.h"

#include "core/error.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace lca::eval {
namespace {

/// How many of `wanted` samples there are. Only questions run out.
std::size_t samples_count(const RulerTask& task, const RulerMaker& maker, std::size_t wanted) {
  if (task.family != RulerFamily::questions) return wanted;
  const std::unique_ptr<RulerMaker> tried = maker.copy();
  std::size_t count = 0;
  while (count < wanted && tried->next()) ++count;
  return count;
}

}  // namespace

RulerPrompts::RulerPrompts(const RulerPlan& plan,
                           const std::function<void(const RulerPart&)>& progress) {
  std::vector<std::int64_t> lengths = plan.lengths;
  std::ranges::sort(lengths);
  RulerMakerOptions options = plan.options;
  for (const std::int64_t length : lengths) {
    options.length = length;
    for (const RulerTask* task : plan.tasks) {
      RulerPart part{std::string(task->name), length, count_, 0, {}};
      if (progress) progress(part);
      RulerCell cell = ruler_cell(*task, options);
      part.skipped = std::move(cell.skipped);
      if (cell.maker) part.samples = samples_count(*task, *cell.maker, plan.samples);
      count_ += part.samples;
      parts_.push_back(std::move(part));
      streams_.push_back({task, std::move(cell.maker), nullptr, 0});
    }
  }
}

RulerPrompts::RulerPrompts(std::vector<RulerPrompt> prompts, std::size_t samples) {
  for (const RulerPrompt& prompt : prompts) {
    const auto same = [&](const RulerPart& part) {
      return part.task == prompt.task && part.length == prompt.length;
    };
    if (std::ranges::none_of(parts_, same))
      parts_.push_back({prompt.task, prompt.length, 0, 0, {}});
  }
  for (RulerPart& part : parts_) {
    part.first = prompts_.size();
    for (RulerPrompt& prompt : prompts) {
      if (part.samples == samples) break;
      if (part.task != prompt.task || part.length != prompt.length) continue;
      prompts_.push_back(std::move(prompt));
      prompt.length = 0;  // taken: no part has this length
      ++part.samples;
    }
  }
  count_ = prompts_.size();
}

const RulerPart& RulerPrompts::part_of(std::size_t index) const {
  const auto after = std::ranges::find_if(
      parts_, [&](const RulerPart& part) { return index < part.first + part.samples; });
  if (after == parts_.end()) fail_internal("prompt {} of {}", index, count_);
  return *after;
}

std::size_t RulerPrompts::sample_of(std::size_t index) const {
  return prompts_.empty() ? index - part_of(index).first : prompts_.at(index).index;
}

RulerPrompt RulerPrompts::at(std::size_t index) {
  if (!prompts_.empty()) return prompts_.at(index);
  const RulerPart& part = part_of(index);
  Stream& stream = streams_[static_cast<std::size_t>(&part - parts_.data())];
  const std::size_t sample = index - part.first;
  if (stream.now == nullptr || sample < stream.next) {
    stream.now = stream.start->copy();
    stream.next = 0;
  }
  std::optional<RulerSample> made;
  for (; stream.next <= sample; ++stream.next) {
    made = stream.now->next();
    if (!made) {
      fail_input("sample {} of {} does not fit into {} tokens; leave out that length", stream.next,
                 part.task, part.length);
    }
  }
  if (stream.next == part.samples) stream.now.reset();
  const RulerTask& task = *stream.task;
  return {part.task, part.length, sample, task.max_tokens, task.score, std::move(*made)};
}

}  // namespace lca::eval
