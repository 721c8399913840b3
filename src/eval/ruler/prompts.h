#pragma once
/// All prompts of a run in one order, made when they are asked for.

#include "eval/ruler/prompts_file.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lca::eval {

/// The samples of one task at one length: prompts `first` … `first + samples − 1`.
struct RulerPart {
  std::string task;
  std::int64_t length = 0;
  std::size_t first = 0, samples = 0;
  std::string skipped;  ///< why there are none
};

/// What to make: all tasks at all lengths, the shortest first.
struct RulerPlan {
  std::vector<const RulerTask*> tasks;
  std::vector<std::int64_t> lengths;
  std::size_t samples = 0;
  RulerMakerOptions options;  ///< its length is not looked at
};

class RulerPrompts {
 public:
  /// Finds for each part how much text fits; `progress` is called before each.
  RulerPrompts(const RulerPlan& plan, const std::function<void(const RulerPart&)>& progress = {});
  /// Prompts of a file in the order of their first ones, at most `samples` of each part.
  RulerPrompts(std::vector<RulerPrompt> prompts, std::size_t samples);

  const std::vector<RulerPart>& parts() const { return parts_; }
  std::size_t count() const { return count_; }
  /// The part that holds a prompt.
  const RulerPart& part_of(std::size_t index) const;
  /// Which sample of its part it is: in a file, its "index".
  std::size_t sample_of(std::size_t index) const;
  /// A prompt. Quick in ascending order; otherwise its part begins again.
  RulerPrompt at(std::size_t index);

 private:
  struct Stream {
    const RulerTask* task = nullptr;
    std::unique_ptr<RulerMaker> start, now;
    std::size_t next = 0;  // sample that `now` makes
  };

  std::vector<RulerPart> parts_;
  std::vector<Stream> streams_;       // of made prompts: one for each part
  std::vector<RulerPrompt> prompts_;  // of a file
  std::size_t count_ = 0;
};

}  // namespace lca::eval
