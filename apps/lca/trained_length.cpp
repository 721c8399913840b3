#include "trained_length.h"

#include "attention/trained_length.h"
#include "terminal.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace lca::cli {
namespace {

/// Rounded down to three digits: 115262 becomes 115000.
std::int64_t rounded_down(std::int64_t count) {
  std::int64_t unit = 1;
  while (count / unit >= 1000) unit *= 10;
  return count / unit * unit;
}

/// "g 16, w 1024" of the layer that limits a context of `trained` positions.
std::string limit_text(std::int64_t trained, std::span<const Settings> layers) {
  const auto limit = std::ranges::min_element(
      layers, {}, [&](const Settings& layer) { return longest_context(layer, trained); });
  std::string text = limit->method == MethodKind::window
                         ? fmt::format("w {}", limit->window)
                         : fmt::format("g {}, w {}", limit->group, limit->window);
  if (std::ranges::count(layers, *limit) < std::ssize(layers)) text += " of its narrowest layer";
  return text;
}

}  // namespace

std::string trained_text(std::int64_t trained, std::span<const Settings> layers) {
  if (trained <= 0 || layers.empty()) return "not known";
  std::string text = fmt::format("trained for {} tokens", count_text(trained));
  const std::int64_t longest = longest_context(layers, trained);
  if (longest == trained) return text;
  const std::string length = longest == kEndlessContext
                                 ? "any number of"
                                 : fmt::format("about {}", count_text(rounded_down(longest)));
  return text + fmt::format("; {} tokens with {}", length, limit_text(trained, layers));
}

nlohmann::ordered_json longest_in_range_json(std::int64_t trained,
                                             std::span<const Settings> layers) {
  if (trained <= 0) return {};
  const std::int64_t longest = longest_context(layers, trained);
  return longest == kEndlessContext ? nlohmann::ordered_json() : nlohmann::ordered_json(longest);
}

void ContextWarning::check(std::int64_t length) {
  if (trained_ <= 0 || !given_.empty()) return;
  const std::int64_t needed = positions_needed(layers_, length);
  if (needed <= trained_) return;
  const std::int64_t longest = longest_context(layers_, trained_);
  std::string text;
  if (longest == trained_) {
    text = fmt::format("{} tokens are more than the {} this model was trained for; {}", length,
                       trained_, consequence_);
    std::vector<Settings> entries = layers_;
    for (Settings& layer : entries) layer.positions = Positions::entry;
    const std::int64_t further = longest_context(entries, trained_);
    if (further == kEndlessContext) {
      text += " (--positions entry stays within them at any length)";
    } else if (further > trained_) {
      text += fmt::format(" (--positions entry stays within them up to {} tokens)", further);
    }
  } else {
    text = fmt::format(
        "{} tokens take {} positions, more than the {} this model was trained for, which reach for "
        "{} tokens; {}",
        length, needed, trained_, longest, consequence_);
  }
  given_.push_back(text);
  print_note("lca: warning: " + text);
}

}  // namespace lca::cli
