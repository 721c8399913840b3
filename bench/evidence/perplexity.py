#!/usr/bin/env python3
"""How well a model predicts long texts beyond its trained length: perplexity by range of positions.

    bench/evidence/perplexity.py --texts TEXTS --out OUT [--lca PROGRAM] [--model MODEL]
    bench/evidence/perplexity.py --texts TEXTS --out OUT --sweep essays --length 32K

Runs `lca eval perplexity` once for each text and arm (below), and writes OUT/perplexity.md, .json and
.svg after each. What was measured before is kept under OUT/runs and not measured again, so the
script may be stopped at any time and run again; --seconds says how long it may take, and runs that
would take longer are left for the next time. It needs Python alone, the program, the model and the
texts (texts.py gets them).
"""
import argparse
import datetime
import hashlib
import json
import os
import pathlib
import platform
import subprocess
import sys
import time

import plot
import texts

KILO = 1024
RANGES = [n * KILO for n in (2, 4, 8, 16, 32, 64, 112)]

# name: (label, flags, longest text in tokens or None)
ARMS = {
    "dense": ("dense", ["--method", "dense"], 16 * KILO),
    "token": ("LCA mass score, token positions",
              ["--preset", "training-free", "--mass", "score", "--positions", "token"], None),
    "entry": ("LCA mass score, entry positions",
              ["--preset", "training-free", "--mass", "score", "--positions", "entry"], None),
    "free": ("LCA training-free (mass none, entry positions)",
             ["--preset", "training-free", "--mass", "none", "--positions", "entry"], None),
    "window": ("window + sink, entry positions",
               ["--method", "window", "--window", "1024", "--sink", "16", "--positions", "entry"], None),
}

# Training-free choices among existing settings, all with entry positions.
SWEEP_POOLS = ("select", "weighted")
SWEEP_MASSES = ("none", "score")
SWEEP_SINKS = (4, 16, 64)


def sweep_arms():
    arms = {"window": ARMS["window"]}
    for sink in SWEEP_SINKS:
        for pool in SWEEP_POOLS:
            for mass in SWEEP_MASSES:
                name = f"{pool}-{mass}-{sink}"
                flags = ["--preset", "training-free", "--positions", "entry", "--semantic-pool", pool,
                         "--mass", mass, "--sink", str(sink)]
                arms[name] = (f"LCA {pool}/select, mass {mass}, sink {sink}", flags, None)
    return arms


class Failure(Exception):
    """One line for whoever ran the script."""


def count_parse(word):
    """16384, or 16K."""
    return int(word[:-1]) * KILO if word.upper().endswith("K") else int(word)


def count_text(count):
    return f"{count // KILO}K" if count and count % KILO == 0 else str(count)


def range_text(begin, end):
    return f"{count_text(0 if begin == 1 else begin)}–{count_text(end)}"


def sha256_of(path):
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def processor():
    """The processor's name, where the system tells it."""
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()


class Work:
    """How long runs take: operations counted from the model's sizes, seconds from runs that were
    made on this machine."""

    def __init__(self, facts):
        widths = facts["head_widths"]
        key = widths["key"] if "key" in widths else widths["latent"] + widths["rope"]
        value = widths["value"] if "key" in widths else widths["latent"]
        self.token = 2.0 * facts["parameters"]
        # Attention reaches about half of the speed of the products.
        self.pair = 2 * 2.0 * facts["heads"] * (key + value) * facts["layers"]
        self.seconds_per_operation = None

    def operations(self, settings, length):
        """Of reading `length` tokens."""
        settings = settings[0] if isinstance(settings, list) else settings
        method = settings["method"]
        local = min(settings["window"] + settings["sink"] + settings["group"] / 2, length / 2)
        pairs = length * length / 2
        if method == "window":
            pairs = length * local
        if method == "lca":
            pairs = min(pairs, length * local + length * length / (2 * settings["group"]))
        return length * self.token + pairs * self.pair

    def learn(self, result):
        operations = self.operations(result["settings"], result["tokens"])
        self.seconds_per_operation = result["seconds"] / operations

    def seconds(self, settings, length):
        return self.operations(settings, length) * self.seconds_per_operation


