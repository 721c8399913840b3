#pragma once
/// Choosing the next token from the model's logits.

#include <lca/sampling.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lca {

/// Samples tokens one by one. Keeps its scratch memory, so that only the first call allocates.
class Sampler {
 public:
  /// Throws Error naming the setting that is out of range.
  explicit Sampler(const Sampling& sampling);

  /// The token at `position`. The random number depends on seed and position alone, not on earlier
  /// draws: a saved conversation continues with the same numbers. `history` holds the tokens for
  /// the repetition penalty, newest last; ids outside the vocabulary are skipped. Throws Error if a
  /// logit is NaN.
  std::int32_t pick(std::span<const float> logits, std::span<const std::int32_t> history,
                    std::int64_t position);

 private:
  struct Candidate {
    double weight;  // relative to the likeliest token, whose weight is 1
    std::int32_t id;
  };

  std::span<const float> penalise(std::span<const float> logits,
                                  std::span<const std::int32_t> history);
  std::int32_t likeliest(std::span<const float> scores);
  float kth_score(std::span<const float> scores, std::size_t k);
  void collect(std::span<const float> scores, float best);
  void keep_top_p();
  std::int32_t draw(std::int64_t position);

  Sampling sampling_;
  std::vector<float> scores_;
  std::vector<float> largest_;  // of each block of scores
  std::vector<float> values_;
  std::vector<Candidate> candidates_;
  std::vector<Candidate> sorted_;
};

}  // namespace lca
