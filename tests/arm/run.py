#!/usr/bin/env python3
"""Builds the tests of ops/cpu for 64-bit Arm and runs them under an emulator, as processors with and without dot
products of bytes.

    tests/arm/run.py

It needs aarch64-linux-gnu-g++ (or an Arm's own g++), qemu-aarch64 and GoogleTest's source; where one is missing it says
"SKIPPED: why" and ends with code 77. The last line counts: "arm: N passed, N failed, N skipped".
"""

import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

HERE = pathlib.Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "arm"
GOOGLETEST = pathlib.Path("/usr/src/googletest/googletest")

# Of many rows, which the stand-in for oneDNN multiplies: no code of this processor, and slow here.
NOT_HERE = "-Linear.RunsTogetherGetWhatEachGetsAlone:Linear.Bfloat16FactorsAreRoundedAndSumsAreNot"
# Emulated processor, LCA_CPU, the level that must be in use then, tests.
RUNS = [("max", "", "dotprod", NOT_HERE), ("cortex-a72", "", "neon", NOT_HERE + ":ThreadsLora.*"),  # the same code, slow
        ("max", "neon", "neon", "ArmPath.*:Strips.Multiply*"), ("max", "scalar", "scalar", "ArmPath.*")]


def skip(why):
    print(f"SKIPPED: {why}", flush=True)
    sys.exit(77)


def run(command, **kwargs):
    return subprocess.run([str(part) for part in command], check=False, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, **kwargs)


def build(compiler):
    """True if it went well; else the compiler's words are printed."""
    configure = ["cmake", "-S", HERE, "-B", BUILD, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={compiler}",
                 f"-DLCA_GOOGLETEST={GOOGLETEST}", f"-DLCA_WERROR={os.environ.get('LCA_WERROR') or 'OFF'}"]
    for command in (configure, ["cmake", "--build", BUILD, "--", "-k", "0"]):
        done = run(command)
        if done.returncode:
            print(done.stdout, flush=True)
            return False
    return True


def test(emulator, cpu, asked, level, tests):
    """Runs the program once; how many tests passed, failed and were skipped."""
    name = f"{cpu} {asked}".rstrip().replace(" ", "-")
    report = BUILD / f"junit-{name}.xml"
    report.unlink(missing_ok=True)
    done = run([emulator, "-cpu", cpu, BUILD / "test_arm", "--gtest_brief=1", f"--gtest_filter={tests}",
                f"--gtest_output=xml:{report}"], env={**os.environ, "LCA_CPU": asked, "LCA_TEST_LEVEL": level})
    try:
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        cases = []
    failed = sum(case.find("failure") is not None for case in cases)
    skipped = [case for case in cases if case.find("skipped") is not None]
    path = re.search(r"^PATH: (\w+)$", done.stdout, re.MULTILINE)
    if failed == 0 and (done.returncode != 0 or not cases or path is None or path[1] != level):
        failed = 1  # it crashed, or ran nothing, or not what it should
    if failed:
        print(done.stdout, flush=True)
    for case in skipped:
        why = case.find("skipped").get("message", "").strip().splitlines()
        print(f"SKIPPED [1] {name}/{case.get('classname')}.{case.get('name')}: {why[-1] if why else 'no reason given'}")
    counts = max(0, len(cases) - failed - len(skipped)), failed, len(skipped)
    print(f"arm: -cpu {cpu}{' LCA_CPU=' + asked if asked else ''}: took {path[1] if path else 'no path'}; "
          "{} passed, {} failed, {} skipped".format(*counts), flush=True)
    return counts


def main():
    compiler = shutil.which("g++" if platform.machine() == "aarch64" else "aarch64-linux-gnu-g++")
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if compiler is None:
        skip("aarch64-linux-gnu-g++ not found")
    if emulator is None:
        skip("qemu-aarch64 not found")
    if not GOOGLETEST.is_dir():
        skip(f"{GOOGLETEST} not found")
    if not build(compiler):
        print("arm: 0 passed, 1 failed, 0 skipped", flush=True)
        return 1
    totals = [sum(each) for each in zip(*(test(emulator, *each) for each in RUNS))]
    print("arm: {} passed, {} failed, {} skipped".format(*totals), flush=True)
    return 1 if totals[1] else 0


if __name__ == "__main__":
    sys.exit(main())
