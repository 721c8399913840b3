#!/usr/bin/env python3
"""Builds the Python package and tests it.

    scripts/python.py              everything: package, tests, wheel in a clean environment
    scripts/python.py --build      only the package: build/python/python
    scripts/python.py --environment  only the environment of the tests
    scripts/python.py --oldest     with the oldest torch and transformers it supports
    scripts/python.py --install    `pip install .` as users run it, where pip compiles the library (minutes)
    scripts/python.py [-- ARGS…]   arguments for pytest, instead of the wheel's test

The tests run in an environment of their own below build/, with the packages of python/requirements.txt (torch and
what it brings along are some 6 GB). It is made once for each version of that file and of Python; where it cannot be
made, for want of a network, say, the script says "SKIPPED: why" and ends with code 77. $LCA_PYTHON names another
interpreter (3.11 or newer). The last line counts: "python: N passed, N failed, N skipped".
"""

import argparse
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
REQUIREMENTS = {"newest": ROOT / "python" / "requirements.txt", "oldest": ROOT / "python" / "requirements-oldest.txt"}
CLEAN = ["numpy", "pytest"]  # what the wheel is tested beside
CLEAN_TESTS = ["test_numpy.py", "test_numpy_engine.py"]
OLDEST = (3, 11)


def say(text):
    print(f"python: {text}", flush=True)


def run(command, folder=ROOT, **kwargs):
    return subprocess.run([str(part) for part in command], cwd=folder, check=False, **kwargs)


def skip(why):
    print(f"SKIPPED: {why}", flush=True)
    sys.exit(77)


