"""What every make_*.py here shares: where files go, and `--check`.

A script has one function `make(root)` that writes its files below `root`. Run plainly, root is this
folder; with --check it is a scratch folder, and the files are compared with the stored ones. They
must be the same bytes, or, where they hold computed numbers, equal up to the rounding of another
processor.
"""

import argparse
import json
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# Of a tensor's largest value. Float32 sums in another order move logits by less than 1e-5 of it.
LOGITS = 2e-5
JSON_NUMBERS = 1e-6


def files_under(root, patterns):
    """Relative name -> path of every file that a pattern matches."""
    return {path.relative_to(root).as_posix(): path
            for pattern in patterns for path in root.glob(pattern) if path.is_file()}


def tensors_close(made, stored):
    from safetensors import safe_open
    from safetensors.torch import load_file
    with safe_open(made, "pt") as a, safe_open(stored, "pt") as b:
        if a.metadata() != b.metadata():
            return False
    a, b = load_file(made), load_file(stored)
    if {k: (v.shape, v.dtype) for k, v in a.items()} != {k: (v.shape, v.dtype) for k, v in b.items()}:
        return False
    for name, tensor in b.items():
        if not tensor.is_floating_point():
            if not a[name].equal(tensor):
                return False
        elif tensor.numel():
            # Written so that NaN is not close to anything.
            if not (a[name] - tensor).abs().max() <= LOGITS * tensor.abs().max():
                return False
    return True


def json_close(a, b):
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(json_close(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(json_close(x, y) for x, y in zip(a, b))
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= JSON_NUMBERS * max(1e-3, abs(a), abs(b))
    return type(a) is type(b) and a == b


def is_close(made, stored):
    """Whether two files that differ hold the same numbers up to rounding."""
    if made.name.startswith("golden") and made.suffix == ".safetensors":
        return tensors_close(made, stored)
    if made.suffix == ".json":
        return json_close(json.loads(made.read_text()), json.loads(stored.read_text()))
    return False


def compare(made_root, patterns, stored_root=HERE):
    """Prints what differs and a line of counts; the exit code."""
    made, stored = files_under(made_root, patterns), files_under(stored_root, patterns)
    bad = [f"{name}: not stored" for name in sorted(made.keys() - stored.keys())]
    bad += [f"{name}: no longer made" for name in sorted(stored.keys() - made.keys())]
    rounded = 0
    for name in sorted(made.keys() & stored.keys()):
        if made[name].read_bytes() == stored[name].read_bytes():
            continue
        if is_close(made[name], stored[name]):
            rounded += 1
        else:
            bad.append(f"{name}: differs")
    if not made:
        bad.append("nothing was made")
    for line in bad:
        print(line)
    print(f"{len(made)} files: {len(made) - rounded - len(bad)} identical, "
          f"{rounded} equal up to rounding, {len(bad)} wrong")
    return 1 if bad else 0


def check(make, patterns):
    with tempfile.TemporaryDirectory() as scratch:
        make(pathlib.Path(scratch))
        return compare(pathlib.Path(scratch), patterns)


def main(doc, make, patterns):
    """The command line of a script whose files are those that match `patterns` below this folder."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="make everything again elsewhere and compare")
    if parser.parse_args().check:
        sys.exit(check(make, patterns))
    make(HERE)
