#!/usr/bin/env python3
"""Draws what perplexity.py measured: perplexity by range of positions, one panel a text.

    bench/evidence/plot.py REPORT.json OUT.svg
"""
import html
import json
import math
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
from svg import line, text  # noqa: E402

# All in pixels.
PANEL, HEIGHT, LEFT, RIGHT = 400, 330, 52, 22
HEADER, FOOTER, TOP, BOTTOM = 82, 30, 46, 46
FIRST = 1024  # where the axis of positions begins; the first range begins at 0
MOST = 4      # values above so many times the smallest are cut and written out
KINDS = ("dense", "token", "entry", "free", "window")
TICKS = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
STYLE = """<style>
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #57606a; }
.title { font-size: 16px; font-weight: 600; fill: #1f2328; }
.panel { font-size: 13px; font-weight: 600; fill: #1f2328; }
.page { fill: #ffffff; }
.grid { stroke: #d0d7de; stroke-width: 1; }
.mark { stroke: #57606a; stroke-width: 1; stroke-dasharray: 4 4; }
.line { fill: none; stroke-width: 2.5; stroke-linejoin: round; stroke-linecap: round; }
.entry.line { stroke: #0969da; } text.entry { fill: #0969da; }
.free.line { stroke: #8250df; } text.free { fill: #8250df; }
.dense.line { stroke: #c4510a; } text.dense { fill: #c4510a; }
.token.line { stroke: #a40e26; stroke-dasharray: 6 4; } text.token { fill: #a40e26; }
.window.line { stroke: #1a7f37; } text.window { fill: #1a7f37; }
text.entry, text.free, text.dense, text.token, text.window { font-weight: 600; }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1; } .title, .panel { fill: #f0f6fc; }
  .page { fill: #0d1117; } .grid { stroke: #3d444d; } .mark { stroke: #9198a1; }
  .entry.line { stroke: #4493f8; } text.entry { fill: #4493f8; }
  .free.line { stroke: #ab7df8; } text.free { fill: #ab7df8; }
  .dense.line { stroke: #f0883e; } text.dense { fill: #f0883e; }
  .token.line { stroke: #ff7b72; } text.token { fill: #ff7b72; }
  .window.line { stroke: #3fb950; } text.window { fill: #3fb950; }
}
</style>
"""


class Axis:
    """A logarithmic axis from `low` to `high`."""

    def __init__(self, low, high, begin, end):
        self.low, self.high, self.begin, self.end = low, high, begin, end

    def at(self, value):
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self):
        """Round values inside it, at most ten."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        found = [tick * 10.0 ** power for power in powers for tick in TICKS]
        found = [value for value in found if self.low <= value * 1.0001 and value <= self.high * 1.0001]
        return found[::math.ceil(len(found) / 10)]


def length_text(length):
    return f"{length // 1024}K"


def series(arm, kind, x, y, cut):
    """A step for each range; what lies above the axis is cut there, with its value. `cut` counts the
    values written above each place."""
    points, marks = [], ""
    for part in arm["by_range"]:
        begin, end = max(part["from"], FIRST), part["to"]
        if end <= begin:
            continue
        value = min(part["perplexity"], y.high)
        points += [(x.at(begin), y.at(value)), (x.at(end), y.at(value))]
        if part["perplexity"] > y.high:
            middle = (x.at(begin) + x.at(end)) / 2
            above = y.at(y.high) - 5 - 12 * cut.get(middle, 0)
            marks += text(middle, above, kind, f"{part['perplexity']:.0f}", "middle")
            cut[middle] = cut.get(middle, 0) + 1
    path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
    return f'<polyline class="line {kind}" points="{path}"/>\n{marks}'


def panel_svg(one, context, left):
    x0, x1 = left + LEFT, left + PANEL - RIGHT
    y0, y1 = HEADER + HEIGHT - BOTTOM, HEADER + TOP
    parts = [part for arm in one["arms"].values() for part in arm["by_range"]]
    values = [part["perplexity"] for part in parts]
    smallest = min(values)
    x = Axis(FIRST, max(part["to"] for part in parts), x0, x1)
    y = Axis(smallest * 0.9, min(max(values) * 1.05, smallest * MOST), y0, y1)
    svg = text(x0, HEADER + 12, "panel", one["title"])
    for tick in y.ticks():
        svg += line(x0, y.at(tick), x1, y.at(tick)) + text(x0 - 8, y.at(tick) + 4, "", f"{tick:g}", "end")
    ticks = [FIRST << i for i in range(8) if FIRST << i <= x.high]
    if x.high > ticks[-1] * 1.3:
        ticks.append(x.high)
    for tick in ticks:
        svg += line(x.at(tick), y0, x.at(tick), y0 + 5) + text(x.at(tick), y0 + 20, "", length_text(tick),
                                                              "middle")
    svg += text((x0 + x1) / 2, y0 + 38, "", "position", "middle")
    if FIRST < context < x.high:
        svg += line(x.at(context), y0, x.at(context), y1, "mark")
        svg += text(x.at(context) - 6, y1 + 12, "", "trained length", "end")
    cut = {}
    for kind in KINDS:
        if kind in one["arms"]:
            svg += series(one["arms"][kind], kind, x, y, cut)
    return svg


def plot_svg(report):
    panels = list(report["texts"].values())
    width, height = PANEL * max(2, len(panels)), HEADER + HEIGHT + FOOTER
    title = f"Perplexity by position, {report['model']['name'].split('.')[0]}"
    svg = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
           f'viewBox="0 0 {width} {height}" role="img">\n<title>{html.escape(title)}</title>\n{STYLE}'
           f'<rect class="page" width="{width}" height="{height}" rx="8"/>\n')
    svg += text(24, 30, "title", title)
    at = 24
    for kind in KINDS:
        labels = [one["arms"][kind]["label"] for one in panels if kind in one["arms"]]
        if labels:
            svg += text(at, 54, kind, "● " + labels[0])
            at += 36 + 6.6 * len(labels[0])
    for i, one in enumerate(panels):
        svg += panel_svg(one, report["model"]["context"], PANEL * i)
    svg += text(24, height - 14, "", "No training. Lower is better. " + "; ".join(report["machines"]))
    return svg + "</svg>\n"


def main():
    if len(sys.argv) != 3:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    report = json.loads(pathlib.Path(sys.argv[1]).read_text())
    pathlib.Path(sys.argv[2]).write_text(plot_svg(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
