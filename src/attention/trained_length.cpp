#include "attention/trained_length.h"

#include "attention/layout.h"

#include <algorithm>

namespace lca {

std::int64_t positions_needed(const Settings& settings, std::int64_t n) {
  if (n < 1 || settings.positions == Positions::token) return n;
  const Layout layout(settings);
  const std::int64_t groups = layout.groups(n);
  const std::int64_t last = layout.entries(n);
  if (groups == 0) return last;
  // Entries grow token by token and fall by g − 1 with each group: the top is the prefix before the
  // last group was condensed, which has group_exit tokens.
  return std::max(last, layout.entries(layout.group_exit(groups - 1)));
}

std::int64_t positions_needed(std::span<const Settings> layers, std::int64_t n) {
  std::int64_t most = 0;
  for (const Settings& layer : layers) most = std::max(most, positions_needed(layer, n));
  return most;
}

std::int64_t longest_context(const Settings& settings, std::int64_t positions) {
  const Layout layout(settings);
  if (settings.positions == Positions::token || layout.method == MethodKind::dense) {
    return positions;
  }
  const std::int64_t exact = layout.sink + layout.window;
  if (layout.method == MethodKind::window) {
    return positions < exact ? positions : kEndlessContext;
  }
  // m groups stand beside at most s + w + g − 1 exact tokens.
  const std::int64_t groups = positions - (exact + layout.group - 1);
  if (groups < 0) return positions;
  // One group more fits as long as the window has not refilled: for g − 1 tokens after it.
  if (groups + 2 > (kEndlessContext - exact) / layout.group) return kEndlessContext;
  return exact + (groups + 2) * layout.group - 2;
}

std::int64_t longest_context(std::span<const Settings> layers, std::int64_t positions) {
  std::int64_t longest = kEndlessContext;
  for (const Settings& layer : layers) {
    longest = std::min(longest, longest_context(layer, positions));
  }
  return longest;
}

}  // namespace lca
