#!/usr/bin/env python3
"""Makes everything that fine-tuning SmolLM2 needs and that it is measured on, from nothing.

    eval/text/prepare.py FOLDER [--steps NAME …] [--jobs N] [--device D] [--share X] [--clones DIR] [--packages DIR]

collect.py's texts (FOLDER/data), windows.py's pieces (FOLDER/windows), packed text, the model's replies to prompts.py's
prompts (chat text, sampled on --device), and the mixtures that the recipe smollm2 names (FOLDER/mixed-1024 …), into
which retrieval tasks are planted. A step that is done is not done again, so that the same command goes on after an
interruption; --steps does some alone (texts: all until prompts are there; training: the others, of which replies want
a GPU; more: mixtures of the recipe smollm2-more). --share makes X of the tokens, for trials.
"""
import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import shlex
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
import processes  # noqa: E402

GROUP_SIZES = "--groups 4,8,16,32,64"
PLANTED = f"--tasks several=8,fact=0.7,distractors=1.2,values=0.5,chain=0.3,passage=0.7,recite=2 {GROUP_SIZES}"
#: For what follows a run of the recipe smollm2: rows of nothing but facts, too, and more values that are no numbers.
HARDER = ("--tasks several=6,crowd=2.5,records=1,fact=0.7,distractors=1.5,values=1,chain=0.3,passage=0.7,recite=1 "
          f"{GROUP_SIZES} --values number=0.3,word=0.3,uuid=0.2,other=0.2")


@dataclasses.dataclass(frozen=True)
class Step:
    """A program to run in FOLDER, what it needs, and how many tokens it makes (--tokens)."""
    command: str
    after: tuple[str, ...] = ()
    tokens: int = 0


def packing(target, sources, *, tokens=0, shares="", extra=""):
    """Packs FOLDER/data/…, or another file with a field."""
    words = " ".join(f"--source {source}" for source in sources.split())
    amount = "" if tokens else " --tokens all"
    return Step(f"lca.data pack {target} --tokenizer smollm2 {words} --keep 1{amount} "
                f"{f'--shares {shares} ' if shares else ''}{extra}".strip(), ("collect",), tokens)


def mixture(target, text, tokens, options):
    return Step(f"lca.data mix {text} {target} {options}", (text,), tokens)


M = 1_000_000
#: Half of the packed text are manuals and a third is fiction and verse. The last stage has more text, a third of it chat.
STEPS = {
    "collect": Step("collect.py data {places}"),
    "windows": Step("windows.py data windows", ("collect",)),
    "prompts": Step("../chat/prompts.py prompts.jsonl --count {prompts}"),
    "packed-books": packing("packed-books", "fiction=data/train/fiction verse=data/train/verse", tokens=21 * M,
                            shares="fiction=0.94,verse=0.06", extra="--strip-headers"),
    "packed-manuals": packing("packed-manuals", "nonfiction=data/train/nonfiction documentation=data/train/documentation",
                              tokens=41 * M, shares="nonfiction=0.24,documentation=0.76", extra="--strip-headers"),
    "packed-small": packing("packed-small", "fiction=data/train/fiction nonfiction=data/train/nonfiction "
                            "documentation=data/train/documentation", tokens=10 * M,
                            shares="fiction=0.2,nonfiction=0.1,documentation=0.7", extra="--strip-headers --seed 7"),
    "packed-heldout": packing("packed-heldout", "fiction=data/held-out/fiction nonfiction=data/held-out/nonfiction",
                              extra="--strip-headers"),
    "packed": Step("lca.data join packed packed-books packed-manuals", ("packed-books", "packed-manuals")),
    "replies": Step("../chat/sample.py prompts.jsonl replies.jsonl --device {device} --workers {workers}", ("prompts",)),
    "packed-chat": dataclasses.replace(packing("packed-chat", "chat=replies.jsonl,field=messages", extra="--epochs 3"),
                                       after=("replies",)),
    "packed-settle": Step("lca.data join packed-settle packed-small packed-chat", ("packed-small", "packed-chat")),
    # Parts of the text that share nothing. Beyond 8K tokens only answers are learned, so all rows of 32K have tasks.
    "mixed-1024": mixture("mixed-1024", "packed", 11 * M,
                          f"--length 1024 --part 0-0.18 --task-share 0.9 {PLANTED} --density 0.6 --seed 1"),
    "mixed-4096": mixture("mixed-4096", "packed", 7 * M,
                          f"--length 4096 --part 0.18-0.295 --task-share 0.9 {PLANTED} --density 0.6 --seed 2"),
    "mixed-8192": mixture("mixed-8192", "packed", 18 * M,
                          f"--length 8192 --part 0.295-0.59 --task-share 0.9 {PLANTED} --density 0.6 --seed 3"),
    "mixed-32768": mixture("mixed-32768", "packed", 22 * M,
                           f"--length 32768 --part 0.59-0.82 --task-share 1 {PLANTED} --density 0.4 --seed 6"),
    "mixed-settle": mixture("mixed-settle", "packed-settle", 16 * M,
                            f"--length 8192 --task-share 0.5 {PLANTED} --density 0.6 --seed 9"),
    "more-8192": mixture("more-8192", "packed-settle", 24 * M,
                         f"--length 8192 --task-share 0.6 {HARDER} --density 0.6 --seed 10"),
    "more-32768": mixture("more-32768", "packed", 12 * M,
                          f"--length 32768 --part 0.82-0.91 --task-share 1 {HARDER} --density 0.4 --seed 11"),
    "more-65536": mixture("more-65536", "packed", 12 * M,
                          f"--length 65536 --part 0.91-1 --task-share 1 {HARDER} --density 0.3 --seed 12"),
    "heldout-1024": mixture("heldout-1024", "packed-heldout", 300_000, "--length 1024"),
    "heldout-8192": mixture("heldout-8192", "packed-heldout", M, "--length 8192"),
}
TEXTS = ("collect", "windows", "prompts", "packed-books", "packed-manuals", "packed-small", "packed-heldout", "packed")
MORE = ("more-8192", "more-32768", "more-65536")
GROUPS = {"texts": TEXTS, "training": tuple(name for name in STEPS if name not in (*TEXTS, *MORE)), "more": MORE}


