#pragma once
/// The likeliest token of a row of logits.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace lca {

/// The index of the largest value, the lowest of equal ones; −1 where a value is NaN.
inline std::int32_t likeliest_token(std::span<const float> logits) {
  constexpr std::size_t kBlock = 64;
  std::size_t best = 0;
  for (std::size_t first = 0; first < logits.size(); first += kBlock) {
    const auto block = logits.subspan(first, std::min(kBlock, logits.size() - first));
    // Most blocks hold nothing larger and are done with in a few vectors.
    const float largest = logits[best];
    bool looks = false;
    for (const float value : block) looks |= !(value <= largest);
    if (!looks) continue;
    for (std::size_t i = first; i < first + block.size(); ++i) {
      if (std::isnan(logits[i])) return -1;
      if (logits[i] > logits[best]) best = i;
    }
  }
  return static_cast<std::int32_t>(best);
}

}  // namespace lca
