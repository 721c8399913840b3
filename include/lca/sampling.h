#pragma once
/// How the next token is chosen.

#include <cstdint>

namespace lca {

/// Temperature 0 is greedy: the likeliest token, the lowest id on ties. The filters apply in the
/// order of the fields; the same seed gives the same text on every machine.
struct Sampling {
  double repetition_penalty = 1;        ///< above 1: tokens seen lately become less likely
  std::int64_t repetition_window = 64;  ///< how many tokens are "lately"; 0: all
  double temperature = 0;
  std::int64_t top_k = 0;  ///< 0: off
  double top_p = 1;
  double min_p = 0;
  std::uint64_t seed = 0;

  /// Throws Error naming the first field that is out of range.
  void validate() const;
};

}  // namespace lca
