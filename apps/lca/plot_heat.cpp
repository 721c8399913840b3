#include "plot_heat.h"

#include "plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lca::cli {
namespace {

// All in pixels.
constexpr double kCellWidth = 66, kCellHeight = 30, kHeatLeft = 78, kHeatTop = 92;
constexpr double kHeatBottom = 66, kHeatGap = 34, kHeatMargin = 20;

constexpr const char* kHeatStyle = R"(<style>
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #57606a; }
.title { font-size: 16px; font-weight: 600; fill: #1f2328; }
.panel { font-size: 13px; font-weight: 600; fill: #1f2328; }
.page { fill: #ffffff; }
.none { fill: #eaeef2; }
.frame { fill: none; stroke: #1f2328; stroke-width: 1.5; }
.dark { fill: #1f2328; } .light { fill: #ffffff; }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1; } .title, .panel { fill: #f0f6fc; }
  .page { fill: #0d1117; } .none { fill: #21262d; } .frame { stroke: #f0f6fc; }
  .dark { fill: #1f2328; } .light { fill: #ffffff; }
}
</style>
)";

/// From orange (0) through a pale grey to blue (1): told apart by people who do not see red and
/// green, and by brightness in print.
std::string heat_colour(double share) {
  constexpr double kLow[] = {196, 81, 10}, kMiddle[] = {240, 236, 228}, kHigh[] = {9, 82, 178};
  const double* from = share < 0.5 ? kLow : kMiddle;
  const double* to = share < 0.5 ? kMiddle : kHigh;
  const double way = share < 0.5 ? share * 2 : share * 2 - 1;
  const auto mixed = [&](int i) { return std::lround(from[i] + (to[i] - from[i]) * way); };
  return fmt::format("#{:02x}{:02x}{:02x}", mixed(0), mixed(1), mixed(2));
}

std::string heat_map(const HeatMap& map, double left, const std::string& column_label) {
  const double x0 = left + kHeatLeft;
  std::string svg = svg_text(x0, kHeatTop - 30, "start", "panel", map.title);
  for (std::size_t c = 0; c < map.columns.size(); ++c) {
    svg += svg_text(x0 + (static_cast<double>(c) + 0.5) * kCellWidth, kHeatTop - 8, "middle", "",
                    map.columns[c]);
  }
  for (std::size_t r = 0; r < map.rows.size(); ++r) {
    const double y = kHeatTop + static_cast<double>(r) * kCellHeight;
    svg += svg_text(x0 - 8, y + kCellHeight / 2 + 4, "end", "", map.rows[r]);
    for (std::size_t c = 0; c < map.columns.size(); ++c) {
      const HeatCell& cell = map.cells[r][c];
      const double x = x0 + static_cast<double>(c) * kCellWidth;
      const std::string paint =
          cell.known ? fmt::format("fill=\"{}\"", heat_colour(std::clamp(cell.share, 0.0, 1.0)))
                     : "class=\"none\"";
      svg +=
          fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" {}/>\n",
                      x + 1, y + 1, kCellWidth - 2, kCellHeight - 2, paint);
      if (cell.framed) {
        svg += fmt::format(
            "<rect class=\"frame\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" "
            "height=\"{:.1f}\"/>\n",
            x + 2, y + 2, kCellWidth - 4, kCellHeight - 4);
      }
      const bool pale = cell.share > 0.2 && cell.share < 0.75;
      svg += svg_text(x + kCellWidth / 2, y + kCellHeight / 2 + 4, "middle",
                      cell.known ? (pale ? "dark" : "light") : "", cell.text);
    }
  }
  const double below = kHeatTop + static_cast<double>(map.rows.size()) * kCellHeight;
  return svg + svg_text(x0 + static_cast<double>(map.columns.size()) * kCellWidth / 2, below + 18,
                        "middle", "", column_label);
}

}  // namespace

std::string plot_heat_svg(const std::string& title, const std::string& note,
                          const std::string& column_label, const std::string& row_label,
                          const std::vector<HeatMap>& maps) {
  double width = 2 * kHeatMargin;
  std::size_t rows = 0;
  for (const HeatMap& map : maps) {
    width += kHeatLeft + static_cast<double>(map.columns.size()) * kCellWidth + kHeatGap;
    rows = std::max(rows, map.rows.size());
  }
  constexpr double kCharacter = 6.6;  // of the note, about
  width = std::max(width, 48 + kCharacter * static_cast<double>(note.size()));
  const double height = kHeatTop + static_cast<double>(rows) * kCellHeight + kHeatBottom;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" role=\"img\">\n<title>{2}</title>\n",
      width, height, svg_escape(title));
  svg += kHeatStyle;
  svg += fmt::format("<rect class=\"page\" width=\"{}\" height=\"{}\" rx=\"8\"/>\n", width, height);
  svg += svg_text(24, 32, "start", "title", title);
  double left = kHeatMargin;
  for (const HeatMap& map : maps) {
    svg += svg_text(left + kHeatLeft - 8, kHeatTop - 8, "end", "", row_label);
    svg += heat_map(map, left, column_label);
    left += kHeatLeft + static_cast<double>(map.columns.size()) * kCellWidth + kHeatGap;
  }
  svg += svg_text(24, height - 16, "start", "", note);
  return svg + "</svg>\n";
}

}  // namespace lca::cli
