#!/usr/bin/env python3
"""Runs the tests against a running server.

    tests/server/live/run.py                 all of them, and the page's in short
    tests/server/live/run.py --page          all of the page's (tests/server/page), with SmolLM2 where it is there
    tests/server/live/run.py --environment   only make the environment
    tests/server/live/run.py -- ARGS…        arguments for pytest, such as -k sessions

PAGE_PICTURES=1 with --page makes docs/images/serve-*.png again.

They run in an environment of their own below build/, made once from requirements.txt; where it cannot be made the
script says "SKIPPED: why" and ends with code 77. $LCA_PROGRAM names another program than build/release/bin/lca.
The last line counts: "serve: N passed, N failed, N skipped".
"""

import argparse
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
PAGE = HERE.parent / "page"
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import python as package  # noqa: E402  environments and pytest, as for the Python package


def environment():
    """The interpreter with the packages."""
    python, version = package.interpreter()
    package.BUILD.mkdir(exist_ok=True)
    lines = (HERE / "requirements.txt").read_text().splitlines()
    words = [line for line in lines if line and not line.startswith("#")]
    return package.environment(python, version, words, "serve-venv")


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--environment", action="store_true", help="make the environment and stop")
    options.add_argument("--page", action="store_true", help="all tests of the page, in Chromium")
    options.add_argument("pytest", nargs="*", help="arguments for pytest")
    args = options.parse_args()
    inside = environment()
    if args.environment:
        return 0
    program = pathlib.Path(os.environ.get("LCA_PROGRAM") or ROOT / "build" / "release" / "bin" / "lca")
    if not program.exists():
        package.skip(f"{program} is not built")
    always = ["-p", "no:cacheprovider"]
    chosen = args.pytest or ["-q"]
    # The page's tests have a conftest of their own: two runs.
    runs = [] if args.page else [(HERE, "junit-serve.xml", chosen)]
    if args.page or not args.pytest:
        runs.append((PAGE, "junit-page.xml", chosen if args.page else [*chosen, "-m", "short"]))
    totals = [package.pytest(inside, [*always, *words], package.BUILD / report, folder, LCA_PROGRAM=str(program))
              for folder, report, words in runs]
    counts = [sum(each) for each in zip(*totals)]
    print("serve: {} passed, {} failed, {} skipped".format(*counts), flush=True)
    return 1 if counts[1] else 0


if __name__ == "__main__":
    sys.exit(main())
