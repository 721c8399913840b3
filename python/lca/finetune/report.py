"""What a run leaves to read: CSV files, curves, samples, a live line, JSON lines."""

from __future__ import annotations

import csv
import io
import json
import math
import pathlib
import sys
import time
from typing import Any
from xml.sax.saxutils import escape

from lca.data.progress import duration, magnitude
from lca.data.store import file_replace

STEP_COLUMNS = ("step", "stage", "tokens", "length", "group", "window", "sink", "rate", "loss", "kl", "text",
                "answer", "text_tokens", "answer_tokens", "gradient", "tokens_per_second")
EVALUATION_COLUMNS = ("step", "tokens", "set", "text_loss", "text_perplexity", "kl", "answer_loss",
                      "answer_perplexity", "answer_accuracy", "text_tokens", "answer_tokens")
_COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#8250df")


class Table:
    """A CSV file that grows by rows; a resumed run drops the rows after its checkpoint."""

    def __init__(self, path: pathlib.Path, columns: tuple[str, ...], step: int) -> None:
        self._path, self._columns = path, columns
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            with open(path, newline="", encoding="utf-8") as file:
                self.rows = [row for row in csv.DictReader(file)
                             if None not in row.values() and row["step"].isdigit() and int(row["step"]) <= step]
        text = io.StringIO()
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(self.rows)
        file_replace(path, text.getvalue().encode())
        self._file = open(path, "a", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, columns)

    def add(self, row: dict[str, Any]) -> None:
        self._writer.writerow(row)
        self._file.flush()
        self.rows.append({name: str(row[name]) for name in self._columns})

    def close(self) -> None:
        self._file.close()


def _numbers(rows: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    found = []
    for row in rows:
        try:
            point = float(row["tokens"]), float(row[name])
        except (ValueError, TypeError, KeyError):
            continue
        if all(map(math.isfinite, point)):
            found.append(point)
    return found


def _panel(title: str, lines: list[tuple[str, list[tuple[float, float]]]], top: int, right: float) -> list[str]:
    """One plot, 720 × 180, over tokens 0 … right."""
    lines = [(name, points) for name, points in lines if points]
    values = [value for _, points in lines for _, value in points]
    if not values:
        return []
    low, high = min(values), max(values)
    high = high if high > low else low + 1.0
    parts = [f'<text x="60" y="{top + 14}" font-weight="bold">{escape(title)}</text>',
             f'<rect x="60" y="{top + 22}" width="640" height="140" fill="none" stroke="#ccc"/>',
             f'<text x="54" y="{top + 32}" text-anchor="end">{high:.3g}</text>',
             f'<text x="54" y="{top + 162}" text-anchor="end">{low:.3g}</text>',
             f'<text x="700" y="{top + 176}" text-anchor="end">{magnitude(right)} tokens</text>']
    for at, (name, points) in enumerate(lines):
        colour = _COLOURS[at % len(_COLOURS)]
        path = " ".join(f"{60 + 640 * x / right:.1f},{top + 162 - 140 * (y - low) / (high - low):.1f}"
                        for x, y in points)
        parts.append(f'<polyline fill="none" stroke="{colour}" points="{path}"/>')
        parts.append(f'<text x="{300 + 130 * at}" y="{top + 14}" fill="{colour}">{escape(name)}</text>')
    return parts


def curves(steps: list[dict[str, Any]], evaluations: list[dict[str, Any]]) -> str:
    """Losses of training, of held-out data, and the learning rate over tokens, as SVG."""
    right = max([1.0, *(x for x, _ in _numbers(steps, "loss"))])
    names = list(dict.fromkeys(row["set"] for row in evaluations))
    held = [(f"{name}: {what}", _numbers([row for row in evaluations if row["set"] == name], f"{what}_loss"))
            for name in names for what in ("text", "answer")]
    panels = [("training", [(name, _numbers(steps, name)) for name in ("kl", "text", "answer")]),
              ("held out", held), ("learning rate", [("rate", _numbers(steps, "rate"))])]
    body: list[str] = []
    top = 8
    for title, lines in panels:
        found = _panel(title, lines, top, right)
        body += found
        top += 190 if found else 0
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="720" height="{top}" font-family="sans-serif" '
            f'font-size="11"><rect width="720" height="{top}" fill="white"/>{"".join(body)}</svg>\n')


