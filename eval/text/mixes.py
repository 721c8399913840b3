#!/usr/bin/env python3
"""Mixes retrieval tasks into the packed texts: all folders that the recipe smollm2 names.

    eval/text/mixes.py [FOLDER] [--jobs N] [--share X]

FOLDER has packed, packed-settle and packed-heldout (docs/training-data.md, "The texts for SmolLM2"); the mixtures are
written beside them. --share makes X of the tokens, for trials. Folders that are there already stay.
"""
import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys

TASKS = "several=8,fact=0.7,distractors=1.2,values=0.5,chain=0.3,passage=0.7,recite=2"
#: Folder, text, tokens and options. The last stage has more text, over a third of it chat.
MIXES = (
    ("mixed-1024", "packed", "11M", "--length 1024 --task-share 0.9 --density 0.6 --seed 1"),
    ("mixed-4096", "packed", "7M", "--length 4096 --task-share 0.9 --density 0.6 --seed 2"),
    ("mixed-8192", "packed", "18M", "--length 8192 --task-share 0.9 --density 0.6 --seed 3"),
    ("mixed-32768", "packed", "14M", "--length 32768 --task-share 0.85 --density 0.4 --seed 6"),
    ("mixed-settle", "packed-settle", "16M", "--length 8192 --task-share 0.5 --density 0.6 --seed 9"),
    ("heldout-1024", "packed-heldout", "300K", "--length 1024"),
    ("heldout-8192", "packed-heldout", "1M", "--length 8192"),
)


def run(*words):
    command = [sys.executable, "-m", "lca.data", *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout.strip().splitlines()[-1]}")


def tokens(amount, share):
    unit = {"K": 1_000, "M": 1_000_000}[amount[-1]]
    return max(1, round(float(amount[:-1]) * unit * share))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--share", type=float, default=1.0)
    options = parser.parse_args()

    def make(mix):
        name, text, amount, flags = mix
        tasks = [] if name.startswith("heldout") else ["--tasks", TASKS]
        run("mix", options.folder / text, options.folder / name, *flags.split(), *tasks, "--tokens", tokens(amount, options.share))
        print(f"{name}: made", flush=True)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for done in [pool.submit(make, mix) for mix in MIXES]:
            try:
                done.result()
            except RuntimeError as error:
                pool.shutdown(cancel_futures=True)
                sys.exit(f"mixes: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
