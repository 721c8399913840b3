#pragma once
/// Needles in a haystack: numbers hidden in long text at chosen depths, asked for at its end or
/// before it. Wording and answer prefix are those of RULER's NIAH tasks (NVIDIA/RULER).

#include <lca/settings.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/chat_prompt.h"
#include "eval/haystack.h"

namespace lca::eval {

/// Where a needle is when the first token of the answer is predicted: no token of it in a condensed
/// group (or, method `window`, forgotten); some, but not its last; its last one too. Of a model
/// whose layers differ: the first and the third where that holds in all of them, else the second.
enum class Place : std::uint8_t { inside, straddling, outside };
std::string_view place_name(Place place);

/// Of a needle at tokens `begin` … `end` − 1 of a prompt of `prompt` tokens.
Place place_of(std::span<const Settings> layers, std::int64_t begin, std::int64_t end,
               std::int64_t prompt);

/// Where the question is: before the haystack, or after it.
enum class Question : std::uint8_t { first, last };
std::string_view question_name(Question question);

struct NeedleOptions {
  std::vector<std::int64_t> lengths = {4096, 8192};  ///< most tokens of prompt and reply
  std::vector<std::int64_t> keys = {1};              ///< needles in a haystack; one is asked for
  std::vector<double> depths = {0, 0.25, 0.5, 0.75, 1};
  std::vector<Question> questions = {Question::last};
  std::int64_t samples = 8;  ///< of each combination
  std::uint64_t seed = 0;
  bool prefix = true;  ///< the reply begins with RULER's answer prefix

  /// Throws Error naming the first field that is out of range.
  void validate() const;
};

/// The tokens a reply may have.
inline constexpr std::int64_t kNeedleReply = 16;

/// What one sample is; the same case is the same prompt, whatever else is measured.
struct NeedleCase {
  std::int64_t length = 0;
  std::int64_t keys = 0;
  double depth = 0;
  Question question = Question::last;
  std::int64_t sample = 0;

  bool operator==(const NeedleCase&) const = default;
};

struct NeedlePrompt {
  std::vector<std::int32_t> ids;
  std::string key, value;
  std::int64_t begin = 0, end = 0;  ///< tokens of the needle that is asked for
};

/// Makes the prompts. Immutable and thread-safe.
class NeedleTask {
 public:
  /// `pool`: threads that encode the texts.
  NeedleTask(const Tokenizer& tokenizer, ChatTemplate chat, std::span<const std::string> texts,
             NeedleOptions options, ThreadPool* pool = nullptr);

  const NeedleOptions& options() const { return options_; }
  const Haystack& haystack() const { return haystack_; }
  /// Number of cases, ordered so that the beginning of a run has samples of all combinations.
  std::size_t count() const;
  NeedleCase at(std::size_t index) const;
  /// Prompt and `kNeedleReply` tokens together are at most as long as the case says. Throws Error
  /// (bad input) where that is too short.
  NeedlePrompt make(const NeedleCase& sample) const;

 private:
  NeedleOptions options_;
  ChatPrompt prompt_;
  Haystack haystack_;
};

/// Whether the reply holds the value.
bool needle_hit(std::string_view reply, std::string_view value);

/// Hits among samples of one combination that are in the same place.
struct NeedleRow {
  std::int64_t length = 0;
  std::int64_t keys = 0;
  double depth = 0;
  Place place = Place::inside;
  Question question = Question::last;
  std::int64_t hits = 0;
  std::int64_t samples = 0;
};

/// Counts samples; rows are ordered by length, keys, question, depth and place.
class NeedleTable {
 public:
  void add(const NeedleCase& sample, Place place, bool hit);
  const std::vector<NeedleRow>& rows() const { return rows_; }

 private:
  std::vector<NeedleRow> rows_;
};

}  // namespace lca::eval
