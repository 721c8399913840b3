#!/usr/bin/env python3
"""Measures one arm of the comparison of adapters and keeps what the tables need, sample by sample.

    eval/measure.py ARM --lca build/release/bin/lca --texts TEXTS --adapters DIR [--model smollm2] [--device cuda]
                    [--parts needle,long,ruler,held-out,general,everyday] [--tasks NAMES] [--words DIR] [--squad FILE]
                    [--hotpotqa FILE] [--seed N] [--work DIR] [--out FILE] [--small]

Arms and their flags are in eval/arms.json. TEXTS is what eval/text/prepare.py made (data/, windows/).
Every part is a command of `lca eval` with a results file under --work: an interrupted measurement goes on where it
stopped. FILE (eval/results/ARM.json) has one number a sample: eval/tables.py makes the tables from these files.
"""
import argparse
import csv
import json
import pathlib
import shlex
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
PARTS = ("needle", "long", "ruler", "held-out", "general", "everyday")
RANGES = "1K,4K,8K"
WINDOW = 1024  # of all arms


def depths(length, window, count):
    """Shares of a text, evenly spaced, at which a fact is condensed when the reply begins."""
    most = (length - window - 256) / length
    return ",".join(f"{most * i / (count - 1):.4f}" for i in range(count))


def place_wanted(settings):
    """Where all needles are to be when the reply begins; a model with dense attention has condensed nothing."""
    layers = settings if isinstance(settings, list) else [settings]
    return "inside" if all(layer["method"] == "dense" for layer in layers) else "outside"


def documents_of(path, split):
    """{window: the document that it was cut from}; the essays were joined before."""
    with open(path, newline="", encoding="utf-8") as file:
        return {row["window"]: "essays" if row["text"].startswith("essays from ") else row["text"]
                for row in csv.DictReader(file) if row["split"] == split}