class Preparation:
    def __init__(self, options):
        self.options, self.processes = options, processes.Processes()
        places = "".join(f" --{name} {shlex.quote(os.path.abspath(value))}" for name, value in
                         (("clones", options.clones), ("packages", options.packages)) if value)
        self.values = {"places": places, "device": options.device, "workers": max(1, (os.cpu_count() or 2) // 2),
                       "prompts": max(1, round(8192 * options.share))}

    def command(self, step):
        words = shlex.split(step.command.format(**self.values))
        if step.tokens:
            words += ["--tokens", str(max(1, round(step.tokens * self.options.share)))]
        inside = words[0].startswith("lca.")
        return [sys.executable, *(["-m", words[0]] if inside else [str(HERE / words[0])]), *words[1:]]

    def done(self, name):
        """Where it is noted that a step is done, and with which command."""
        return self.options.folder / "steps" / name

    def make(self, name, needed):
        """Runs a step once those before it are done; what went wrong, or None."""
        if any(each.result() for each in needed):
            return f"{name} waits for what failed"
        command = self.command(STEPS[name])
        told = shlex.join(command[1:])
        if self.done(name).exists() and self.done(name).read_text() == told:
            return None
        began = time.time()
        with open(self.options.folder / "steps" / f"{name}.log", "w", encoding="utf-8") as log:
            code = self.processes.run(command, log, self.options.folder)
        if code is None:
            return f"{name} was not begun"
        if code:
            lines = pathlib.Path(log.name).read_text(encoding="utf-8", errors="replace").strip().splitlines()
            return f"{name}: {lines[-1] if lines else f'exit code {code}'}"
        draft = self.done(f".{name}")
        draft.write_text(told)
        draft.replace(self.done(name))
        print(f"{name}: {time.time() - began:.0f} s", flush=True)
        return None

    def run(self, names):
        pool, made = concurrent.futures.ThreadPoolExecutor(self.options.jobs), {}
        try:
            # In the order of STEPS: what a step waits for is running or done when its turn comes.
            for name in STEPS:
                if name in names:
                    made[name] = pool.submit(self.make, name, [made[each] for each in STEPS[name].after if each in made])
            return [each.result() for each in made.values() if each.result()]
        except KeyboardInterrupt:
            self.processes.end()
            return ["interrupted; the same command goes on"]
        finally:
            pool.shutdown()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--steps", nargs="+", choices=[*GROUPS, *STEPS], default=["texts", "training"], metavar="NAME",
                        help=f"{', '.join([*GROUPS, *STEPS])} (texts and training)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="auto", help="samples the replies")
    parser.add_argument("--share", type=float, default=1.0)
    for name, what in (("clones", "GitHub repositories"), ("packages", "Debian packages")):
        parser.add_argument(f"--{name}", metavar="DIR", help=f"where {what} are kept")
    options = parser.parse_args()
    if not options.share > 0 or options.jobs < 1:
        parser.error("--share and --jobs must be more than 0")
    (options.folder / "steps").mkdir(parents=True, exist_ok=True)
    names = {each for name in options.steps for each in GROUPS.get(name, (name,))}
    if problems := Preparation(options).run(names):
        sys.exit("prepare: " + "; ".join(problems))
    return 0


if __name__ == "__main__":
    sys.exit(main())