class Report:
    """Everything a run tells; made on the first process alone."""

    def __init__(self, folder: pathlib.Path, total: int, step: int, tokens: int, as_json: bool = False,
                 show: bool | None = None) -> None:
        self._folder, self._total, self._start, self._json = folder, total, tokens, as_json
        self._show = sys.stderr.isatty() if show is None else show
        self._began = self._last = time.monotonic()
        self._width = 0
        self.steps = Table(folder / "log.csv", STEP_COLUMNS, step)
        self.evaluations = Table(folder / "evaluation.csv", EVALUATION_COLUMNS, step)
        self._samples = folder / "samples.jsonl"
        if self._samples.exists():
            kept = [line for line in self._samples.read_text(encoding="utf-8").splitlines()
                    if _step_of(line) <= step]
            file_replace(self._samples, "".join(line + "\n" for line in kept).encode())

    def event(self, kind: str, **content: Any) -> None:
        if self._json:
            print(json.dumps({"event": kind, **content}), flush=True)

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self._json:
            self._clear()
            print(text, flush=True)

    def _clear(self) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0

    def step(self, row: dict[str, Any], counted: int) -> None:
        now = time.monotonic()
        row["tokens_per_second"] = round(counted / max(now - self._last, 1e-9), 1)
        self._last = now
        self.steps.add(row)
        self.event("step", **row)
        if self._show and not self._json:
            line = self.line(row, now - self._began)
            sys.stderr.write("\r" + line.ljust(self._width))
            sys.stderr.flush()
            self._width = len(line)

    def line(self, row: dict[str, Any], seconds: float) -> str:
        """The live line; what an earlier run did does not count for the rate."""
        rate = (row["tokens"] - self._start) / seconds if seconds > 0 else 0.0
        left = duration((self._total - row["tokens"]) / rate) if rate > 0 and row["tokens"] <= self._total else "?"
        told = " ".join(f"{name} {row[name]:.4f}" for name in ("kl", "text", "answer") if row[name] != "")
        return (f"{100 * row['tokens'] / self._total:3.0f} %  stage {row['stage']} step {row['step']}  g "
                f"{row['group']} w {row['window']} n {row['length']}  {told}  {magnitude(rate)} tokens/s  {left} left")

    def evaluation(self, row: dict[str, Any]) -> None:
        self.evaluations.add(row)
        self.event("evaluation", **row)
        told = [f"{name} {row[name]:.4g}" for name in ("text_perplexity", "kl", "answer_loss", "answer_accuracy")
                if row[name] != ""]
        self.say(f"step {row['step']}: {row['set']}: " + ", ".join(told).replace("_", " "))

    def sample(self, row: dict[str, Any]) -> None:
        with open(self._samples, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        self.event("sample", **row)
        self.say(f"step {row['step']}: {row['prompt']!r} → {row['reply']!r}")

    def draw(self) -> None:
        file_replace(self._folder / "curves.svg", curves(self.steps.rows, self.evaluations.rows).encode())

    def resume_clock(self) -> None:
        """What evaluation and checkpoints take is not the next step's time."""
        self._last = time.monotonic()

    def close(self) -> None:
        self._clear()
        self.steps.close()
        self.evaluations.close()


def runs_table(configs: dict[str, Any]) -> None:
    """runs.csv beside the folders of several runs: the last evaluation of each, so far."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["run", *EVALUATION_COLUMNS])
    for name, config in configs.items():
        path = pathlib.Path(config.output) / "evaluation.csv"
        if path.exists():
            with open(path, newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            for row in rows:
                if row["step"] == rows[-1]["step"]:
                    writer.writerow([name, *(row[column] for column in EVALUATION_COLUMNS)])
    file_replace(pathlib.Path(next(iter(configs.values())).output).parent / "runs.csv", text.getvalue().encode())


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf
