#include "engine/stop.h"

#include "core/error.h"

#include <algorithm>
#include <utility>

namespace lca {
namespace {

/// The longest suffix of `text` that is a proper prefix of `stop`.
std::size_t withheld(std::string_view text, std::string_view stop) {
  std::size_t length = std::min(text.size(), stop.size() - 1);
  while (length > 0 && !text.ends_with(stop.substr(0, length))) --length;
  return length;
}

}  // namespace

StopFilter::StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    if (stop.empty()) fail_input("a stop string is empty; it would stop everything");
  }
}

std::string StopFilter::push(std::string_view piece) {
  if (stopped_) return {};
  pending_ += piece;

  // The stop string that is complete first wins, and of two that end together the longer one, so
  // that the result does not depend on how the text was split into pieces.
  std::size_t first = 0;
  std::size_t end = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t at = pending_.find(stop);
    if (at == std::string::npos) continue;
    if (at + stop.size() < end || (at + stop.size() == end && at < first)) {
      first = at;
      end = at + stop.size();
    }
  }
  if (end != std::string::npos) {
    stopped_ = true;
    pending_.resize(first);
    return std::exchange(pending_, {});
  }

  std::size_t keep = 0;
  for (const std::string& stop : stops_) keep = std::max(keep, withheld(pending_, stop));
  std::string shown = pending_.substr(0, pending_.size() - keep);
  pending_.erase(0, shown.size());
  return shown;
}

std::string StopFilter::finish() { return std::exchange(pending_, {}); }

}  // namespace lca