class Bench:
    def __init__(self, args):
        self.args = args
        self.runs = args.out / "runs"
        self.runs.mkdir(parents=True, exist_ok=True)
        self.end = time.monotonic() + args.seconds if args.seconds else None
        self.arms = sweep_arms() if args.sweep else dict(ARMS)
        for given in args.arm:
            name, _, flags = given.partition("=")
            if not name or not flags:
                raise Failure(f"--arm takes NAME=FLAGS, not {given!r}")
            self.arms[name] = (name, flags.split(), None)
        if args.only:
            unknown = [name for name in args.only.split(",") if name not in self.arms]
            if unknown:
                raise Failure(f"--only: no arm {unknown[0]}; there are {', '.join(self.arms)}")
            self.arms = {name: self.arms[name] for name in args.only.split(",")}
        wanted = [args.sweep] if args.sweep else args.text.split(",") if args.text else texts.TEXTS
        self.texts = {}
        for name in wanted:
            path = args.texts / f"{name}.txt"
            if not path.is_file():
                raise Failure(f"{path} is not there; texts.py gets it")
            self.texts[name] = (path, sha256_of(path))
        facts = self.lca(["inspect", args.model, "--json"])
        self.model = {"name": pathlib.Path(facts["path"]).name, "context": facts["context"],
                      "sha256": sha256_of(pathlib.Path(facts["path"]))
                      if pathlib.Path(facts["path"]).is_file() else None}
        self.work = Work(facts)
        self.name = f"sweep-{args.sweep}" if args.sweep else "perplexity"

    def lca(self, words, timeout=None):
        """The JSON that the program prints."""
        done = subprocess.run([self.args.lca, *words], capture_output=True, text=True,
                              timeout=timeout, check=False)
        if done.returncode != 0:
            raise Failure(f"{self.args.lca} {' '.join(words)}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def flags(self, arm):
        flags = [*self.arms[arm][1], "--precision", self.args.precision]
        return [*flags, "--threads", str(self.args.threads)] if self.args.threads else flags

    def length(self, arm):
        limit = self.arms[arm][2]
        return min(self.args.length, limit) if limit else self.args.length

    def key(self, text, arm):
        """What a kept run must agree with."""
        return {"text": text, "text_sha256": self.texts[text][1], "model": self.model, "arm": arm,
                "flags": [*self.arms[arm][1], "--precision", self.args.precision],
                "length": self.length(arm)}

    def kept(self, text, arm):
        path = self.runs / f"{text}.{arm}.{count_text(self.length(arm))}.json"
        try:
            run = json.loads(path.read_text())
        except (OSError, json.JSONDecodeError):
            return None
        return run if run["key"] == self.key(text, arm) else None

    def evaluate(self, text, arm, length, timeout=None):
        ends = ",".join(str(end) for end in RANGES)
        return self.lca(["eval", "perplexity", self.args.model, "--adapter", "none",
                         "--file", str(self.texts[text][0]), "--length", str(length), "--ranges", ends, "--json", *self.flags(arm)], timeout)

    def left(self):
        return None if self.end is None else self.end - time.monotonic()

    def measure(self, text, arm):
        """Runs one arm on one text and keeps the result; False where time is short."""
        length = self.length(arm)
        trial = self.evaluate(text, arm, min(length, 2 * KILO), self.left())
        if self.work.seconds_per_operation is None:
            self.work.learn(trial)
        expected = self.work.seconds(trial["settings"], length)
        left = self.left()
        print(f"{text}, {self.arms[arm][0]}: {count_text(length)} tokens, about {expected:.0f} s",
              file=sys.stderr, flush=True)
        if left is not None and expected > left:
            print(f"  left for another time: {left:.0f} s remain", file=sys.stderr)
            return False
        try:
            result = self.evaluate(text, arm, length, left)
        except subprocess.TimeoutExpired:
            print("  not finished in time", file=sys.stderr)
            return False
        self.work.learn(result)
        print(f"  {result['seconds']:.0f} s, {result['tokens_per_s']:.0f} tokens/s; "
              + ", ".join(f"{range_text(r['from'], r['to'])} {r['perplexity']:.2f}"
                          for r in result["by_range"]), file=sys.stderr, flush=True)
        run = {"key": self.key(text, arm), "label": self.arms[arm][0], "result": result,
               "machine": processor(), "threads": self.args.threads or os.cpu_count(),
               "date": datetime.date.today().isoformat()}
        path = self.runs / f"{text}.{arm}.{count_text(length)}.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(run, indent=1) + "\n")
        part.replace(path)
        return True

    def run(self):
        """Measures what is missing, text by text, and reports after each."""
        missing = 0
        for text in self.texts:
            for arm in self.arms:
                if self.kept(text, arm) is None:
                    missing += 0 if not self.args.report and self.measure(text, arm) else 1
                    self.report()
        self.report()
        if missing:
            print(f"{missing} runs are missing; run it again", file=sys.stderr)
        return 2 if missing else 0

    def report(self):
        runs = {text: {arm: kept for arm in self.arms if (kept := self.kept(text, arm))}
                for text in self.texts}
        runs = {text: arms for text, arms in runs.items() if arms}
        if not runs:
            return
        out = self.args.out / self.name
        machines = sorted({f"{run['machine']}, {run['date']}"
                           for arms in runs.values() for run in arms.values()})
        report = {"model": self.model, "machines": machines, "precision": self.args.precision, "texts": {
            text: {"title": texts.TEXTS[text][0], "sha256": self.texts[text][1], "arms": {
                arm: {"label": run["label"], "flags": run["key"]["flags"],
                      **{name: value for name, value in run["result"].items() if name != "model"}}
                for arm, run in arms.items()}} for text, arms in runs.items()}}
        out.with_suffix(".json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
        out.with_suffix(".md").write_text(report_markdown(report))
        if not self.args.sweep:
            out.with_suffix(".svg").write_text(plot.plot_svg(report))


def report_markdown(report):
    """One table a text: arms by ranges of positions."""
    lines = []
    for text in report["texts"].values():
        arms = text["arms"].values()
        longest = max(arms, key=lambda arm: arm["tokens"])
        ranges = [(part["from"], part["to"]) for part in longest["by_range"]]
        heads = [text["title"] + ", tokens", *(range_text(*one) for one in ranges)]
        lines += ["| " + " | ".join(heads) + " |",
                  "| --- |" + " ---: |" * (len(heads) - 1)]
        for arm in arms:
            found = {(part["from"], part["to"]): part["perplexity"] for part in arm["by_range"]}
            cells = [f"{found[one]:.2f}" if one in found else "–" for one in ranges]
            lines.append("| " + " | ".join([arm["label"], *cells]) + " |")
        lines.append("")
    lines += [f"{report['model']['name']}, trained for {report['model']['context']:,} tokens; products in "
              f"{report['precision']}; " + "; ".join(report["machines"]) + "."]
    return "\n".join(lines) + "\n"


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--lca", default="build/release/bin/lca", metavar="PROGRAM")
    options.add_argument("--model", default="smollm2")
    options.add_argument("--texts", type=pathlib.Path, required=True, metavar="FOLDER")
    options.add_argument("--out", type=pathlib.Path, required=True, metavar="FOLDER")
    options.add_argument("--text", default="", help="only these, with commas: " + ", ".join(texts.TEXTS))
    options.add_argument("--only", default="", metavar="ARMS", help="only these arms, with commas")
    options.add_argument("--arm", action="append", default=[], metavar="NAME=FLAGS",
                         help="one arm more; may be repeated")
    options.add_argument("--sweep", default="", metavar="TEXT",
                         help="compare training-free settings on this text instead")
    options.add_argument("--length", type=count_parse, default=112 * KILO, help="default 112K")
    options.add_argument("--precision", default="f32", help="f32 (default), bf16 or auto")
    options.add_argument("--threads", type=int, default=0)
    options.add_argument("--seconds", type=float, default=0, help="begin nothing that takes longer")
    options.add_argument("--report", action="store_true", help="measure nothing; write the report again")
    args = options.parse_args()
    try:
        return Bench(args).run()
    except (Failure, OSError) as failure:
        print(f"perplexity: {failure}", file=sys.stderr)
        return 1
    except subprocess.TimeoutExpired:
        print("perplexity: time is over; run it again", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("perplexity: interrupted; what was measured is kept", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
