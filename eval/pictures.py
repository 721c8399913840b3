#!/usr/bin/env python3
"""Pictures of the comparison of adapters, from result files: eval/pictures.py RESULTS OUT

OUT/needles.svg: how many needles each arm found, by length and depth. OUT/curves.svg: what held-out rows said while the
arms were trained (RESULTS/curves.json: the columns of each run's evaluation.csv).
"""
import html
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "scripts"))
from svg import line, text  # noqa: E402

CELL, ROW, LEFT, HEAD, GAP, BINS = 38, 24, 52, 84, 34, 10
STYLE = """<style>
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #57606a; }
.title { font-size: 16px; font-weight: 600; fill: #1f2328; }
.panel { font-size: 13px; font-weight: 600; fill: #1f2328; }
.page { fill: #ffffff; } .cell { fill: #0969da; } .none { fill: none; stroke: #d0d7de; }
.number { font-size: 11px; fill: #1f2328; } .number.full { fill: #ffffff; }
.grid { stroke: #d0d7de; } .line { fill: none; stroke-width: 2.5; stroke-linejoin: round; }
.a.line { stroke: #0969da; } text.a { fill: #0969da; } .b.line { stroke: #8250df; } text.b { fill: #8250df; }
.c.line { stroke: #c4510a; } text.c { fill: #c4510a; } text.a, text.b, text.c { font-weight: 600; }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1; } .title, .panel { fill: #f0f6fc; } .page { fill: #0d1117; } .cell { fill: #1f6feb; }
  .none, .grid { stroke: #3d444d; } .number, .number.full { fill: #f0f6fc; }
  .a.line { stroke: #4493f8; } text.a { fill: #4493f8; } .b.line { stroke: #ab7df8; } text.b { fill: #ab7df8; }
  .c.line { stroke: #f0883e; } text.c { fill: #f0883e; }
}
</style>
"""


def page(width, height, title, below, body):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'role="img" aria-label="{html.escape(title)}">\n{STYLE}'
            f'<rect class="page" width="{width}" height="{height}"/>\n' + text(16, 28, "title", title)
            + text(16, 48, "", below) + body + "</svg>\n")


def by_depth(cell):
    """Hits and samples of each tenth of the depths, from the least to the greatest."""
    levels = sorted(set(cell["depths"]))
    counts = [[0, 0] for _ in range(BINS)]
    for depth, hit in zip(cell["depths"], cell["hits"]):
        at = min(BINS - 1, levels.index(depth) * BINS // len(levels))
        counts[at][0] += hit == "1"
        counts[at][1] += 1
    return counts


def panel(title, cells, left, top):
    """One arm and number of keys: a row for each length, a column for each tenth of the depths."""
    made = text(left, top - 22, "panel", title) + text(left + LEFT, top - 6, "", "beginning")
    made += text(left + LEFT + BINS * CELL, top - 6, "", "window", "end")
    for row, (length, cell) in enumerate(cells):
        y = top + row * ROW
        made += text(left + LEFT - 8, y + 16, "", f"{length // 1024}K", "end")
        for column, (hits, count) in enumerate(by_depth(cell)):
            if not count:
                continue
            x, share = left + LEFT + column * CELL, hits / count
            made += f'<rect class="none" x="{x}" y="{y}" width="{CELL - 2}" height="{ROW - 2}"/>\n'
            made += f'<rect class="cell" x="{x}" y="{y}" width="{CELL - 2}" height="{ROW - 2}" opacity="{share:.2f}"/>\n'
            kind = "number full" if share > 0.6 else "number"
            made += text(x + CELL / 2 - 1, y + 15, kind, f"{100 * share:.0f}", "middle")
    return made


def needles_svg(folder, titles):
    panels = []
    for name in ("lca", "dense", "base-dense"):
        path = folder / f"{name}.json"
        arm = json.loads(path.read_text()) if path.exists() else {}
        found = {**arm.get("needle", {}), **arm.get("long", {})}
        for keys, words in (("1", "one number"), ("4", "one of four")):
            cells = [(int(n), found[n][keys]) for n in sorted(found, key=int) if keys in found[n]]
            if cells:
                panels.append((f"{titles[name]}: {words}", cells))
    width = LEFT + BINS * CELL + GAP
    columns, body, top = 2, "", HEAD + 24
    for at in range(0, len(panels), columns):
        line = panels[at:at + columns]
        for column, (title, cells) in enumerate(line):
            body += panel(title, cells, 16 + column * width, top)
        top += max(len(cells) for _, cells in line) * ROW + 56
    return page(16 + columns * width, top - 24, "Needles found, per cent, by length and depth",
                "All outside the window of LCA; the model was trained for 8K tokens.", body)


def curves_svg(curves, titles):
    order = [name for name in ("lca", "long", "dense") if name in curves]
    body, wide, high, top = "", 380, 230, HEAD + 30
    most = max(row["tokens"] for rows in curves.values() for row in rows)
    for at, (key, title, low, up, ticks) in enumerate((
            ("answers", "answer tokens right", 0.2, 1.0, (0.2, 0.4, 0.6, 0.8, 1.0)),
            ("kl", "KL of text from the base, nats", 0.0, 0.3, (0.0, 0.1, 0.2, 0.3)))):
        left = 16 + LEFT + at * (wide + LEFT + GAP)
        body += text(left, top - 14, "panel", title)

        def place(tokens, value):
            return left + wide * tokens / most, top + high * (1 - (min(max(value, low), up) - low) / (up - low))
        for tick in ticks:
            _, y = place(0, tick)
            body += line(left, y, left + wide, y)
            body += text(left - 8, y + 4, "", f"{tick:g}", "end")
        for million in range(0, most // 1_000_000 + 1, 20):
            x, _ = place(million * 1e6, low)
            body += text(x, top + high + 18, "", f"{million}M", "middle")
        for name, kind in zip(order, "abc"):
            points = " ".join("{:.1f},{:.1f}".format(*place(row["tokens"], row[key])) for row in curves[name])
            body += f'<polyline class="line {kind}" points="{points}"/>\n'
    for at, (name, kind) in enumerate(zip(order, "abc")):
        body += text(16 + at * 300, top + high + 48, kind, titles[name])
    return page(16 + 2 * (wide + LEFT + GAP), top + high + 64, "Held-out rows of 8K tokens while the arms are trained",
                "Books of other authors with planted tasks; the window grows to 1,024 tokens after 12M.", body)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder, out = map(pathlib.Path, sys.argv[1:])
    titles = {name: about["title"] for name, about in json.loads((HERE / "arms.json").read_text()).items()}
    (out / "needles.svg").write_text(needles_svg(folder, titles), encoding="utf-8")
    if (folder / "curves.json").exists():
        (out / "curves.svg").write_text(curves_svg(json.loads((folder / "curves.json").read_text()), titles),
                                        encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
