#!/usr/bin/env python3
"""Golden files for `lca op attention`.

op_attention.py is the independent implementation, op_cases.py lists the cases.  Written are,
for each of them,
    op/NAME.safetensors           an input file of `lca op attention`
    op/NAME.expected.safetensors  what must come out, in float64

    python make_op.py            (re)write all files and the table in op/README.md
    python make_op.py --check    make everything again in memory and compare
    python make_op.py --list     print the table of cases

Everything is seeded from the case's name, so a second run gives the same bytes.
"""

import argparse
import pathlib
import re
import sys

import torch
from safetensors.torch import load

from op_cases import cases

torch.set_num_threads(1)

HERE = pathlib.Path(__file__).resolve().parent

# --------------------------------------------------------------------------------------
# Writing and checking a folder of cases
# --------------------------------------------------------------------------------------

MARKS = re.compile("(<!-- cases: written by make_[a-z]+.py -->\n).*(<!-- end of cases -->)", re.DOTALL)


def table(all_cases):
    head = ["| case | input | options | what it is for |", "| --- | --- | --- | --- |"]
    return "\n".join(head + [c.row() for c in all_cases])


def readme_with_table(text, all_cases):
    assert MARKS.search(text)
    return MARKS.sub(lambda marks: f"{marks[1]}{table(all_cases)}\n{marks[2]}", text)


def file_names(folder, case):
    return folder / f"{case.name}.safetensors", folder / f"{case.name}.expected.safetensors"


def write(folder, all_cases):
    wanted = set()
    total = 0
    for case in all_cases:
        for path, data in zip(file_names(folder, case), case.make()):
            path.write_bytes(data)
            wanted.add(path)
            total += len(data)
    for path in folder.glob("*.safetensors"):
        if path not in wanted:
            path.unlink()  # left from a case that no longer exists
    readme = folder / "README.md"
    readme.write_text(readme_with_table(readme.read_text(), all_cases))
    print(f"{len(all_cases)} cases, {len(wanted)} files, {total} bytes")


def same_up_to_rounding(a, b):
    """Another processor or torch may round a float64 sum differently: same names, shapes and
    dtypes, and values within 1e-12 of the tensor's largest."""
    a, b = load(a), load(b)
    if {k: (v.shape, v.dtype) for k, v in a.items()} != {k: (v.shape, v.dtype) for k, v in b.items()}:
        return False
    return all((a[k] - b[k]).abs().max() <= 1e-12 * max(1.0, b[k].abs().max()) for k in a if a[k].numel())


def check(folder, all_cases):
    """Inputs must be the same bytes.  Expected values too, or be equal up to float64 rounding,
    which is then said."""
    bad, rounded = [], []
    wanted = set()
    for case in all_cases:
        for path, data, exact in zip(file_names(folder, case), case.make(), (True, False)):
            wanted.add(path)
            stored = path.read_bytes() if path.exists() else None
            if stored == data:
                continue
            if stored is not None and not exact and same_up_to_rounding(data, stored):
                rounded.append(path.name)
            else:
                bad.append(f"{path.name}: " + ("absent" if stored is None else "differs"))
    bad += [f"{p.name}: no such case" for p in sorted(folder.glob("*.safetensors")) if p not in wanted]
    text = (folder / "README.md").read_text()
    if readme_with_table(text, all_cases) != text:
        bad.append("README.md: table of cases is out of date")
    for line in bad:
        print(line)
    print(f"{len(wanted)} files: {len(wanted) - len(bad) - len(rounded)} identical, "
          f"{len(rounded)} equal up to float64 rounding, {len(bad)} wrong")
    return 1 if bad else 0


def main(folder, all_cases):
    """The command line of a script whose cases are in `folder`."""
    parser = argparse.ArgumentParser(description="Make or check the golden files.")
    parser.add_argument("--check", action="store_true", help="compare with the stored files, write nothing")
    parser.add_argument("--list", action="store_true", help="print the table of cases")
    args = parser.parse_args()
    assert len({c.name for c in all_cases}) == len(all_cases)
    if args.list:
        print(table(all_cases))
        return 0
    if args.check:
        return check(folder, all_cases)
    write(folder, all_cases)
    return 0


if __name__ == "__main__":
    sys.exit(main(HERE / "op", cases()))