def version_of(python):
    """The interpreter's version as a pair, or None."""
    found = run([python, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True)
    return tuple(map(int, found.stdout.split())) if found.returncode == 0 else None


def interpreter():
    """The interpreter to use, and its version."""
    chosen = os.environ.get("LCA_PYTHON")
    for name in [chosen] if chosen else [sys.executable, "python3", "python3.12", "python3.11"]:
        path = shutil.which(name)
        version = path and version_of(path)
        if version and version >= OLDEST:
            return path, version
    needs = f"the package needs Python {OLDEST[0]}.{OLDEST[1]} or newer"
    if chosen:
        sys.exit(f"python: {needs}, and LCA_PYTHON={chosen} is none that runs")
    skip(f"{needs}; LCA_PYTHON may name one")


def install(python, words, what):
    """Runs pip and shows what it fetches; the error's last line, or None."""
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off", *words]
    process = subprocess.Popen([str(word) for word in command], cwd=ROOT, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
    last = ""
    for line in process.stdout:
        line = line.strip()
        if line.startswith("Downloading "):
            print(f"  {what}: {line}", flush=True)
        elif line.startswith("Installing collected"):
            print(f"  {what}: installing", flush=True)
        last = line or last
    return last if process.wait() else None


def environment(python, version, words, name):
    """The interpreter of a virtual environment with the packages; made where it is not there yet."""
    key = hashlib.sha256(f"{version} {words}".encode()).hexdigest()[:12]
    folder = BUILD / f"{name}-{key}"
    inside = folder / "bin" / "python"
    stamp = folder / "complete"
    if stamp.exists():
        return inside
    start = time.monotonic()
    say(f"making {folder.relative_to(ROOT)}, once")
    shutil.rmtree(folder, ignore_errors=True)
    made = run([python, "-m", "venv", folder], capture_output=True, text=True)
    if made.returncode:
        skip(f"no virtual environment can be made: {(made.stdout + made.stderr).strip().splitlines()[-1]}")
    problem = install(inside, words, name)
    if problem is not None:
        skip(f"the packages of {name} cannot be installed: {problem}")
    stamp.touch()
    say(f"made in {time.monotonic() - start:.0f} s")
    return inside


def build(python, folder):
    """Builds the package in a folder; True if that went well."""
    preset = ["cmake", "--preset", "python", "-B", folder, f"-DPython_EXECUTABLE={python}",
              f"-DLCA_WERROR={os.environ.get('LCA_WERROR') or 'OFF'}"]
    configure = run(preset, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if configure.returncode:
        print(configure.stdout)
        return False
    quiet = [] if sys.stdout.isatty() else ["--quiet"]
    return run(["cmake", "--build", folder, "--target", "lca-python", "--", *quiet]).returncode == 0


def pytest(python, arguments, report, folder=ROOT, workers=0, **environment_changes):
    """Runs pytest in a folder, in several processes if so told; returns how many passed, failed and were skipped."""
    report.unlink(missing_ok=True)
    surroundings = {"OMP_NUM_THREADS": "1",  # of torch, whose threads take longer to meet than tiny models to compute
                    **os.environ, "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1", **environment_changes}
    code = run([python, "-m", "pytest", f"--junitxml={report}", "-rs", "--durations=5",
                *([f"--numprocesses={workers}", "--dist=worksteal"] if workers else []), *arguments],
               folder, env=surroundings).returncode
    try:
        suite = ElementTree.parse(report).getroot().find("testsuite")
        total, skipped = int(suite.get("tests")), int(suite.get("skipped"))
        failed = int(suite.get("failures")) + int(suite.get("errors"))
    except (OSError, ElementTree.ParseError, AttributeError):
        return 0, 1, 0
    if code and not failed:
        failed = 1
    return max(total - failed - skipped, 0), failed, skipped


def test_wheel(python, clean, built):
    """Makes a wheel around the library that is built, installs it and runs what needs numpy alone."""
    say("wheel")
    folder = built / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    library = built / "python" / "lca" / "liblca.so"
    made = run([python, "-m", "pip", "wheel", ".", "--quiet", "--no-build-isolation", "--no-deps", "-w", folder,
                "-C", f"cmake.define.LCA_LIBRARY={library}", "-C", f"build-dir={built / 'wheel-build'}"],
               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wheels = sorted(folder.glob("lca-*.whl"))
    if made.returncode or not wheels:
        print(made.stdout)
        return 0, 1, 0
    install_wheel = [clean, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
                     "--force-reinstall", "--no-index", wheels[0]]
    if run(install_wheel).returncode:
        return 0, 1, 0
    return pytest_installed(clean, "junit-wheel.xml")


def pytest_installed(clean, report):
    """Runs what needs numpy alone with the package that is installed, from a folder of no meaning."""
    with tempfile.TemporaryDirectory(prefix="lca-") as folder:
        arguments = ["-p", "no:cacheprovider", *(ROOT / "python" / "tests" / name for name in CLEAN_TESTS)]
        return pytest(clean, arguments, BUILD / report, folder, PYTHONPATH="")


def test_install(python, version):
    """`pip install .` into a new environment: pip gets the tools and compiles the library."""
    say("pip install .")
    clean = environment(python, version, CLEAN, "python-install")
    start = time.monotonic()
    folder = BUILD / "python-install"
    shutil.rmtree(folder, ignore_errors=True)
    # A folder of its own only so that the compiler cache has what other builds compiled.
    if run([clean, "-m", "pip", "install", "--disable-pip-version-check", "--force-reinstall", "--no-deps",
            "-C", f"build-dir={folder}", "."]).returncode:
        return 0, 1, 0
    library = folder / "python" / "lca" / "liblca.so"
    kind = "with CUDA kernels" if b".nv_fatbin" in library.read_bytes() else "for the CPU alone"
    say(f"installed in {(time.monotonic() - start) / 60:.1f} min, {kind}: liblca.so has "
        f"{library.stat().st_size / 2**20:.0f} MiB")
    return pytest_installed(clean, "junit-install.xml")


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--environment", action="store_true", help="make the environment of the tests and stop")
    options.add_argument("--build", action="store_true", help="build the package and stop")
    options.add_argument("--oldest", action="store_true", help="test with the oldest versions of others' packages")
    options.add_argument("--install", action="store_true", help="pip install . in a clean environment, and test that")
    options.add_argument("pytest", nargs="*", help="arguments for pytest")
    args = options.parse_args()
    python, version = interpreter()
    BUILD.mkdir(exist_ok=True)
    if args.install:
        counts = test_install(python, version)
        say("{} passed, {} failed, {} skipped".format(*counts))
        return 1 if counts[1] else 0
    lines = REQUIREMENTS["oldest" if args.oldest else "newest"].read_text().splitlines()
    words = [line for line in lines if line and not line.startswith("#")]
    inside = environment(python, version, words, "python-venv")
    if args.environment:
        return 0
    say("build")
    built = BUILD / ("python-oldest" if args.oldest else "python")  # each with its interpreter
    if not build(inside, built):
        say("0 passed, 1 failed, 0 skipped")
        return 1
    if args.build:
        return 0
    say("test")
    package = str(built / "python")
    workers = 0 if args.pytest else min(4, len(os.sched_getaffinity(0)))
    counts = pytest(inside, args.pytest or [ROOT / "python" / "tests"], BUILD / "junit-python.xml",
                    workers=workers, PYTHONPATH=package)
    if not args.pytest:
        clean = environment(python, version, CLEAN, "python-clean")
        counts = tuple(map(sum, zip(counts, test_wheel(inside, clean, built))))
    say("{} passed, {} failed, {} skipped".format(*counts))
    return 1 if counts[1] else 0


if __name__ == "__main__":
    sys.exit(main())