def lines_of(path):
    """Samples of a results file; its first line is the fingerprint."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file][1:]


class Measurement:
    def __init__(self, options, flags):
        self.options, self.flags, self.commands = options, flags, {}
        self.work = options.work / options.arm
        self.work.mkdir(parents=True, exist_ok=True)

    def run(self, name, kind, *arguments):
        """One command of `lca eval`; its results file, and the JSON it prints."""
        results = self.work / f"{name}.jsonl"
        command = [str(self.options.lca), "eval", kind, self.options.model, *self.flags, *arguments, "--results",
                   str(results), "--json", "--device", self.options.device]
        began = time.time()
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        print(f"{self.options.arm} {name}: {time.time() - began:.1f} s, exit {done.returncode}", flush=True)
        if done.returncode:
            raise SystemExit(f"measure.py: {shlex.join(command)} failed")
        self.commands[name] = self.told(command)
        return lines_of(results), json.loads(done.stdout)

    def told(self, command):
        """The command as anyone can repeat it: folders by what they are, the essays by a pattern."""
        options = self.options
        places = [(options.texts, "TEXTS"), (options.adapters, "ADAPTERS"), (options.work, "WORK"), (HERE.parent, "")]
        places.sort(key=lambda pair: len(pair[0].parts), reverse=True)  # a folder inside another first
        words = []
        for word in command[1:]:
            for place, name in places:
                if word == str(place) or word.startswith(f"{place}/"):
                    word = f"{name}{word[len(str(place)):]}".removeprefix("/")
                    break
            if word.startswith("TEXTS/data/general/essays/"):
                word = "TEXTS/data/general/essays/*.txt"
            if words[-1:] != [word]:
                words.append(word)
        return " ".join(["lca", *words])

    def haystacks(self):
        """Flags that name essays and held-out books."""
        data = self.options.texts / "data"
        folders = [data / "general/essays", *sorted({path.parent for path in (data / "held-out").rglob("*.txt")})]
        return [word for folder in folders for word in ("--text", str(folder))]

    def needle(self, name, cells):
        """{length: {keys: {"depths": […], "places": […], "hits": "1011…"}}}, in the order of depth and sample."""
        found = {}
        for length, keys, levels, samples in cells:
            rows, told = self.run(f"{name}-{length}", "needle", *self.haystacks(), "--lengths", str(length), "--keys",
                                  keys, "--depths", depths(length, WINDOW, levels), "--samples", str(samples), "--seed",
                                  str(self.options.seed))
            wanted = place_wanted(told["settings"])
            others = {row["place"] for row in rows} - {wanted}
            if others:
                raise SystemExit(f"measure.py: {name}-{length}: not all needles are {wanted}, some are "
                                 f"{' or '.join(sorted(others))}: the depths are for windows of {WINDOW} tokens and "
                                 "groups of up to 64")
            for count in sorted({row["keys"] for row in rows}):
                some = sorted((row for row in rows if row["keys"] == count),
                              key=lambda row: (row["depth"], row["sample"]))
                found.setdefault(str(length), {})[str(count)] = {
                    "depths": [round(row["depth"], 4) for row in some],
                    "places": sorted({row["place"] for row in some}),
                    "hits": "".join(str(int(row["hit"])) for row in some)}
        return found

    def ruler(self):
        """{length: {task: [scores]}}, and what was skipped."""
        options = self.options
        arguments = ["--lengths", "4096,8192", "--samples", str(4 if options.small else 200), "--seed",
                     str(options.seed), "--essays",
                     *map(str, sorted((options.texts / "data/general/essays").glob("*.txt")))]
        for flag, path in (("--words", options.words), ("--squad", options.squad), ("--hotpotqa", options.hotpotqa),
                           ("--tasks", options.tasks)):
            if path:
                arguments += [flag, str(path)]
        rows, told = self.run("ruler", "ruler", *arguments)
        found = {}
        for row in sorted(rows, key=lambda row: row["index"]):
            found.setdefault(str(row["length"]), {}).setdefault(row["task"], []).append(round(row["score"], 4))
        return {"scores": found, "skipped": {row["task"]: row["skipped"] for row in told["rows"] if row["skipped"]}}

    def perplexity(self, split):
        """Mean −ln p of every range of every window, and the windows' documents."""
        _, told = self.run(split, "perplexity", "--file", str(self.options.texts / "windows" / split), "--length", "8K",
                           "--ranges", RANGES, "--precision", "bf16")
        listed = told["windows"][:2] if self.options.small else told["windows"]
        windows = {window["document"].split("/")[-1]: [round(each["nll"], 6) for each in window["by_range"]]
                   for window in listed}
        documents = documents_of(self.options.texts / "windows" / "windows.csv", split)
        return {"ranges": [[each["from"], each["to"]] for each in listed[0]["by_range"]], "windows": windows,
                "documents": {window: documents[window] for window in windows}}

    def everyday(self):
        rows, _ = self.run("everyday", "everyday", "--prompts", str(HERE / "prompts_everyday.txt"))
        rows.sort(key=lambda row: row["prompt"])
        return {"tokens": [row["tokens"] for row in rows], "kl": [round(row["kl"], 6) for row in rows]}

    def part(self, name):
        small = self.options.small
        if name == "needle":
            return self.needle(name, [(n, "1,4", *((2, 1) if small else (25, 20))) for n in (4096, 8192)])
        if name == "long":
            grid = (2, 1) if small else (10, 10)
            return self.needle(name, [(n, "1", *grid) for n in (16384, 32768, 65536, 102400)])
        if name == "ruler":
            return self.ruler()
        return self.everyday() if name == "everyday" else self.perplexity(name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arm")
    parser.add_argument("--lca", type=pathlib.Path, required=True)
    parser.add_argument("--texts", type=pathlib.Path, required=True)
    parser.add_argument("--adapters", type=pathlib.Path, default=pathlib.Path("adapters"))
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--tasks", help="of RULER; all unless given")
    parser.add_argument("--words", type=pathlib.Path)
    parser.add_argument("--squad", type=pathlib.Path)
    parser.add_argument("--hotpotqa", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=42, help="decides all prompts; tune on one, report another")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/eval"))
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--small", action="store_true", help="a handful of samples, to see that it runs")
    options = parser.parse_args()
    arms = json.loads((HERE / "arms.json").read_text())
    if options.arm not in arms:
        parser.error(f"there is no arm {options.arm}; there are {', '.join(arms)}")
    wanted = options.parts.split(",")
    for name in wanted:
        if name not in PARTS:
            parser.error(f"there is no part {name}; there are {', '.join(PARTS)}")
    out = options.out or HERE / "results" / f"{options.arm}.json"
    for name in ("texts", "adapters", "work"):
        setattr(options, name, getattr(options, name).absolute())
    flags = [flag.format(adapters=options.adapters) for flag in arms[options.arm]["flags"]]
    measurement = Measurement(options, flags)
    result = json.loads(out.read_text()) if out.exists() else {"arm": options.arm, "seed": options.seed, "commands": {}}
    if result["seed"] != options.seed:
        parser.error(f"{out} was measured with seed {result['seed']}")
    for name in wanted:
        result[name] = measurement.part(name)
        result["commands"].update(measurement.commands)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
