#pragma once
/// Prompts of one task at one length, one after the other: at the same seed, with the same lists
/// and tokenizer, those of RULER's own scripts.

#include "eval/ruler/essay.h"
#include "eval/ruler/questions.h"
#include "eval/ruler/tasks.h"
#include "eval/ruler/words.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lca::eval {

/// What is asked and expected.
struct RulerSample {
  std::string input;   ///< what the user says
  std::string prefix;  ///< what the reply begins with; what follows it is scored
  std::vector<std::string> outputs;
  std::int64_t tokens = 0;        ///< of the whole prompt
  std::vector<std::int32_t> ids;  ///< of the prompt, where counting it gave them
};

/// Where texts come from; null: there is none, and tasks that need it are skipped.
struct RulerSources {
  std::shared_ptr<const WordLists> words;
  std::shared_ptr<const KeyWords> keys;  ///< of `words`
  std::shared_ptr<const Essay> essay;
  std::shared_ptr<const QuestionSet> squad, hotpotqa;
};

/// How texts are counted in tokens.
struct RulerMeasure {
  /// A prompt as the model reads it, with what its chat format adds; may set its `ids`.
  std::function<std::int64_t(RulerSample&)> prompt;
  /// A text by itself.
  std::function<std::int64_t(const std::string&)> text;
};

struct RulerMakerOptions {
  std::int64_t length = 0;  ///< most tokens of a prompt and its reply together
  std::uint32_t seed = 42;
  RulerSources sources;
  RulerMeasure measure;
};

class RulerMaker {
 public:
  virtual ~RulerMaker() = default;
  /// The next sample; nothing where there is no other, or none fits.
  virtual std::optional<RulerSample> next() = 0;
  /// Another that makes the same samples from here on.
  virtual std::unique_ptr<RulerMaker> copy() const = 0;
};

/// A maker, or why there is none.
struct RulerCell {
  std::unique_ptr<RulerMaker> maker;
  std::string skipped;
};

/// Finds how much text fits and makes nothing else yet.
RulerCell ruler_cell(const RulerTask& task, const RulerMakerOptions& options);

}  // namespace lca::eval
