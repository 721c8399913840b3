#!/usr/bin/env python3
"""Trains arms of the comparison of adapters and measures each as soon as it is trained, several at a time.

    eval/run.py ARM … --data FOLDER --lca build/cuda/bin/lca --texts TEXTS --out OUT [--jobs 3] [--seconds N]
                [--parts NAMES] [--tasks NAMES] [--words DIR] [--squad FILE] [--hotpotqa FILE] [--seed N] [--small]
                [--device cuda] [--set KEY=VALUE …]

eval/train.py and eval/measure.py do the work and explain FOLDER and TEXTS; arms without a recipe are only measured. OUT
has all there is to keep, as soon as it is known: OUT/adapters/ARM, OUT/results/ARM.json, and a log for each arm. After
--seconds what is still running is ended; the same command goes on from there.
"""
import argparse
import concurrent.futures
import contextlib
import os
import pathlib
import sys
import threading
import time

import processes
import train

HERE = pathlib.Path(__file__).resolve().parent
RULER_TEXTS = ("words", "squad", "hotpotqa")  # what RULER reads besides the essays


class Run:
    def __init__(self, options):
        self.options, self.processes = options, processes.Processes()

    def command(self, words, log):
        """Runs a program of this folder; whether it succeeded."""
        with open(log, "a", encoding="utf-8") as file:
            return self.processes.run([sys.executable, *words], file) == 0

    def arm(self, name):
        """Trains an arm where it has a recipe and measures it; what went wrong, or None."""
        options, log = self.options, self.options.out / f"{name}.log"
        adapters = options.out / "adapters"
        began = time.time()
        if "recipe" in train.ARMS[name] and not (adapters / name).exists():
            changes = [f"--set={change}" for change in options.changes]
            if not self.command([HERE / "train.py", name, "--jobs", 1, "--data", options.data, "--adapters", adapters,
                                 *changes], log):
                return self.problem(name, "training", log)
            print(f"{name}: trained in {time.time() - began:.0f} s", flush=True)
        flags = ["--small"] if options.small else []
        for flag in ("parts", "tasks", *RULER_TEXTS):
            if getattr(options, flag):
                flags += [f"--{flag}", getattr(options, flag)]
        began = time.time()
        result = options.out / "results" / f"{name}.json"
        if not self.command([HERE / "measure.py", name, "--lca", options.lca, "--texts", options.texts, "--adapters",
                             adapters, "--work", options.out / "work", "--out", result, "--seed", options.seed, "--model",
                             options.model, "--device", options.device, *flags], log):
            return self.problem(name, "measuring", log)
        print(f"{name}: measured in {time.time() - began:.0f} s", flush=True)
        return None

    def problem(self, name, what, log):
        if self.processes.over:
            return f"{what} {name} was ended, its time was up"
        return f"{what} {name} failed; see {log}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arms", nargs="+", choices=list(train.ARMS))
    for name in ("data", "lca", "texts", "out", *RULER_TEXTS):
        parser.add_argument(f"--{name}", type=lambda path: pathlib.Path(os.path.abspath(path)),
                            required=name not in RULER_TEXTS)
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--parts")
    parser.add_argument("--tasks")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes")
    options = parser.parse_args()
    for folder in ("adapters", "results", "work"):
        (options.out / folder).mkdir(parents=True, exist_ok=True)
    run = Run(options)
    clock = threading.Timer(options.seconds, run.processes.end) if options.seconds else None
    if clock:
        clock.daemon = True
        clock.start()
    try:
        with train.kernels_together() if options.jobs > 1 else contextlib.nullcontext(), \
                concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            try:
                problems = [each for each in pool.map(run.arm, options.arms) if each]
            except KeyboardInterrupt:
                run.processes.end()
                raise
    finally:
        if clock:
            clock.cancel()
    if problems:
        sys.exit("run: " + "; ".join(problems))
    return 0


if __name__ == "__main__":
    sys.exit(main())
