"""Hashes of prompts that NVIDIA/RULER's own scripts make, to compare ours with; nothing of them is copied.

    python tests/golden/make_ruler.py RULER [--check]     (RULER: a clone of github.com/NVIDIA/RULER; needs numpy)

The scripts run as they are, on our built-in words and on the small texts that this script writes to ruler/. What they
import beside numpy is replaced: the tokenizer by a rule (a run of letters is a token, any other visible character is
one), wonderwords by our lists, nltk's sentences by a rule, and the constant of scipy.
"""

import argparse
import contextlib
import io
import json
import math
import pathlib
import random
import re
import runpy
import shutil
import sys
import tempfile
import types

HERE = pathlib.Path(__file__).resolve().parent
WORDS = HERE.parent.parent / "src" / "eval" / "ruler" / "built_in_words.cpp"
CASES = [  # task, length, seed, samples
    *((task, 4096, 42, 3) for task in (
        "niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3",
        "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2")),
    *((task, 8192, 7, 4) for task in ("niah_single_1", "niah_multikey_3", "niah_multiquery", "vt", "cwe", "fwe", "qa_1")),
    *((task, 2048, 3000000000, 3) for task in ("niah_single_1", "niah_multikey_2", "vt", "cwe", "fwe")),
    ("vt", 1024, 5, 60), ("niah_multivalue", 4096, 11, 40),
]


def tokens(text):
    return re.findall(r"[A-Za-z]+|[^A-Za-z\s]", text)


def word_lists():
    """nouns, adjectives, verbs of the C++ source."""
    text = WORDS.read_text(encoding="utf-8")
    return {name: " ".join(re.findall(r'"([^"]*)"', re.search(rf"kRuler{name} =(.*?);", text, re.DOTALL)[1])).split()
            for name in ("Nouns", "Adjectives", "Verbs")}


def sentence(draw, words):
    return " ".join(draw.sample(words, draw.randint(4, 12))).capitalize() + draw.choice(".....!?")


def paragraph(draw, words, count):
    return " ".join(sentence(draw, words) for _ in range(count))


def texts_make(folder):
    """An essay, and questions in the forms of SQuAD and HotpotQA."""
    draw = random.Random(17)
    words = word_lists()["Nouns"]
    essay = "\n\n".join(paragraph(draw, words, draw.randint(2, 9)) for _ in range(40))
    articles = []
    for at in range(7):
        paragraphs = []
        for part in range(9):
            text = paragraph(draw, words, draw.randint(3, 7))
            asked = [{"question": f"What follows {at} and {part}, number {n}?", "is_impossible": n == 1,
                      "answers": [] if n == 1 else [{"text": each} for each in draw.sample(text.split(), 2)]}
                     for n in range(3)]
            paragraphs.append({"context": text, "qas": asked})
        articles.append({"paragraphs": paragraphs})
    pool = [[f"Title {n}", [sentence(draw, words) + " " for _ in range(draw.randint(2, 6))]] for n in range(150)]
    hotpot = [{"question": f"Which is number {n}?", "answer": draw.choice(words), "context": draw.sample(pool, 10)}
              for n in range(12)]
    for name, value in (("PaulGrahamEssays", {"text": essay}), ("squad", {"data": articles}), ("hotpotqa", hotpot)):
        (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")


def module(name, **members):
    made = types.ModuleType(name)
    vars(made).update(members)
    sys.modules[name] = made
    return made


def stand_ins():
    lists = word_lists()
    names = {"nounlist.txt": "Nouns", "adjectivelist.txt": "Adjectives", "verblist.txt": "Verbs"}
    module("tokenizer", select_tokenizer=lambda *_: types.SimpleNamespace(text_to_tokens=tokens))
    module("wonderwords", random_word=types.SimpleNamespace(
        _get_words_from_text_file=lambda name: list(lists[names[name]])))
    module("nltk")
    module("nltk.tokenize", sent_tokenize=lambda text: re.split(r"(?<=[.!?]) ", text))
    module("scipy")
    module("scipy.special", zeta=lambda alpha: {2.0: math.pi**2 / 6}[alpha])
    module("tqdm", tqdm=lambda each: each)


def hash_of(text):
    """FNV-1a of 64 bits."""
    value = 0xcbf29ce484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001b3 & (1 << 64) - 1
    return f"{value:016x}"


def settings(text):
    """scripts/synthetic.yaml, of which this much is understood."""
    tasks = {}
    for line in text.splitlines():
        if re.match(r"\w+:$", line):
            tasks[line[:-1]] = task = {}
        elif line.strip() and not line.startswith("#") and not line.strip() == "args:":
            name, value = line.split(":")
            task[name.strip()] = value.strip()
    return tasks


def prompts_make(ruler, scripts, case):
    task, length, seed, samples = case
    arguments = settings((ruler / "scripts" / "synthetic.yaml").read_text())[task]
    family = arguments.pop("task")
    constants = runpy.run_path(scripts / "constants.py")["TASKS"][family]
    sys.argv = [family, "--save_dir", str(scripts / "out"), "--save_name", task, "--tokenizer_path", "none",
                "--max_seq_length", str(length), "--tokens_to_generate", str(constants["tokens_to_generate"]),
                "--num_samples", str(samples), "--random_seed", str(seed), "--template",
                constants["template"] + constants["answer_prefix"]]
    for name, value in arguments.items():
        sys.argv += [f"--{name}", value]
    with contextlib.redirect_stderr(io.StringIO()):
        runpy.run_path(str(scripts / f"{family}.py"), run_name="__main__")
    lines = (scripts / "out" / task / "validation.jsonl").read_text().splitlines()
    made = [{"input": hash_of(line["input"]), "prefix": hash_of(line["answer_prefix"]),
             "outputs": hash_of("\n".join(line["outputs"])),
             "tokens": line["length"] - constants["tokens_to_generate"]} for line in map(json.loads, lines)]
    return {"task": task, "length": length, "seed": seed, "samples": made}


def make(ruler, folder):
    stand_ins()
    with tempfile.TemporaryDirectory() as scratch:
        scripts = pathlib.Path(scratch, "data", "synthetic")
        shutil.copytree(ruler / "scripts" / "data", scripts.parent)
        sys.path[:0] = [str(scripts), str(scripts.parent)]
        texts_make(folder)
        for name in ("PaulGrahamEssays", "squad", "hotpotqa"):
            shutil.copy(folder / f"{name}.json", scripts / "json")
        lists = word_lists()
        many = [noun + adjective for adjective in lists["Adjectives"][:4] for noun in lists["Nouns"]]
        (scripts / "json" / "english_words.json").write_text(json.dumps(dict(enumerate(many))))
        made = [prompts_make(ruler, scripts, case) for case in CASES]
    lines = ",\n".join(json.dumps(each) for each in made)
    (folder / "prompts.json").write_text(f"[\n{lines}\n]\n")


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("ruler", type=pathlib.Path)
    options.add_argument("--check", action="store_true")
    args = options.parse_args()
    stored = HERE / "ruler"
    if not args.check:
        stored.mkdir(exist_ok=True)
        make(args.ruler, stored)
        return
    with tempfile.TemporaryDirectory() as folder:
        make(args.ruler, pathlib.Path(folder))
        wrong = [path.name for path in sorted(stored.iterdir())
                 if path.read_bytes() != pathlib.Path(folder, path.name).read_bytes()]
    print(f"ruler: {len(wrong)} files differ {' '.join(wrong)}".rstrip())
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
