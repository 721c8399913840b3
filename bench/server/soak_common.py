"""What the rows of the soak share: results, servers, measuring memory."""

import contextlib
import dataclasses
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIVE = ROOT / "tests" / "server" / "live"
sys.path[:0] = [str(LIVE), str(ROOT / "scripts")]
from serving import Serving  # noqa: E402
from tiny_checkpoints import SLOW, checkpoint_make  # noqa: E402


@dataclasses.dataclass
class Measure:
    """One number of a row. `holds` is None for what is only told."""

    what: str
    value: str
    limit: str = ""
    holds: bool | None = None


@dataclasses.dataclass
class Row:
    name: str
    test: str
    limit: str
    measures: list = dataclasses.field(default_factory=list)
    skipped: str = ""  # why it did not run
    shortened: str = ""  # what was less than the row asks for
    seconds: float = 0.0

    def below(self, what, value, limit, unit="", digits=3):
        self.measures.append(Measure(what, f"{value:.{digits}g}{unit}", f"≤ {limit:.{digits}g}{unit}", value <= limit))

    def equal(self, what, value, expected):
        self.measures.append(Measure(what, f"{value:,}", f"= {expected:,}", value == expected))

    def least(self, what, value, limit):
        self.measures.append(Measure(what, f"{value:,}", f"≥ {limit:,}", value >= limit))

    def told(self, what, value):
        self.measures.append(Measure(what, str(value)))

    @property
    def verdict(self):
        if self.skipped:
            return "not run"
        if not all(measure.holds for measure in self.measures if measure.holds is not None):
            return "does not hold"
        return "holds (shortened)" if self.shortened else "holds"


class Soak:
    """Where a run keeps its files, what it may use, and how long rows may take."""

    def __init__(self, folder, program, model, asan, minutes, text):
        self.folder, self.program, self.model, self.asan = pathlib.Path(folder), program, model, asan
        self.minutes, self.text, self.made = minutes, text, {}

    def say(self, text):
        print(f"soak: {time.strftime('%H:%M:%S')} {text}", flush=True)

    def minutes_of(self, row, wanted):
        """The minutes that a row runs; fewer than it wants are noted."""
        if self.minutes is None or self.minutes >= wanted:
            return wanted
        row.shortened = f"{self.minutes:g} of {wanted} minutes"
        return self.minutes

    def checkpoint(self, name):
        """Folders of tiny checkpoints; `slow` reads some thousand tokens a second."""
        if name not in self.made:
            sizes = {"slow": {"family": "llama", "context": 65536, **SLOW},
                     "llama": {"family": "llama"}, "long": {"family": "llama", "context": 65536},
                     "qwen2": {"family": "qwen2", "context": 8192}}[name]
            self.made[name] = checkpoint_make(self.folder / "models" / f"tiny-{name}", **sizes)
        return self.made[name]

    def serving(self, model, *flags, program=None, log="server", **options):
        log = self.folder / f"{log}.log"
        return Serving(model, *flags, program=program or self.program, log=log, wait=300, **options)


def descriptors_raise():
    """Room for some thousand connections, here and in the servers that are started."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Watch:
    """Resident memory and descriptors of a server, taken every second by a thread."""

    def __init__(self, server, every=1.0):
        self.server, self.every, self.samples, self.going = server, every, [], True
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        while self.going:
            with contextlib.suppress(OSError, TypeError):
                self.samples.append((time.monotonic(), self.server.resident_bytes(), self.server.descriptors()))
            time.sleep(self.every)

    def __enter__(self):
        self.begin = time.monotonic()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.going = False
        self.thread.join()

    def flat(self, warm=0.25):
        """How far memory lies at the end from where it was after warming up, as a part; and both in MiB."""
        count = len(self.samples)
        first = self.samples[int(count * warm):int(count * (warm + 0.15)) + 1]
        last = self.samples[int(count * 0.85):]
        before, after = (statistics.median(sample[1] for sample in part) for part in (first, last))
        return after / before - 1, before / 2**20, after / 2**20


def memory_row(row, watch):
    change, before, after = watch.flat()
    row.below("memory, end against warmed up", 100 * abs(change), 2, " %")
    row.told("resident", f"{before:.0f} → {after:.0f} MiB")


def pytest_run(soak, *arguments):
    """Runs tests of tests/server/live; (passed, failed, output)."""
    report = soak.folder / "junit.xml"
    surroundings = {**os.environ, "LCA_PROGRAM": str(soak.program)}
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", f"--junitxml={report}",
                           *arguments], cwd=LIVE, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    import xml.etree.ElementTree as ElementTree
    suite = ElementTree.parse(report).getroot().find("testsuite")
    failed = int(suite.get("failures")) + int(suite.get("errors"))
    return int(suite.get("tests")) - failed - int(suite.get("skipped")), failed, done.stdout
