#pragma once
/// A run over prompts: what is left to ask, and scores as replies come.

#include "eval/chat_prompt.h"
#include "eval/results_file.h"
#include "eval/ruler/report.h"
#include "eval/runner.h"

#include <cstddef>
#include <future>
#include <map>
#include <string>
#include <vector>

namespace lca::eval {

class RulerRun {
 public:
  /// Both must outlive the run.
  RulerRun(RulerPrompts& prompts, const ChatPrompt& chat)
      : prompts_(prompts), chat_(chat), scores_(prompts), missing_(prompts.count(), true) {}

  /// Takes over the samples of a results file, and adds to it from now on. Samples that are not
  /// asked for stay in the file unused. Throws Error for a line of another kind.
  void take_up(ResultsFile& results);

  /// Prompts without a reply, in their order.
  std::vector<std::size_t> left() const;
  /// A prompt; the one after it is then made in another thread. Call it in the order of `left`.
  EvalPrompt make(std::size_t index);
  void done(std::size_t index, const EvalReply& reply);

  const RulerScores& scores() const { return scores_; }
  /// How many samples were in the results file.
  std::size_t reused() const { return reused_; }

 private:
  struct Asked {
    std::string hash;
    std::vector<std::string> outputs;
    RulerScore score = RulerScore::all;
    std::size_t sample = 0;
  };

  struct Made {
    EvalPrompt prompt;
    Asked asked;
  };
  Made make_now(std::size_t index);
  void make_ahead(std::size_t after);

  RulerPrompts& prompts_;
  const ChatPrompt& chat_;
  RulerScores scores_;
  std::vector<bool> missing_;
  std::map<std::size_t, Asked> asked_;
  ResultsFile* results_ = nullptr;
  std::size_t reused_ = 0;
  std::size_t ahead_index_ = 0;
  std::future<Made> ahead_;  // the last member: it ends before what it uses
};

}  // namespace lca::eval
