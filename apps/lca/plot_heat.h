#pragma once
/// A heat map as SVG: shares in cells, readable on light and dark backgrounds.

#include <string>
#include <vector>

namespace lca::cli {

/// A share from 0 to 1 and how it is written; `known` is false where nothing was measured.
struct HeatCell {
  bool known = false;
  double share = 0;
  std::string text;
  bool framed = false;  ///< drawn with a frame
};

/// One map: rows from top to bottom.
struct HeatMap {
  std::string title;
  std::vector<std::string> columns, rows;
  std::vector<std::vector<HeatCell>> cells;  ///< [row][column]
};

/// Maps side by side under one title, a note below.
std::string plot_heat_svg(const std::string& title, const std::string& note,
                          const std::string& column_label, const std::string& row_label,
                          const std::vector<HeatMap>& maps);

}  // namespace lca::cli
