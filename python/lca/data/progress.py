"""A bar with rate and time left on the terminal's error stream."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_WIDTH = 24


def duration(seconds: float) -> str:
    """1:02:03 or 2:03."""
    whole = int(seconds + 0.5)
    minutes = f"{whole // 60 % 60}:{whole % 60:02d}"
    return f"{whole // 3600}:{minutes:0>5}" if whole >= 3600 else minutes


def magnitude(value: float) -> str:
    """12.3M for 12,300,000."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if value >= size:
            return f"{value / size:.3g}{letter}" if value < 999.5 * size else f"{value / size:.0f}{letter}"
    return f"{value:.0f}"


class Progress:
    """`at(done)` draws the bar, at most ten times a second; nothing is drawn where `show` is false."""

    def __init__(self, what: str, total: float, unit: str, show: bool | None = None, start: float = 0,
                 stream: TextIO | None = None):
        self._stream = stream or sys.stderr
        self._show = self._stream.isatty() if show is None else show
        self._what, self._total, self._unit, self._start = what, total, unit, start
        self._began, self._drawn, self._width = time.monotonic(), 0.0, 0

    def at(self, done: float, last: bool = False) -> None:
        now = time.monotonic()
        if not self._show or (now - self._drawn < 0.1 and not last):
            return
        self._drawn = now
        line = self.line(done, now - self._began)
        self._stream.write("\r" + line.ljust(self._width) + ("\n" if last else ""))
        self._stream.flush()
        self._width = len(line)

    def line(self, done: float, seconds: float) -> str:
        """The bar's text; what an earlier run did does not count for the rate."""
        rate = (done - self._start) / seconds if seconds > 0 else 0.0
        if not self._total:
            return f"{self._what} {magnitude(done)} {self._unit}  {magnitude(rate)} {self._unit}/s"
        share = min(1.0, done / self._total)
        filled = int(share * _WIDTH)
        left = duration((self._total - done) / rate) if rate > 0 and done <= self._total else "?"
        return (f"{self._what} [{'#' * filled}{'.' * (_WIDTH - filled)}] {100 * share:3.0f} %  "
                f"{magnitude(done)} of {magnitude(self._total)} {self._unit}  {magnitude(rate)} {self._unit}/s  "
                f"{left} left")
