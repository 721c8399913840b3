#pragma once
/// The likeliest token of a row of logits.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace lca {

/// The index of the largest value, the lowest of equal ones; −1 where a value is NaN.
inline std::int32_t likeliest_token(std::span<const float> logits) {
  std::size_t best = 0;
  bool has_nan = false;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    has_nan |= std::isnan(logits[i]);
    if (logits[i] > logits[best]) best = i;
  }
  return has_nan ? -1 : static_cast<std::int32_t>(best);
}

}  // namespace lca
