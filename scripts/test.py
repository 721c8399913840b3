#!/usr/bin/env python3
"""Builds and tests the project under each preset that has something to say, and sums it up.

    scripts/test.py [PRESET…]      (no argument: all of them, in this order)

release   every test, and the checks that are scripts
arm       the tests of ops/cpu for 64-bit Arm, under an emulator (tests/arm/run.py)
cuda      the CUDA kernels: they must build; their tests need a GPU and skip without one
asan      every test under the address and undefined-behaviour sanitizers
tsan      the suites named Threads* under the thread sanitizer
fuzz      every fuzz target for FUZZ_SECONDS (6) from its committed corpus
python    the Python package, in an environment that is made once (scripts/python.py)
serve     a running server under others' clients and load and its page in Chromium, in short forms (tests/server/live;
          in full: make soak, tests/server/live/run.py --page)
goldens   the golden files, made again, where `make goldens` has made an environment for it

It closes with what was skipped and why, a table with the processor time of each preset, and the line
"N passed, N failed, N skipped"; the exit code is 0 if nothing failed.
"""

import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRESETS = ["release", "arm", "cuda", "asan", "tsan", "fuzz", "python", "serve", "goldens"]
# Where not all is built; the rest would only be compiled again.
TARGETS = {"cuda": ["lca-cli", "test_cuda"]}
# Presets that are scripts: they test, and count in their last line; some make an environment for it, once.
SCRIPTS = {"arm": ROOT / "tests" / "arm" / "run.py", "python": ROOT / "scripts" / "python.py",
           "serve": ROOT / "tests" / "server" / "live" / "run.py"}
ENVIRONMENTS = ["python", "serve"]


def say(text):
    print(f"== {text}", flush=True)


def run(command, **kwargs):
    return subprocess.run([str(part) for part in command], cwd=ROOT, check=False, **kwargs)


def missing_tool(preset):
    """Why a preset cannot run here, or None."""
    if preset == "cuda" and not shutil.which(os.environ.get("CUDACXX") or "nvcc"):
        return "nvcc not found"
    if preset != "fuzz":
        return None
    if not shutil.which("clang++"):
        return "clang++ not found"
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "probe.cpp")
        source.write_text('extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) '
                          "{ return 0; }\n")
        probe = run(["clang++", "-fsanitize=fuzzer,address,undefined", source,
                     "-o", source.with_suffix("")], capture_output=True)
    return None if probe.returncode == 0 else "clang++ has no libFuzzer"


