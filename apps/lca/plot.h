#pragma once
/// Plots of quantities over context length: as SVG, and as bars for the terminal.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace lca::cli {

/// One quantity for each of two methods, at the same lengths.
struct Panel {
  std::string title;
  std::vector<double> lca, dense;
  std::function<std::string(double)> text;  ///< of a value
  double tick_base = 10;                    ///< the axis has ticks at its powers
};

/// Panels side by side, both axes logarithmic, readable on light and dark backgrounds.
std::string plot_svg(const std::string& title, const std::string& note,
                     const std::vector<std::int64_t>& lengths, const std::vector<Panel>& panels);

/// Text as SVG spells it.
std::string svg_escape(const std::string& text);
/// A line of text; `kind` is a class of the plot's style.
std::string svg_text(double x, double y, const char* anchor, const char* kind,
                     const std::string& text);

/// Two bars per length, drawn to scale.
std::string plot_bars(const std::vector<std::int64_t>& lengths, const Panel& panel, bool colour);

}  // namespace lca::cli
