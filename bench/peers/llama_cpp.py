#!/usr/bin/env python3
"""Measures lca beside llama.cpp on this machine and says which targets are met.

    bench/peers/llama_cpp.py --llama-bench PATH --model SmolLM2.gguf [--slice DeepSeek-slice.gguf]
        [--depth-bench PATH] [--lca build/release/bin/lca] [--threads 2] [--rounds 1]
        [--adapter models/smollm2-lca] [--level avx2] [--only TEXT] [--json OUT] [--markdown OUT] [--try]

llama.cpp runs without and with flash attention, and the better of the two counts. Its runs and ours
take turns (llama.cpp, lca, llama.cpp, lca), since other work on a machine comes and goes; of each
the best counts. Depths of the slice that would take llama.cpp hours to read are reached by
depth_bench (depth_bench.cpp beside this file says how to build it). With --level lca uses no more than
that level has (LCA_CPU); give it a llama.cpp built for the same (-DGGML_NATIVE=OFF: AVX2). Keep the machine quiet: a whole
run takes about half an hour on two cores.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

REPEATS = 2
GENERATED = 48
SMALL, SLICE = "SmolLM2-135M Q4_1", "DeepSeek-V2-Lite slice Q8_0"
SENTENCE = "The keeper wrote down the wind, the height of the sea and every ship that passed. "

# model, method, what, length, at least, aim: times llama.cpp's tokens a second; `adapter` is LCA with --adapter
TARGETS = [
    (SMALL, "lca", "prefill", 2048, 2.5, 4),
    (SMALL, "lca", "prefill", 8192, 4, 7),
    (SMALL, "lca", "decode", 0, 1, 1.3),
    (SMALL, "lca", "decode", 8192, 3, 4.5),
    (SMALL, "adapter", "prefill", 2048, 2.5, 4),
    (SMALL, "adapter", "prefill", 8192, 4, 7),
    (SMALL, "adapter", "decode", 0, 1, 1.3),
    (SMALL, "adapter", "decode", 8192, 3, 4.5),
    (SMALL, "dense", "prefill", 2048, 2, 3),
    (SMALL, "dense", "prefill", 8192, 1.5, 2.5),
    (SMALL, "dense", "decode", 0, 1, 1.3),
    (SMALL, "dense", "decode", 8192, 1, 1.3),
    (SLICE, "lca", "prefill", 2048, 2.2, 2.4),
    (SLICE, "lca", "prefill", 8192, 3.5, 3.9),
    (SLICE, "lca", "decode", 0, 1, 1.2),
    (SLICE, "lca", "decode", 8192, 2, 3),
    (SLICE, "lca", "decode", 32768, 6, 10),
]
AVX2_TARGETS = [
    (SMALL, "lca", "prefill", 2048, 2.5, 2.5),
    (SMALL, "lca", "prefill", 8192, 4, 4),
    (SMALL, "lca", "decode", 0, 1.1, 1.5),
    (SMALL, "lca", "decode", 8192, 4, 6),
]
NAMES = {"lca": "LCA", "adapter": "LCA with adapter", "dense": "dense"}
BATCH, BATCH_DEPTH, BATCH_LEAST, BATCH_AIM = 4, 8192, 2, 3  # times our own single session
MOST_MEMORY = 350e6  # bytes, of `lca run` on a document of 8K tokens
MOST_FIRST = 0.3     # seconds from the start of loading to the first token of a short prompt


class Failure(Exception):
    pass


def say(line):
    print(line, file=sys.stderr, flush=True)


def command_run(words):
    """Runs a command; its output, its seconds, and the most memory it held."""
    begin = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen([str(word) for word in words], stdout=out, stderr=err)
        except OSError as error:
            raise Failure(f"{words[0]} does not start: {error.strerror}") from None
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode != 0:
            last = err.read().decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
            raise Failure(f"{pathlib.Path(words[0]).name} ended with {process.returncode}: {last[0]}")
        return out.read().decode(), time.monotonic() - begin, usage.ru_maxrss * 1024


class Comparison:
    """Runs everything and keeps the best of each."""

    def __init__(self, options):
        self.options = options
        self.best = {}  # (who, model, what, length, batch): tokens a second
        self.facts = {"llama_cpp_commit": None, "machine": None}
        self.failures = []
        self.limits = []
        self.targets = [row for row in (AVX2_TARGETS if options.level == "avx2" else TARGETS)
                        if options.only in f"{row[0]}, {row[1]}, {row[2]} {row[3]}"
                        and (row[1] != "adapter" or options.adapter is not None)]

    def shortened(self, length):
        return max(1, length // 128) if self.options.trial and length else length

    def keep(self, who, model, what, length, speed, batch=1):
        key = (who, model, what, length, batch)
        self.best[key] = max(speed, self.best.get(key, 0))

    def attempt(self, label, step):
        """One step of many: what fails is told at the end and does not end the others."""
        try:
            seconds = step()
            say(f"  {label}: {seconds:.0f} s")
        except (Failure, ValueError, KeyError) as error:
            self.failures.append(f"{label}: {error}")
            say(f"  {label}: FAILED: {error}")

    def lengths(self, model, method, what):
        """Lengths of the rows of a method; None: of any."""
        return sorted({row[3] for row in self.targets
                       if row[0] == model and row[1] == (method or row[1]) and row[2] == what})

    def peer_bench(self, model, path, flash, what, lengths):
        """llama-bench: a prefill of each length, or tokens decoded after each."""
        for length in lengths:
            words = [self.options.llama_bench, "-m", path, "-fa", flash, "-t", self.options.threads,
                     "-r", REPEATS, "-o", "json"]
            short = self.shortened(length)
            if what == "prefill":
                words += ["-p", short, "-n", 0, "--no-warmup"]  # the first of two is the warm-up
            else:
                words += ["-p", 0, "-n", GENERATED, "-d", short]

            def step():
                text, seconds, _ = command_run(words)
                result = json.loads(text)[0]
                self.facts["llama_cpp_commit"] = result["build_commit"]
                self.facts["llama_cpp_number"] = result.get("build_number")
                self.keep(f"fa{flash}", model, what, length, max(result["samples_ts"]))
                return seconds

            self.attempt(f"llama.cpp, fa {flash}, {model}: {what} {length}", step)

    def peer_depths(self, model, path, flash, depths):
        """depth_bench: tokens decoded after each depth, none of them read."""
        if self.options.depth_bench is None:
            self.peer_bench(model, path, flash, "decode", depths)
            return

        def step():
            words = [self.options.depth_bench, path, flash, self.options.threads, GENERATED, REPEATS]
            text, seconds, _ = command_run(words + [self.shortened(depth) for depth in depths])
            for depth, line in zip(depths, text.splitlines(), strict=True):
                self.keep(f"fa{flash}", model, "decode", depth, json.loads(line)["tokens_per_s"])
            return seconds

        self.attempt(f"llama.cpp, fa {flash}, {model}: decode {depths}", step)

    def own(self, model, path, method, prompts, depths, batches=(1,)):
        """lca bench model; LCA is what the model's own settings ask for, or the adapter's."""
        flags = {"lca": [], "adapter": ["--adapter", self.options.adapter]}.get(method, ["--method", method])

        def listed(numbers):
            return ",".join(str(self.shortened(number)) for number in numbers) or "none"

        def step():
            words = [self.options.lca, "bench", "model", path, "--threads", self.options.threads,
                     "--prompt", listed(prompts), "--depths", listed(depths), "--batch",
                     ",".join(map(str, batches)), "--generate", GENERATED, "--repeat", REPEATS,
                     "--json"]
            text, seconds, _ = command_run(words + flags)
            report = json.loads(text)
            for file in ("model", "adapter"):  # the report is to be published: names, not places
                report[file] = report[file] and pathlib.Path(report[file]).name
            self.facts["machine"] = report["machine"]
            self.facts.setdefault("own", []).append(report)
            for length in prompts:
                row = next(r for r in report["prefill"] if r["tokens"] == self.shortened(length))
                self.keep(method, model, "prefill", length, row["tokens_per_s"])
            for depth in depths:
                for row in report["decode"]:
                    if row["depth"] == self.shortened(depth):
                        self.keep(method, model, "decode", depth, row["tokens_per_s"], row["batch"])
            return seconds

        self.attempt(f"lca, {method}, {model}: prefill {prompts}, decode {depths}", step)

    def measure(self):
        models = [(SMALL, self.options.model, ["lca", "adapter", "dense"])]
        if self.options.slice is not None:
            models.append((SLICE, self.options.slice, ["lca"]))
        for number in range(self.options.rounds):
            for model, path, methods in models:
                if not any(row[0] == model for row in self.targets):
                    continue
                for flash in (0, 1):
                    say(f"round {number + 1} of {self.options.rounds}, {model}, fa {flash}")
                    self.peer_bench(model, path, flash, "prefill", self.lengths(model, None, "prefill"))
                    depths = self.lengths(model, None, "decode")
                    if model == SLICE and depths:
                        self.peer_depths(model, path, flash, depths)
                    else:
                        self.peer_bench(model, path, flash, "decode", depths)
                    for method in methods:
                        if not any(row[:2] == (model, method) for row in self.targets):
                            continue
                        self.own(model, path, method, self.lengths(model, method, "prefill"),
                                 self.lengths(model, method, "decode"))
                    if model == SMALL and self.whole():
                        self.own(model, path, "lca", [], [BATCH_DEPTH], (1, BATCH))
        if self.whole():
            self.attempt("lca run: memory", self.measure_memory)
            self.attempt("lca run: first token", self.measure_first)

    def whole(self):
        """Whether everything is asked for."""
        return not self.options.only and self.options.level != "avx2"

    def measure_memory(self):
        def tokens_of(text):
            words = [self.options.lca, "tokenize", self.options.model, "--text", text, "--json"]
            return len(json.loads(command_run(words)[0])["ids"])

        sentences = self.shortened(8192) // max(1, tokens_of(SENTENCE * 8) // 8)
        with tempfile.TemporaryDirectory() as folder:
            document = pathlib.Path(folder) / "document.txt"
            document.write_text(SENTENCE * max(1, sentences))
            text, seconds, memory = command_run(
                [self.options.lca, "run", self.options.model, "--file", document, "--threads",
                 self.options.threads, "-n", 8, "--ignore-eos", "--json"])
        tokens = json.loads(text)["prompt_tokens"]
        self.limits.append({"name": f"peak memory, {SMALL}, {tokens} tokens read with LCA",
                            "value": memory, "below": MOST_MEMORY, "unit": "bytes"})
        return seconds

    def measure_first(self):
        best, all_seconds = float("inf"), 0
        for _ in range(3):
            text, seconds, _ = command_run([self.options.lca, "run", self.options.model, "-p",
                                            "Why is the sky blue?", "--threads",
                                            self.options.threads, "-n", 1, "--json"])
            reply = json.loads(text)
            best = min(best, reply["load_s"] + reply["first_token_s"])
            all_seconds += seconds
        self.limits.append({"name": f"load to first token, {SMALL}, a short prompt",
                            "value": best, "below": MOST_FIRST, "unit": "s"})
        return all_seconds

    def rows(self):
        rows = []
        for model, method, what, length, least, aim in self.targets:
            if model == SLICE and self.options.slice is None:
                continue
            peers = [self.best.get((fa, model, what, length, 1)) for fa in ("fa0", "fa1")]
            ours = self.best.get((method, model, what, length, 1))
            rows.append(row_make(model, method, what, length, 1, peers, ours, least, aim))
        if not self.whole():
            return rows
        single, batch = (self.best.get(("lca", SMALL, "decode", BATCH_DEPTH, size))
                         for size in (1, BATCH))
        row = row_make(SMALL, "lca", "decode", BATCH_DEPTH, BATCH, [None, None], batch, BATCH_LEAST,
                       BATCH_AIM, against=single)
        return rows + [row | {"single": single}]

    def report(self):
        for limit in self.limits:
            limit["met"] = limit["value"] < limit["below"]
        own = self.facts.pop("own", [])
        return {"date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **self.facts,
                "threads": self.options.threads, "trial": self.options.trial, "rows": self.rows(),
                "limits": self.limits, "failures": self.failures, "own": own}


def row_make(model, method, what, length, batch, peers, ours, least, aim, against=None):
    """One comparison; `against` is what counts where it is not the better of the peers."""
    against = against or max((speed for speed in peers if speed), default=None)
    ratio = ours / against if ours and against else None
    return {"model": model, "method": method, "what": what, "length": length, "batch": batch,
            "llama_cpp_fa0": peers[0], "llama_cpp_fa1": peers[1], "lca": ours, "ratio": ratio,
            "least": least, "aim": aim, "met": ratio is not None and ratio >= least,
            "aim_met": ratio is not None and ratio >= aim}


def number_text(value):
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def length_text(length):
    return f"{length // 1024}K" if length and length % 1024 == 0 else str(length)


def verdict(row, trial):
    if trial:
        return "a trial"
    return "aim met" if row["aim_met"] else "met" if row["met"] else "**not met**"


def markdown(report):
    lines = [f"{report['machine']}, {report['threads']} threads, {report['date'][:10]}, llama.cpp "
             f"{report['llama_cpp_commit']}. Tokens a second; the better of fa 0 and fa 1 counts."]
    if report["trial"]:
        lines.append("\n**A trial with short lengths: these numbers mean nothing.**")
    lines += ["", "| | llama.cpp, fa 0 | llama.cpp, fa 1 | lca | times | at least | aim | |",
              "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |"]
    for row in report["rows"]:
        place = f"{row['what']} {'at ' if row['what'] == 'decode' else ''}{length_text(row['length'])}"
        name = f"{row['model']}, {NAMES[row['method']]}, {place}"
        cells = [number_text(row["llama_cpp_fa0"]), number_text(row["llama_cpp_fa1"])]
        if row["batch"] > 1:
            name += f", {row['batch']} sessions"
            cells = [f"(one session of lca: {number_text(row['single'])})", "–"]
        cells += [number_text(row["lca"]), number_text(row["ratio"]), f"{row['least']:g}",
                  f"{row['aim']:g}", verdict(row, report["trial"])]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    if report["limits"]:
        lines += ["", "| | measured | below | |", "| --- | ---: | ---: | --- |"]
    for limit in report["limits"]:
        verdict_text = "a trial" if report["trial"] else "met" if limit["met"] else "**not met**"
        scale, unit = (1e6, "MB") if limit["unit"] == "bytes" else (1, limit["unit"])
        lines.append(f"| {limit['name']} | {number_text(limit['value'] / scale)} {unit} | "
                     f"{limit['below'] / scale:g} {unit} | {verdict_text} |")
    lines += [f"\nFailed: {failure}" for failure in report["failures"]]
    return "\n".join(lines) + "\n"


def options_read():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--llama-bench", required=True, metavar="PATH")
    parser.add_argument("--depth-bench", "--depthbench", metavar="PATH",
                        help="built from depth_bench.cpp; without it llama-bench reads every depth")
    parser.add_argument("--model", required=True, metavar="GGUF", help="SmolLM2-135M-Instruct, Q4_1")
    parser.add_argument("--slice", metavar="GGUF", help="layers of DeepSeek-V2-Lite, Q8_0")
    parser.add_argument("--adapter", metavar="FOLDER", help="rows with this adapter of --model too")
    parser.add_argument("--lca", default="build/release/bin/lca", metavar="PATH")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1, help="how often everything is measured")
    parser.add_argument("--level", choices=["avx2", "avx512"], default=None,
                        help="what lca may use of the processor; avx2 has targets of its own")
    parser.add_argument("--only", metavar="TEXT", default="",
                        help="rows whose name has this in it, such as 'prefill' or 'decode 8192'")
    parser.add_argument("--json", metavar="OUT")
    parser.add_argument("--markdown", metavar="OUT")
    parser.add_argument("--try", dest="trial", action="store_true",
                        help="short lengths: finds out in a minute whether everything runs")
    return parser.parse_args()


def main():
    options = options_read()
    for path in (options.llama_bench, options.depth_bench, options.model, options.slice, options.lca):
        if path is not None and not os.path.isfile(path):
            sys.exit(f"{path} is not there")
    if options.level is not None:
        os.environ["LCA_CPU"] = options.level
    comparison = Comparison(options)
    comparison.measure()
    report = comparison.report()
    text = markdown(report)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    if options.markdown:
        pathlib.Path(options.markdown).write_text(text)
    print(text, end="")
    sys.exit(1 if report["failures"] else 0)


if __name__ == "__main__":
    main()
