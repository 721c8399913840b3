#!/usr/bin/env python3
"""Makes every golden file of tests/golden again and compares it with the stored one.

    scripts/goldens.py              make the environment first where it is absent or out of date
    scripts/goldens.py --existing   as part of `make test`: skip where the environment is not there (exit
                                    code 77), and skip what takes many minutes

The environment is build/goldens-venv, with the pinned packages of tests/golden/requirements.txt; torch
and what it brings along are some 6 GB. The exit code is 1 if a golden differs.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
VENV = ROOT / "build" / "goldens-venv"
REQUIREMENTS = GOLDEN / "requirements.txt"
STAMP = VENV / "requirements.txt"
DATA = pathlib.Path(os.environ.get("LCA_TEST_DATA") or ROOT / "build" / "test-data")
SMOLLM2 = DATA / "SmolLM2-135M-Instruct.Q4_1.gguf"

RULER = DATA / "RULER"

SLOW = {"models/smollm2"}
# kind of golden: its script and arguments, and the file it cannot do without
KINDS = {
    "op": (["make_op.py"], None),
    "backward": (["make_backward.py"], None),
    "models": (["make_models.py"], None),
    "models/smollm2": (["make_models.py", "--smollm2", str(SMOLLM2)], SMOLLM2),
    "quants": (["make_quants.py"], None),
    "quants (packing)": (["make_packing.py"], None),
    "tokenizers": (["make_tokenizers.py"], DATA / "deepseek" / "tokenizer.json"),
    "adapter": (["make_adapter.py"], None),
    "rope": (["make_rope.py"], None),
    "sampler": (["make_sampler.py"], None),
    "chat": (["make_chat.py"], None),
    "ruler": (["make_ruler.py", str(RULER)], RULER),
    "tools": (["make_tools.py"], None),
}


def ready():
    return STAMP.exists() and STAMP.read_text() == REQUIREMENTS.read_text()


def install():
    """True if the environment has the pinned packages."""
    python = VENV / "bin" / "python"
    if not python.exists() and subprocess.run([sys.executable, "-m", "venv", VENV], check=False).returncode:
        return False
    print(f"installing {REQUIREMENTS.relative_to(ROOT)} into {VENV.relative_to(ROOT)}", flush=True)
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", REQUIREMENTS]
    if subprocess.run(command, check=False).returncode:
        return False
    STAMP.write_text(REQUIREMENTS.read_text())
    return True


def check(kind):
    """One line of result, and whether it is a success; None where it is skipped."""
    words, needs = KINDS[kind]
    if needs and not needs.exists():
        way = "git clone https://github.com/NVIDIA/RULER" if needs == RULER else "scripts/test_data.py"
        print(f"SKIPPED: goldens of {kind}: {needs} is not there; {way} gets it", flush=True)
        return None
    # One thread, so that sums have one order; and nothing is fetched.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    start = time.monotonic()
    result = subprocess.run([VENV / "bin" / "python", GOLDEN / words[0], *words[1:], "--check"], cwd=GOLDEN,
                            env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in result.stdout.splitlines() if line.strip()]
    if result.returncode:
        print("\n".join(lines[-40:-1] + result.stderr.splitlines()[-20:]))
    print(f"{kind:<17} {lines[-1] if lines else 'said nothing'} ({time.monotonic() - start:.0f} s)", flush=True)
    return result.returncode == 0


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--existing", action="store_true", help="skip where the environment is not there")
    options.add_argument("kinds", nargs="*", metavar="KIND", help=f"some of: {', '.join(KINDS)}")
    args = options.parse_args()
    if not ready():
        if args.existing:
            print("SKIPPED: no environment with the pinned packages; make goldens makes it (6 GB)")
            return 77
        if not install():
            print("goldens: the packages cannot be installed; the checks need a network or an environment "
                  f"in {VENV.relative_to(ROOT)}", file=sys.stderr)
            return 1
    subprocess.run([sys.executable, "-B", ROOT / "scripts" / "test_data.py"], check=False)
    unknown = [kind for kind in args.kinds if kind not in KINDS]
    if unknown:
        sys.exit(f"goldens: unknown kind {unknown[0]}; there are {', '.join(KINDS)}")
    kinds = args.kinds or list(KINDS)
    for kind in [kind for kind in kinds if args.existing and kind in SLOW]:
        print(f"SKIPPED: goldens of {kind}: takes ten minutes; make goldens checks it")
        kinds.remove(kind)
    results = [check(kind) for kind in kinds]
    wrong = results.count(False)
    print(f"goldens: {results.count(True)} kinds agree, {wrong} do not, {results.count(None)} skipped")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