def build(preset):
    """Configures and builds; True if both went well."""
    if preset == "cuda" and run([sys.executable, "-B", ROOT / "scripts" / "cutlass.py"]).returncode:
        return False
    # Without a GPU the kernels are only compiled: once is enough.
    once = ["-DLCA_CUDA_PORTABLE=80"] if preset == "cuda" and not shutil.which("nvidia-smi") else []
    configure = run(["cmake", "--preset", preset, *once,
                     f"-DLCA_WERROR={os.environ.get('LCA_WERROR') or 'OFF'}"],
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if configure.returncode != 0:
        print(configure.stdout)
        return False
    quiet = [] if sys.stdout.isatty() else ["--quiet"]
    targets = ["--target", *TARGETS[preset]] if preset in TARGETS else []
    return run(["cmake", "--build", "--preset", preset, *targets,
                "--", "-k", "0", *quiet]).returncode == 0


def address_space_prefix(preset):
    """The thread sanitizer of older compilers cannot live with much address randomisation."""
    try:
        bits = int(pathlib.Path("/proc/sys/vm/mmap_rnd_bits").read_text())
    except (OSError, ValueError):
        return []
    fixed = ["setarch", "-R"]
    if preset == "tsan" and bits > 28 and shutil.which("setarch"):
        if run([*fixed, "true"], capture_output=True).returncode == 0:
            return fixed
    return []


class Skips:
    """What was skipped, by the reason for it."""

    def __init__(self):
        self.names = {}  # reason -> names

    def add(self, preset, name, why):
        self.names.setdefault(why or "no reason given", []).append(f"{preset}: {name}")

    def lines(self):
        for why, names in sorted(self.names.items(), key=lambda entry: -len(entry[1])):
            yield f"{why}:"
            shown = names if len(names) <= 6 else names[:4] + [f"… and {len(names) - 4} more"]
            yield from (f"    {name}" for name in shown)


def report_cases(path):
    """The test cases of a report; None where it is not there, or broken."""
    try:
        return list(ElementTree.parse(path).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return None


def cases_read(folder):
    """The name of each test of ctest, what became of it (passed, failed, skipped), and why it was skipped.

    A program that ctest knows as one test wrote a report of those that are in it; where it broke off, it is one
    that failed itself.
    """
    for case in report_cases(folder / "junit.xml") or []:
        name = case.get("name")
        unexplained = case.get("status") == "fail"
        inside = report_cases(folder / "reports" / f"{name}.xml")
        for one in inside or []:
            if one.get("status") != "run":
                continue
            skipped = one.find("skipped")
            result = "failed" if one.find("failure") is not None else "passed" if skipped is None else "skipped"
            why = "" if skipped is None else skipped.get("message", "").split("\n")[-1]
            yield f"{name}: {one.get('classname')}.{one.get('name')}", result, why
            unexplained = unexplained and result != "failed"
        if unexplained:
            yield name, "failed", ""
        elif inside is None and case.find("skipped") is not None:
            why = re.search(r"(?:SKIPPED: |: Skipped\n)(.+)", case.findtext("system-out") or "")
            yield name, "skipped", why[1] if why else ""
        elif inside is None and case.get("status") == "run":
            yield name, "passed", ""


def test(preset, skips):
    """Runs the preset's tests; returns how many passed, failed and were skipped."""
    folder = ROOT / "build" / preset
    report = folder / "junit.xml"
    report.unlink(missing_ok=True)
    shutil.rmtree(folder / "reports", ignore_errors=True)
    ctest = run([*address_space_prefix(preset), "ctest", "--preset", preset,
                 "--output-junit", report])
    results = collections.Counter()
    for name, result, why in cases_read(folder):
        results[result] += 1
        if result == "skipped":
            skips.add(preset, name, why)
    if ctest.returncode != 0 and results["failed"] == 0:
        results["failed"] = 1  # no tests, or a program that could not list its tests
    return results["passed"], results["failed"], results["skipped"]


def goldens(skips):
    """Makes the golden files again where that is possible; counts as `test` does."""
    result = run([sys.executable, "-B", ROOT / "scripts" / "goldens.py", "--existing"],
                 stdout=subprocess.PIPE, text=True)
    print(result.stdout, end="", flush=True)
    kinds = re.search(r"^goldens: (\d+) kinds agree, (\d+) do not", result.stdout, re.MULTILINE)
    skipped = re.findall(r"^SKIPPED: (?:goldens of (.+?): )?(.+)$", result.stdout, re.MULTILINE)
    for name, why in skipped:
        skips.add("goldens", name or "all", why)
    if result.returncode not in (0, 77):
        return (int(kinds[1]), int(kinds[2]), len(skipped)) if kinds else (0, 1, len(skipped))
    return (int(kinds[1]) if kinds else 0), 0, len(skipped)


def environments_begin(presets):
    """Starts making the scripts' environments, which wait for the network, beside the builds; by preset."""
    if len(presets) == 1:
        return {}
    (ROOT / "build").mkdir(exist_ok=True)
    begun = {}
    for preset in presets:
        if preset in ENVIRONMENTS:
            with open(ROOT / "build" / f"{preset}-environment.log", "w", encoding="utf-8") as log:
                begun[preset] = subprocess.Popen([sys.executable, "-B", SCRIPTS[preset], "--environment"], cwd=ROOT,
                                                 stdout=log, stderr=subprocess.STDOUT)
    return begun


def script(preset, skips):
    """Runs a script that builds and tests; counts as `test` does."""
    process = subprocess.Popen([sys.executable, "-B", SCRIPTS[preset]], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    lines = []
    for line in process.stdout:  # shown as it comes: making the environment takes minutes
        print(line, end="", flush=True)
        lines.append(line)
    return script_counts(preset, "".join(lines), process.wait(), skips)


def script_counts(preset, text, code, skips):
    """Counts out of what a script said and the code it ended with."""
    if code == 77:
        why = re.search(r"^SKIPPED: (.+)$", text, re.MULTILINE)
        skips.add(preset, "all", why[1] if why else "")
        return 0, 0, 1
    for count, place, why in re.findall(r"^SKIPPED \[(\d+)\] (\S+?):(?:\d+:)? (.+)$", text, re.MULTILINE):
        skips.add(preset, f"{place} ({count})", why)
    counts = re.search(rf"^{preset}: (\d+) passed, (\d+) failed, (\d+) skipped$", text, re.MULTILINE)
    passed, failed, skipped = map(int, counts.groups()) if counts else (0, 1, 0)
    return passed, failed if failed or not code else 1, skipped


def processor_minutes():
    times = os.times()
    return (times.children_user + times.children_system) / 60


def preset_run(preset, skips):
    """Builds and tests; returns the counts and a note."""
    why = missing_tool(preset)
    if why:
        skips.add(preset, "all", why)
        return (0, 0, 1), "skipped"
    if preset == "goldens":
        say("goldens: check")
        return goldens(skips), ""
    if preset in SCRIPTS:
        say(f"{preset}: build and test" if preset != "serve" else f"{preset}: test")
        return script(preset, skips), ""
    start = time.monotonic()
    say(f"{preset}: build")
    if not build(preset):
        return (0, 1, 0), "did not build"
    say(f"{preset}: test (built in {(time.monotonic() - start) / 60:.1f} min)")
    return test(preset, skips), ""


def main(presets):
    unknown = [name for name in presets if name not in PRESETS]
    if unknown:
        sys.exit(f"test: unknown preset {unknown[0]}; there are {', '.join(PRESETS)}")
    run([sys.executable, "-B", ROOT / "scripts" / "test_data.py"])
    totals = [0, 0, 0]
    table = []
    skips = Skips()
    environments = environments_begin(presets)
    for preset in presets:
        if preset in environments:
            environments[preset].wait()  # where it failed, the script tries again and says why
        start, before = time.monotonic(), processor_minutes()
        counts, note = preset_run(preset, skips)
        table.append(f"{preset:<8} {counts[0]:>5} passed {counts[1]:>4} failed {counts[2]:>4} skipped"
                     f" {(time.monotonic() - start) / 60:6.1f} min"
                     f" {processor_minutes() - before:6.1f} core-min  {note}".rstrip())
        totals = [total + count for total, count in zip(totals, counts)]
    if skips.names:
        say("skipped, and why")
        print("\n".join(skips.lines()))
    say("summary")
    print("\n".join(table))
    print(f"{processor_minutes():.1f} core-minutes")
    print("{} passed, {} failed, {} skipped".format(*totals), flush=True)
    return 1 if totals[1] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or PRESETS))
