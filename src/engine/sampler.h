#pragma once
/// Choosing the next token from the model's logits.

#include <lca/sampling.h>

#include <cstdint>
#include <span>
#include <vector>

namespace lca {

/// Picks tokens one after another. Keeps its working memory, so that only the first pick allocates.
class Sampler {
 public:
  /// Throws Error naming the setting that is out of range.
  explicit Sampler(const Sampling& sampling);

  /// The token at `position`. What is drawn depends on seed and position alone, not on what was
  /// drawn before: a conversation that is taken up again goes on with the same numbers. `history`
  /// is what the repetition penalty looks at, newest last; ids outside the vocabulary are skipped.
  /// Throws Error where a logit is NaN.
  std::int32_t pick(std::span<const float> logits, std::span<const std::int32_t> history,
                    std::int64_t position);

 private:
  struct Candidate {
    double weight;  // of the likeliest token: 1
    std::int32_t id;
  };

  std::span<const float> penalise(std::span<const float> logits,
                                  std::span<const std::int32_t> history);
  void collect(std::span<const float> scores, float best);
  void keep_top_p();
  std::int32_t draw(std::int64_t position);

  Sampling sampling_;
  std::vector<float> scores_;
  std::vector<float> values_;
  std::vector<Candidate> candidates_;
};

}  // namespace lca
