#pragma once
/// Rotary position embeddings: frequencies of every kind, tables of cosines and sines, and the
/// rotation.

#include "formats/model_config.h"

#include <cstdint>
#include <vector>

namespace lca {

/// RoPE of one model. Angles are computed in double, so that they stay exact at positions in the
/// millions; only the final cosines and sines are rounded to float.
class Rope {
 public:
  /// `config` must be valid.
  explicit Rope(const RopeConfig& config);

  /// Cosines and sines of positions first … first + count − 1, each [count, width/2], times the
  /// multiplier. `length` is the number of tokens of the prompt they belong to.
  void table(std::int64_t first, std::int64_t count, std::int64_t length, float* cos,
             float* sin) const;
  /// The factor of cosines and sines.
  double multiplier(std::int64_t length) const;
  /// Radians per position of each of the width/2 pairs.
  std::vector<double> frequencies(std::int64_t length) const;
  /// Whether tables of two lengths may differ.
  bool depends_on_length() const;
  /// Number of rotated channels.
  std::int64_t width() const { return config_.width; }

 private:
  /// The frequencies of a length where they are precomputed; else null.
  const std::vector<double>* fixed_frequencies(std::int64_t length) const;

  RopeConfig config_;
  double multiplier_ = 1;
  std::vector<double> frequencies_;       // of lengths up to the original one, or of all
  std::vector<double> long_frequencies_;  // longrope: beyond it
};

/// Rotates the first `width` floats at each (row, head) in place; row r by row r of the tables. The
/// order of the channels does not change.
void rope_apply(float* rows, std::int64_t count, std::int64_t heads, std::int64_t stride_row,
                std::int64_t stride_head, std::int64_t width, RopeLayout layout, const float* cos,
                const float* sin);

}  // namespace lca
