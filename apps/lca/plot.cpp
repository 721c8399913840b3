#include "plot.h"

#include "terminal.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace lca::cli {
namespace {

// All in pixels.
constexpr double kPanelWidth = 400, kPanelHeight = 330;
constexpr double kLeft = 72, kRight = 22, kTop = 62, kBottom = 46;
constexpr double kHeader = 34, kFooter = 30;

constexpr const char* kStyle = R"(<style>
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #57606a; }
.title { font-size: 16px; font-weight: 600; fill: #1f2328; }
.panel { font-size: 13px; font-weight: 600; fill: #1f2328; }
.page { fill: #ffffff; }
.grid { stroke: #d0d7de; stroke-width: 1; }
.line { fill: none; stroke-width: 2.5; stroke-linejoin: round; stroke-linecap: round; }
.lca.line, .lca.dot { stroke: #0969da; } .lca.dot, text.lca { fill: #0969da; }
.dense.line, .dense.dot { stroke: #c4510a; } .dense.dot, text.dense { fill: #c4510a; }
text.lca, text.dense { font-weight: 600; }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1; } .title, .panel { fill: #f0f6fc; }
  .page { fill: #0d1117; } .grid { stroke: #3d444d; }
  .lca.line, .lca.dot { stroke: #4493f8; } .lca.dot, text.lca { fill: #4493f8; }
  .dense.line, .dense.dot { stroke: #f0883e; } .dense.dot, text.dense { fill: #f0883e; }
}
</style>
)";

/// A logarithmic axis over whole powers of `base`.
struct Axis {
  double base;
  int first, last;       // exponents at the ends
  double begin, extent;  // pixels

  Axis(double base_, double smallest, double largest, double begin_, double extent_)
      : base(base_), begin(begin_), extent(extent_) {
    const auto power = [&](double value) { return std::log(value) / std::log(base); };
    first = static_cast<int>(std::floor(power(smallest) + 1e-9));
    last = std::max(first + 1, static_cast<int>(std::ceil(power(largest) - 1e-9)));
  }

  double at(double value) const {
    const double share = (std::log(value) / std::log(base) - first) / (last - first);
    return begin + share * extent;
  }
  double value(int exponent) const { return std::pow(base, exponent); }
};

std::string svg_grid(double x1, double y1, double x2, double y2) {
  return fmt::format(
      "<line class=\"grid\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", x1, y1,
      x2, y2);
}

std::string svg_series(const std::vector<std::int64_t>& lengths, const std::vector<double>& values,
                       const Axis& x, const Axis& y, const char* kind) {
  std::string points, dots;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const double px = x.at(static_cast<double>(lengths[i])), py = y.at(values[i]);
    points += fmt::format("{}{:.1f},{:.1f}", i == 0 ? "" : " ", px, py);
    dots += fmt::format("<circle class=\"dot {}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"/>\n", kind,
                        px, py);
  }
  return fmt::format("<polyline class=\"line {}\" points=\"{}\"/>\n{}", kind, points, dots);
}

std::string svg_panel(const std::vector<std::int64_t>& lengths, const Panel& panel, double left) {
  const double x0 = left + kLeft, x1 = left + kPanelWidth - kRight;
  const double y0 = kHeader + kPanelHeight - kBottom, y1 = kHeader + kTop;
  std::vector<double> values = panel.lca;
  values.insert(values.end(), panel.dense.begin(), panel.dense.end());
  const auto [smallest, largest] = std::ranges::minmax(values);
  const Axis x(2, static_cast<double>(lengths.front()), static_cast<double>(lengths.back()), x0,
               x1 - x0);
  const Axis y(panel.tick_base, smallest, largest, y0, y1 - y0);

  std::string svg = svg_text(x0, kHeader + 26, "start", "panel", panel.title);
  svg += svg_text(x0, kHeader + 46, "start", "dense", "● dense");
  svg += svg_text(x0 + 66, kHeader + 46, "start", "lca", "● lca");
  const double ratio = panel.dense.back() / panel.lca.back();
  svg += svg_text(x1, kHeader + 46, "end", "",
                  fmt::format("{}× at {}", number_text(ratio), length_text(lengths.back())));
  for (int tick = y.first; tick <= y.last; ++tick) {
    const double at = y.at(y.value(tick));
    svg += svg_grid(x0, at, x1, at);
    svg += svg_text(x0 - 8, at + 4, "end", "", panel.text(y.value(tick)));
  }
  for (int tick = x.first; tick <= x.last; ++tick) {
    const double at = x.at(x.value(tick));
    svg += svg_grid(at, y0, at, y0 + 5);
    svg +=
        svg_text(at, y0 + 20, "middle", "", length_text(static_cast<std::int64_t>(x.value(tick))));
  }
  svg += svg_text((x0 + x1) / 2, y0 + 38, "middle", "", "tokens");
  svg += svg_series(lengths, panel.dense, x, y, "dense");
  svg += svg_series(lengths, panel.lca, x, y, "lca");
  return svg;
}

/// A bar of `share` of `width` columns, to an eighth of a column.
std::string bar(double share, int width) {
  static constexpr std::array<const char*, 8> kParts = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = std::max(1, static_cast<int>(std::lround(share * width * 8)));
  std::string drawn;
  for (int i = 0; i < eighths / 8; ++i) drawn += "█";
  return drawn + kParts[static_cast<std::size_t>(eighths % 8)];
}

}  // namespace

std::string svg_escape(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '&') {
      safe += "&amp;";
    } else if (c == '<') {
      safe += "&lt;";
    } else if (c == '>') {
      safe += "&gt;";
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string svg_text(double x, double y, const char* anchor, const char* kind,
                     const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n",
                     x, y, anchor, kind, svg_escape(text));
}

std::string plot_svg(const std::string& title, const std::string& note,
                     const std::vector<std::int64_t>& lengths, const std::vector<Panel>& panels) {
  const double width = kPanelWidth * static_cast<double>(panels.size());
  const double height = kHeader + kPanelHeight + kFooter;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" role=\"img\">\n<title>{2}</title>\n",
      width, height, svg_escape(title));
  svg += kStyle;
  svg += fmt::format("<rect class=\"page\" width=\"{}\" height=\"{}\" rx=\"8\"/>\n", width, height);
  svg += svg_text(24, 30, "start", "title", title);
  for (std::size_t i = 0; i < panels.size(); ++i) {
    svg += svg_panel(lengths, panels[i], kPanelWidth * static_cast<double>(i));
  }
  svg += svg_text(24, height - 14, "start", "", note);
  return svg + "</svg>\n";
}

std::string plot_bars(const std::vector<std::int64_t>& lengths, const Panel& panel, bool colour) {
  constexpr int kWidth = 48;
  const double largest = std::max(std::ranges::max(panel.lca), std::ranges::max(panel.dense));
  const auto line = [&](const std::string& label, const char* name, const char* code,
                        double value) {
    const std::string drawn = bar(value / largest, kWidth);
    return fmt::format("{:>6}  {:<5} {}{}{} {}\n", label, name, colour ? code : "", drawn,
                       colour ? "\x1b[0m" : "", panel.text(value));
  };
  std::string text = panel.title + "\n";
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    text += line(length_text(lengths[i]), "dense", "\x1b[33m", panel.dense[i]);
    text += line("", "lca", "\x1b[34m", panel.lca[i]);
  }
  return text;
}

}  // namespace lca::cli
