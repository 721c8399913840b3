#include "eval/ruler/run.h"

#include "core/error.h"
#include "core/text.h"
#include "eval/ruler/score.h"

#include <optional>
#include <system_error>
#include <tuple>
#include <utility>

namespace lca::eval {

void RulerRun::take_up(ResultsFile& results) {
  results_ = &results;
  std::map<std::tuple<std::string, std::int64_t, std::size_t>, std::size_t> places;
  for (const RulerPart& part : prompts_.parts()) {
    for (std::size_t i = part.first; i < part.first + part.samples; ++i) {
      places[{part.task, part.length, prompts_.sample_of(i)}] = i;
    }
  }
  for (const Json& row : results.rows()) {
    try {
      const auto score = row.at("score").get<double>();
      const auto place =
          places.find({row.at("task").get<std::string>(), row.at("length").get<std::int64_t>(),
                       row.at("index").get<std::size_t>()});
      if (!(score >= 0 && score <= 1)) fail_input("a score");
      if (place == places.end()) continue;
      if (missing_[place->second]) ++reused_;
      missing_[place->second] = false;
      scores_.add(place->second, score);
    } catch (const std::exception&) {
      fail_input("a line of the results file is not one of ruler: {}",
                 text_printable(row.dump(-1, ' ', false, Json::error_handler_t::replace)));
    }
  }
}

std::vector<std::size_t> RulerRun::left() const {
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < missing_.size(); ++i) {
    if (missing_[i]) which.push_back(i);
  }
  return which;
}

RulerRun::Made RulerRun::make_now(std::size_t index) {
  RulerPrompt prompt = prompts_.at(index);
  RulerSample& sample = prompt.sample;
  if (sample.ids.empty()) sample.ids = chat_.encode(sample.input, sample.prefix);
  return {{std::move(sample.ids), prompt.max_tokens},
          {text_hash(sample.input + sample.prefix), std::move(sample.outputs), prompt.score,
           prompt.index}};
}

void RulerRun::make_ahead(std::size_t after) {
  ahead_index_ = after + 1;
  while (ahead_index_ < missing_.size() && !missing_[ahead_index_]) ++ahead_index_;
  if (ahead_index_ == missing_.size()) return;
  try {
    ahead_ =
        std::async(std::launch::async, [this, index = ahead_index_] { return make_now(index); });
  } catch (const std::system_error&) {
    // Without a thread it is made when it is asked for.
  }
}

EvalPrompt RulerRun::make(std::size_t index) {
  std::optional<Made> made;
  if (ahead_.valid()) {
    made = ahead_.get();
    if (ahead_index_ != index) made.reset();
  }
  if (!made) made = make_now(index);
  make_ahead(index);
  asked_.insert_or_assign(index, std::move(made->asked));
  return std::move(made->prompt);
}

void RulerRun::done(std::size_t index, const EvalReply& reply) {
  const Asked asked = asked_.extract(index).mapped();
  const double score = ruler_score(reply.text, asked.outputs, asked.score);
  scores_.add(index, score);
  missing_[index] = false;
  if (results_ == nullptr) return;
  const RulerPart& part = prompts_.part_of(index);
  results_->add({{"task", part.task},
                 {"length", part.length},
                 {"index", asked.sample},
                 {"score", score},
                 {"outputs", asked.outputs},
                 {"reply", reply.text},
                 {"prompt", asked.hash},
                 {"prompt_tokens", reply.prompt_tokens}});
}

}  // namespace lca::eval
