#!/usr/bin/env python3
"""Trains arms of the comparison of adapters, several at a time on one GPU.

    eval/train.py ARM … --data FOLDER [--adapters DIR] [--jobs 2] [--set KEY=VALUE …]

Arms and their recipes are in eval/arms.json, FOLDER has what eval/text/prepare.py made. A step of 16K tokens keeps a
GPU busy for little more than half of the time; runs side by side fill it, the better where NVIDIA's MPS, which is
started where it is found, lets their kernels run together (three runs on an H200: 280K tokens a second). DIR gets a
folder for each adapter, where eval/measure.py looks for them; logs and curves stay in FOLDER/runs/ARM. The same command
goes on after an interruption.
"""
import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ARMS = json.loads((HERE / "arms.json").read_text())


def train(arm, options):
    """Runs the recipe of an arm and copies its adapter; what went wrong, or None."""
    about, output = ARMS[arm], pathlib.Path("runs") / arm
    changes = [f"output={output}", *about.get("set", []), *options.changes]
    log = options.data / f"runs/{arm}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.time()
    # torch first: it brings its own CUDA libraries, and a process should have one set of them.
    call = "import sys, torch; from lca.finetune.__main__ import main; sys.exit(main())"
    with open(log, "a", encoding="utf-8") as file:
        done = subprocess.run([sys.executable, "-c", call, about["recipe"], *(f"--set={each}" for each in changes)],
                              cwd=options.data, stdout=file, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        return f"{arm} failed; see {log}"
    draft, target = options.adapters / f".{arm}", options.adapters / arm
    for folder in (draft, target):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(options.data / output / "adapter", draft)
    draft.rename(target)  # an adapter that is there is whole
    print(f"{arm}: {time.time() - began:.0f} s, {options.adapters / arm}", flush=True)
    return None


@contextlib.contextmanager
def kernels_together():
    """MPS for the processes that are started meanwhile, where it is installed and works."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for each in own.values():
            os.mkdir(each)
        before = dict(os.environ)
        os.environ.update(own)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": False}
        try:
            started = subprocess.run([control, "-d"], **quiet).returncode == 0
            probe = "import torch; torch.ones(1, device='cuda').sum().item()"
            if not started or subprocess.run([sys.executable, "-c", probe], **quiet).returncode:
                print("train: MPS does not work here; runs take turns on the GPU", flush=True)
                for name in own:
                    del os.environ[name]
            yield
        finally:
            os.environ.update(own)
            subprocess.run([control], input=b"quit\n", **quiet)
            os.environ.clear()
            os.environ.update(before)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arms", nargs="+", choices=[name for name, about in ARMS.items() if "recipe" in about])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--adapters", type=pathlib.Path, default=pathlib.Path("adapters"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes")
    options = parser.parse_args()
    options.data, options.adapters = (pathlib.Path(os.path.abspath(each)) for each in (options.data, options.adapters))
    with kernels_together() if options.jobs > 1 else contextlib.nullcontext(), \
            concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        problems = [each for each in pool.map(lambda arm: train(arm, options), options.arms) if each]
    if problems:
        sys.exit("train: " + "; ".join(problems))
    return 0


if __name__ == "__main__":
    sys.exit(main())
