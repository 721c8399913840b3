#!/usr/bin/env python3
"""Draws what llama_cpp.py measured: llama.cpp and lca as bars, tokens a second.

    bench/peers/plot.py REPORT.json OUT.svg
"""
import json
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
from svg import text  # noqa: E402

# All in pixels.
WIDTH, LEFT, RIGHT = 800, 148, 170
HEADER, FOOTER, PANEL, GROUP, BAR = 66, 38, 40, 58, 18
STYLE = """<style>
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #57606a; }
.title { font-size: 16px; font-weight: 600; fill: #1f2328; }
.panel { font-size: 13px; font-weight: 600; fill: #1f2328; }
.page { fill: #ffffff; }
.grid { stroke: #d0d7de; stroke-width: 1; }
.lca { fill: #0969da; } .peer { fill: #c4510a; }
text.lca, text.peer { font-weight: 600; }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1; } .title, .panel { fill: #f0f6fc; }
  .page { fill: #0d1117; } .grid { stroke: #3d444d; }
  .lca { fill: #4493f8; } .peer { fill: #f0883e; }
}
</style>
"""


def speed_text(speed):
    return f"{speed:,.0f}" if speed >= 100 else f"{speed:.1f}" if speed >= 10 else f"{speed:.2f}"


def place_text(row):
    length = row["length"]
    short = f"{length // 1024}K" if length and length % 1024 == 0 else str(length)
    return f"reading {short} tokens" if row["what"] == "prefill" else f"writing after {short}"


def bar(x, y, width, kind):
    return (f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" '
            f'height="{BAR}" rx="2"/>\n')


def panel_svg(model, rows, top):
    """One model: a pair of bars for each row. Every pair has a scale of its own, since reading and
    writing differ a hundredfold; what compares is the lengths inside a pair."""
    svg = text(24, top + 22, "panel", model)
    room = WIDTH - LEFT - RIGHT
    for i, row in enumerate(rows):
        y = top + PANEL + i * GROUP
        peer = max(speed for speed in (row["llama_cpp_fa0"], row["llama_cpp_fa1"]) if speed)
        most = max(peer, row["lca"])
        svg += text(LEFT - 12, y + BAR + 5, "", place_text(row), "end")
        for offset, kind, speed in ((0, "peer", peer), (BAR + 3, "lca", row["lca"])):
            width = room * speed / most
            svg += bar(LEFT, y + offset, width, kind)
            svg += text(LEFT + width + 8, y + offset + 13, "", f"{speed_text(speed)} tokens/s")
        svg += text(WIDTH - 24, y + BAR + 5, "lca", f"{row['ratio']:.1f}×", "end")
    return svg


def plot_svg(report):
    # A model with an adapter is drawn as it is used: with it.
    adapted = {row["model"] for row in report["rows"] if row["method"] == "adapter"}
    panels = {}
    for row in report["rows"]:
        method = "adapter" if row["model"] in adapted else "lca"
        if row["method"] == method and row["batch"] == 1 and row["ratio"] is not None:
            panels.setdefault(row["model"], []).append(row)
    height = HEADER + FOOTER + sum(PANEL + GROUP * len(rows) for rows in panels.values())
    title = "lca beside llama.cpp, tokens a second"
    svg = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
           f'viewBox="0 0 {WIDTH} {height}" role="img">\n<title>{title}</title>\n{STYLE}'
           f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>\n')
    svg += text(24, 30, "title", title)
    svg += text(24, 52, "peer", "● llama.cpp") + text(118, 52, "lca", "● lca")
    top = HEADER
    for model, rows in panels.items():
        svg += f'<line class="grid" x1="24" y1="{top}" x2="{WIDTH - 24}" y2="{top}"/>\n'
        svg += panel_svg(model, rows, top)
        top += PANEL + GROUP * len(rows)
    svg += text(24, height - 14, "", f"{report['machine']}, {report['threads']} threads, "
                f"{report['date'][:10]}; llama.cpp {report['llama_cpp_commit']}, the better of "
                "without and with flash attention")
    return svg + "</svg>\n"


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: bench/peers/plot.py REPORT.json OUT.svg")
    report = json.loads(pathlib.Path(sys.argv[1]).read_text())
    pathlib.Path(sys.argv[2]).write_text(plot_svg(report))


if __name__ == "__main__":
    main()
