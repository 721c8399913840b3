#!/usr/bin/env python3
"""Runs the table of docs/serving.md: how `lca serve` holds under load, faults and others' clients.

    scripts/soak.py                          all rows, about an hour and a half
    scripts/soak.py --rows overload,kills    some of them (--list names all)
    scripts/soak.py --minutes 1              shortened: rows run so long at most, and say so

Every row has what was measured, its limit and a verdict; build/soak/soak.md has the table, soak.json the same as
data, beside them the servers' logs. The exit code is 0 if every row that ran holds. The machine should have nothing
else to do. Packages come from tests/server/live/requirements.txt, in an environment of their own.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import sys
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIVE = ROOT / "tests" / "server" / "live"
sys.path[:0] = [str(ROOT / "bench" / "server"), str(LIVE), str(ROOT / "scripts")]
NAMES = ["clients", "lm-eval", "schema", "fairness", "overload", "connections", "kills", "leaving", "fuzz", "mixed"]


def inside_environment():
    """Starts again with the interpreter that has the packages."""
    if os.environ.get("LCA_SOAK_INSIDE"):
        return
    import run  # tests/server/live/run.py
    inside = run.environment()
    os.execve(inside, [str(inside), "-B", __file__, *sys.argv[1:]], {**os.environ, "LCA_SOAK_INSIDE": "1"})


def rows_of():
    import soak_load
    import soak_protocol
    import soak_sessions
    functions = [soak_protocol.clients, soak_protocol.lm_eval, soak_protocol.schema, soak_load.fairness,
                 soak_load.overload, soak_load.connections, soak_sessions.kills, soak_sessions.leaving,
                 soak_protocol.fuzz, soak_sessions.mixed]
    return dict(zip(NAMES, functions))


def model_find(given):
    """SmolLM2's file, or None."""
    if given:
        return given
    import model
    path = model.home() / model.NAME
    return path if path.exists() else None


def machine():
    """The machine in words, for the table's head."""
    name = platform.processor()
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            name = line.split(":", 1)[1].strip()
            break
    return f"{name}, {len(os.sched_getaffinity(0))} cores, {time.strftime('%Y-%m-%d')}"


def markdown(rows):
    lines = [f"Measured on {machine()}, by `make soak`.", "",
             "| test | holds when | measured | verdict |", "| --- | --- | --- | --- |"]
    for row in rows:
        cells = []
        for measure in row.measures:
            mark = "" if measure.holds in (True, None) else " ✗"
            limit = f" ({measure.limit})" if measure.limit else ""
            cells.append(f"{measure.what}: {measure.value}{limit}{mark}")
        measured = "; ".join(cells) or row.skipped
        note = f"; {row.shortened}" if row.shortened else ""
        lines.append(f"| {row.test} | {row.limit} | {measured}{note} | {row.verdict} |")
    return "\n".join(lines) + "\n"


def write(folder, rows):
    (folder / "soak.md").write_text(markdown(rows))
    data = [{**dataclasses.asdict(row), "verdict": row.verdict} for row in rows]
    (folder / "soak.json").write_text(json.dumps({"machine": machine(), "rows": data}, indent=1) + "\n")


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--rows", help="names of rows between commas")
    options.add_argument("--list", action="store_true", help="the names of all rows")
    options.add_argument("--minutes", type=float, help="the most that a timed row runs; others shrink with it")
    options.add_argument("--program", type=pathlib.Path, default=ROOT / "build" / "release" / "bin" / "lca")
    options.add_argument("--asan-program", type=pathlib.Path, help="instead of building build/asan/bin/lca")
    options.add_argument("--model", type=pathlib.Path, help="SmolLM2's file, where it is not where make model puts it")
    options.add_argument("--text", type=pathlib.Path, default=ROOT / "assets" / "demo" / "lighthouse.txt",
                         help="text for long prompts")
    options.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "soak", metavar="FOLDER")
    args = options.parse_args()
    if args.list:
        print("\n".join(NAMES))
        return 0
    names = args.rows.split(",") if args.rows else NAMES
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        sys.exit(f"soak: unknown row {unknown[0]}; there are {', '.join(NAMES)}")
    inside_environment()
    from soak_common import Row, Soak, descriptors_raise
    args.out.mkdir(parents=True, exist_ok=True)
    descriptors_raise()
    soak = Soak(args.out.resolve(), args.program.resolve(), model_find(args.model), args.asan_program, args.minutes,
                args.text.read_text(errors="replace"))
    functions, rows = rows_of(), []
    for name in names:
        soak.say(f"{name}: begins")
        begin = time.monotonic()
        try:
            row = functions[name](soak)
        except Exception as problem:  # a row that breaks must not take the others along
            traceback.print_exc()
            row = Row(name, name, "it runs")
            row.equal(f"errors: {type(problem).__name__}: {problem}".replace("\n", " ")[:300], 1, 0)
        row.seconds = time.monotonic() - begin
        rows.append(row)
        for measure in row.measures:
            soak.say(f"  {measure.what}: {measure.value} {measure.limit} "
                     f"{'' if measure.holds is None else 'ok' if measure.holds else 'MISSED'}")
        soak.say(f"{name}: {row.verdict} {row.skipped} ({row.seconds:.0f} s)")
        write(args.out, rows)
    print(markdown(rows))
    return 0 if all(row.verdict != "does not hold" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
