#!/usr/bin/env python3
"""Draws what whole_model.py measured: first token and cache by length; LCA, dense, transformers.

    bench/gpu/plot.py RESULTS.json OUT.svg
"""
import html
import json
import math
import pathlib
import sys

# All in pixels.
PANEL, HEIGHT, LEFT, RIGHT = 470, 340, 66, 30
HEADER, FOOTER, TOP, BOTTOM = 74, 34, 40, 46
KINDS = ("transformers", "dense", "lca")
LABELS = {"lca": "lca, condensed", "dense": "lca, dense", "transformers": "transformers, dense"}
STYLE = """<style>
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #57606a; }
.title { font-size: 16px; font-weight: 600; fill: #1f2328; }
.panel { font-size: 13px; font-weight: 600; fill: #1f2328; }
.page { fill: #ffffff; }
.grid { stroke: #d0d7de; stroke-width: 1; }
.line { fill: none; stroke-width: 2.5; stroke-linejoin: round; stroke-linecap: round; }
.lca.line { stroke: #0969da; } text.lca { fill: #0969da; } circle.lca { fill: #0969da; }
.dense.line { stroke: #c4510a; } text.dense { fill: #c4510a; } circle.dense { fill: #c4510a; }
.transformers.line { stroke: #57606a; } circle.transformers { fill: #57606a; }
text.lca, text.dense, text.transformers { font-weight: 600; }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1; } .title, .panel { fill: #f0f6fc; }
  .page { fill: #0d1117; } .grid { stroke: #3d444d; }
  .lca.line { stroke: #4493f8; } text.lca { fill: #4493f8; } circle.lca { fill: #4493f8; }
  .dense.line { stroke: #f0883e; } text.dense { fill: #f0883e; } circle.dense { fill: #f0883e; }
  .transformers.line { stroke: #9198a1; } circle.transformers { fill: #9198a1; }
}
</style>
"""


def text(x, y, kind, words, anchor="start"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">'
            f"{html.escape(words)}</text>\n")


def log_at(value, low, high, begin, end):
    return begin + math.log(value / low) / math.log(high / low) * (end - begin)


def length_text(length):
    return f"{length >> 20}M" if length >= 1 << 20 else f"{length >> 10}K"


def series_of(report, field):
    """Points (length, value) by kind."""
    ours = report["lca"]["prefill"] + report["million"].get("prefill", [])
    rows = {"lca": ours, "dense": report["dense"]["prefill"], "transformers": report["peer"]["prefill"]}
    return {kind: [(row["tokens"], row[field]) for row in rows[kind] if field in row] for kind in KINDS}


def panel_svg(series, title, unit, left):
    x0, x1 = left + LEFT, left + PANEL - RIGHT
    y0, y1 = HEADER + HEIGHT - BOTTOM, HEADER + TOP
    lengths = sorted({length for points in series.values() for length, _ in points})
    values = [value for points in series.values() for _, value in points]
    low, high = min(values) / 1.4, max(values) * 1.6
    svg = text(x0, HEADER + 14, "panel", title)
    for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1):
        y = log_at(10.0 ** power, low, high, y0, y1)
        svg += f'<line class="grid" x1="{x0}" y1="{y:.1f}" x2="{x1}" y2="{y:.1f}"/>\n'
        svg += text(x0 - 8, y + 4, "", f"{10.0 ** power:g} {unit}", "end")
    for length in lengths:
        x = log_at(length, lengths[0], lengths[-1], x0, x1)
        svg += text(x, y0 + 20, "", length_text(length), "middle")
    svg += text((x0 + x1) / 2, y0 + 38, "", "tokens", "middle")
    for kind in KINDS:
        points = [(log_at(length, lengths[0], lengths[-1], x0, x1), log_at(value, low, high, y0, y1), value)
                  for length, value in series[kind]]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        svg += f'<polyline class="line {kind}" points="{path}"/>\n'
        for x, y, _ in points:
            svg += f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>\n'
        x, y, value = points[-1]
        # The two dense ones end at the same place: one is written above, the other below.
        svg += text(x, y + (18 if kind == "dense" else -9), kind, f"{value:.3g}", "middle")
    return svg


def plot_svg(report):
    width, height = 2 * PANEL, HEADER + HEIGHT + FOOTER
    title = "DeepSeek-V2-Lite on one GPU: first token and cache"
    svg = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
           f'viewBox="0 0 {width} {height}" role="img">\n<title>{html.escape(title)}</title>\n{STYLE}'
           f'<rect class="page" width="{width}" height="{height}" rx="8"/>\n')
    svg += text(24, 30, "title", title)
    at = 24
    for kind in reversed(KINDS):
        svg += text(at, 54, kind, "● " + LABELS[kind])
        at += 40 + 6.8 * len(LABELS[kind])
    svg += panel_svg(series_of(report, "seconds"), "seconds to the first token", "s", 0)
    cache = {kind: [(length, value / 2 ** 30) for length, value in points]
             for kind, points in series_of(report, "cache_bytes").items()}
    svg += panel_svg(cache, "GiB of cache", "GiB", PANEL)
    note = f"Random weights, bf16, one session; g 16, w 1024. {report['lca']['gpu']}, {report['date']}."
    return svg + text(24, height - 14, "", note) + "</svg>\n"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    report = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    pathlib.Path(sys.argv[2]).write_text(plot_svg(report), encoding="utf-8")


if __name__ == "__main__":
    main()
